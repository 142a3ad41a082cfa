package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress tells a person what is going on: lines for what was found, and on a terminal the present
// step with the time it has taken. It may be used by several goroutines at once.
type progress struct {
	w     io.Writer
	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil where nobody looks
	which string                   // the round
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.bar = progressbar.NewOptions(-1, progressbar.OptionSetWriter(w), progressbar.OptionClearOnFinish(),
				progressbar.OptionSetElapsedTime(true), progressbar.OptionThrottle(100*time.Millisecond))
		}
	}
	return p
}

// round says which round what follows belongs to.
func (p *progress) round(n, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.which = fmt.Sprintf("round %d of %d: ", n, of)
}

// phase says what is done now.
func (p *progress) phase(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		p.bar.Reset()
		p.bar.Describe(p.which + fmt.Sprintf(format, args...))
	}
}

// log prints a line.
func (p *progress) log(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.w, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// complain prints examples of what was answered wrongly.
func (p *progress) complain(t *tally) {
	for _, text := range t.examples {
		p.log("one of %d wrong or missing answers: %s", t.errors, text)
	}
}

func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
