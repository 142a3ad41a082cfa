package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// The picture: a band for each scenario, with bars for how much came through in a second and, on
// the right, from the median to the 99th percentile of the latency, ours above the floor. Both
// axes are logarithmic: the scenarios are far apart.
const (
	labelWidth = 280
	panelWidth = 330
	gapWidth   = 70
	bandHeight = 46
	headHeight = 52
)

// axis maps values to a panel.
type axis struct {
	left     float64
	min, max float64 // powers of ten
}

func newAxis(left float64, values []float64) axis {
	a := axis{left: left, min: math.Inf(1), max: math.Inf(-1)}
	for _, v := range values {
		if v > 0 && !math.IsInf(v, 0) {
			a.min, a.max = min(a.min, math.Floor(math.Log10(v))), max(a.max, math.Ceil(math.Log10(v)))
		}
	}
	if a.min > a.max {
		a.min, a.max = 0, 1
	}
	a.max = max(a.max, a.min+1)
	return a
}

func (a axis) at(v float64) float64 {
	share := (math.Log10(v) - a.min) / (a.max - a.min)
	return a.left + panelWidth*min(1, max(0, share))
}

// writePicture draws the rows as SVG.
func writePicture(w io.Writer, rows []*row) error {
	var throughput, latency []float64
	for _, r := range rows {
		for _, f := range []figures{median(r.ours), median(r.floor)} {
			throughput = append(throughput, f.PerSecond)
			latency = append(latency, f.P50, f.P99)
		}
	}
	perSecond := newAxis(labelWidth, throughput)
	ms := newAxis(labelWidth+panelWidth+gapWidth, latency)
	bottom := headHeight + bandHeight*len(rows)
	width, height := labelWidth+2*panelWidth+2*gapWidth, bottom+34

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#222">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<rect x="%d" y="12" width="12" height="12" fill="%s"/><text x="%d" y="22">openslot</text>`+
		`<rect x="%d" y="12" width="12" height="12" fill="%s"/><text x="%d" y="22">floor</text>`+"\n", 12, oursColor, 30, 110, floorColor, 128)
	for _, panel := range []struct {
		axis axis
		name string
	}{{perSecond, "per second (logarithmic)"}, {ms, "milliseconds, median to 99th percentile (logarithmic)"}} {
		fmt.Fprintf(&b, `<text x="%.0f" y="22" font-weight="bold">%s</text>`+"\n", panel.axis.left, panel.name)
		for power := panel.axis.min; power <= panel.axis.max; power++ {
			x := panel.axis.at(math.Pow(10, power))
			fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle" fill="#777">%s</text>`+"\n",
				x, headHeight-8, bottom, x, bottom+18, tick(math.Pow(10, power)))
		}
	}
	for i, r := range rows {
		y := headHeight + bandHeight*i
		fmt.Fprintf(&b, `<text x="12" y="%d">%s</text><text x="12" y="%d" fill="#777">%s</text>`+"\n", y+14, escape(label(r)), y+29, escape(r.FloorName))
		for n, f := range []figures{median(r.ours), median(r.floor)} {
			top := y + 3 + n*16
			color := []string{oursColor, floorColor}[n]
			bar(&b, box{perSecond.left, perSecond.at(f.PerSecond), top, color}, digits(f.PerSecond))
			if f.P99 > 0 {
				bar(&b, box{ms.at(max(f.P50, math.Pow(10, ms.min))), ms.at(f.P99), top, color}, digits(f.P50)+" – "+digits(f.P99))
			}
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// tick is a power of ten.
func tick(v float64) string {
	if v >= 1000 {
		return digits(v)
	}
	return fmt.Sprintf("%g", v)
}

const oursColor, floorColor = "#1f6f8b", "#c9ada7"

func label(r *row) string { return fmt.Sprintf("%s (%d callers)", r.Scenario, r.Callers) }

type box struct {
	from, to float64
	top      int
	color    string
}

func bar(b *strings.Builder, x box, text string) {
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="13" fill="%s"/><text x="%.1f" y="%d" font-size="10">%s</text>`+"\n",
		x.from, x.top, max(2, x.to-x.from), x.color, x.to+4, x.top+10, escape(text))
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
