package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// figures are what one measurement came to. What was not measured is 0.
type figures struct {
	PerSecond float64
	P50, P99  float64 // ms
	CPU       float64 // µs of the servers for each call or message
	Memory    float64 // KiB for each socket
	Errors    int64
}

// row is one line of the report: a scenario in all its rounds.
type row struct {
	Scenario    string
	Callers     int
	FloorName   string
	measure     string // what the ratio compares
	ratio       func(ours, floor figures) float64
	ours, floor []figures
	Violations  int64
}

func (r *row) add(ours, floor figures, violations int64) {
	r.ours, r.floor = append(r.ours, ours), append(r.floor, floor)
	r.Violations += violations
}

// The ratios. Of the first, more is better; of the others, less.
func perSecond(ours, floor figures) float64 { return ours.PerSecond / floor.PerSecond }
func p99(ours, floor figures) float64       { return ours.P99 / floor.P99 }

// cpu is 0 if a window was too short for the kernel to have counted anything.
func cpu(ours, floor figures) float64 {
	if floor.CPU == 0 {
		return 0
	}
	return ours.CPU / floor.CPU
}

func memory(ours, floor figures) float64 { return ours.Memory / floor.Memory }
func cost(ours, floor figures) float64   { return floor.PerSecond / ours.PerSecond }

// ratios are those of all rounds, sorted.
func (r *row) ratios() []float64 {
	all := make([]float64, len(r.ours))
	for i := range r.ours {
		all[i] = r.ratio(r.ours[i], r.floor[i])
	}
	slices.Sort(all)
	return all
}

// median is that of every figure by itself; errors are summed.
func median(rounds []figures) figures {
	var f figures
	of := func(field func(figures) float64) float64 {
		values := make([]float64, len(rounds))
		for i, r := range rounds {
			values[i] = field(r)
		}
		return middle(values)
	}
	f.PerSecond = of(func(f figures) float64 { return f.PerSecond })
	f.P50 = of(func(f figures) float64 { return f.P50 })
	f.P99 = of(func(f figures) float64 { return f.P99 })
	f.CPU = of(func(f figures) float64 { return f.CPU })
	f.Memory = of(func(f figures) float64 { return f.Memory })
	for _, r := range rounds {
		f.Errors += r.Errors
	}
	return f
}

// middle is the median, NaN of nothing.
func middle(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.SortFunc(values, cmp.Compare)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// number3 is a figure as JSON: three digits behind the point, null if there is none.
type number3 float64

// MarshalJSON writes it.
func (n number3) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(float64(n)*1000)/1000, 'f', -1, 64), nil
}

// writeJSON writes one object for the row, in a line.
func (r *row) writeJSON(w io.Writer) error {
	type side struct {
		Name      string  `json:"name,omitempty"`
		PerSecond number3 `json:"per_s"`
		P50       number3 `json:"p50_ms"`
		P99       number3 `json:"p99_ms"`
		CPU       number3 `json:"cpu_us"`
		Memory    number3 `json:"kib,omitempty"`
		Errors    *int64  `json:"errors,omitempty"`
	}
	sideOf := func(f figures) side {
		return side{PerSecond: number3(f.PerSecond), P50: number3(f.P50), P99: number3(f.P99), CPU: number3(f.CPU), Memory: number3(f.Memory)}
	}
	var object struct {
		Scenario string `json:"scenario"`
		Callers  int    `json:"callers"`
		Ours     side   `json:"ours"`
		Floor    side   `json:"floor"`
		Ratio    struct {
			Median number3 `json:"median"`
			Min    number3 `json:"min"`
			Max    number3 `json:"max"`
		} `json:"ratio"`
		Violations int64 `json:"violations"`
	}
	ours, floor := median(r.ours), median(r.floor)
	object.Scenario, object.Callers, object.Violations = r.Scenario, r.Callers, r.Violations
	object.Ours, object.Floor = sideOf(ours), sideOf(floor)
	object.Ours.Errors, object.Floor.Name = &ours.Errors, r.FloorName
	ratios := r.ratios()
	object.Ratio.Median, object.Ratio.Min, object.Ratio.Max = number3(middle(ratios)), number3(ratios[0]), number3(ratios[len(ratios)-1])
	return json.NewEncoder(w).Encode(object)
}

// writeTable writes all rows for people, as Markdown.
func writeTable(w io.Writer, rows []*row) {
	fmt.Fprintln(w, "| scenario | callers | ours: per s · p50 / p99 ms · CPU µs | floor | per s · p50 / p99 ms · CPU µs | compared | ratio [min – max] | errors, violations |")
	fmt.Fprintln(w, "|---|--:|---|---|---|---|---|--:|")
	for _, r := range rows {
		ours, ratios := median(r.ours), r.ratios()
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | **%.2f** [%.2f – %.2f] | %d, %d |\n", r.Scenario, r.Callers,
			ours, r.FloorName, median(r.floor), r.measure, middle(ratios), ratios[0], ratios[len(ratios)-1], ours.Errors, r.Violations)
	}
}

// String is the figures in short.
func (f figures) String() string {
	text := fmt.Sprintf("%s · %s / %s · %s", digits(f.PerSecond), digits(f.P50), digits(f.P99), digits(f.CPU))
	if f.Memory > 0 {
		text += fmt.Sprintf(" · %s KiB", digits(f.Memory))
	}
	return text
}

// digits is a figure with as many digits as mean something, – for none.
func digits(v float64) string {
	switch {
	case v == 0 || math.IsNaN(v):
		return "–"
	case v >= 1000:
		n := int64(math.Round(v))
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
