package app

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// calls are what was written, call by call.
type calls struct {
	mu   sync.Mutex
	said []string
}

func (c *calls) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, string(p))
	return len(p), nil
}

// lines is how many lines each call wrote.
func (c *calls) lines() (n []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.said {
		n = append(n, strings.Count(text, "\n"))
	}
	return n
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	request := func(log *slog.Logger) { log.Info(requestLine, "status", 200) }
	tests := map[string]struct {
		do   func(log *slog.Logger, flush func())
		want []int // lines in each call
	}{
		"a request waits": {func(log *slog.Logger, _ func()) { request(log); request(log) }, nil},
		"for a moment":    {func(log *slog.Logger, _ func()) { request(log); request(log); time.Sleep(logWait + 1) }, []int{2}},
		"and the next as long": {func(log *slog.Logger, _ func()) {
			request(log)
			time.Sleep(logWait + 1)
			request(log)
			time.Sleep(logWait + 1)
		}, []int{1, 1}},
		"until the end":       {func(log *slog.Logger, flush func()) { request(log); flush(); flush() }, []int{1}},
		"not one that failed": {func(log *slog.Logger, _ func()) { request(log); log.Error(requestLine, "status", 500) }, []int{2}},
		"not a warning": {func(log *slog.Logger, _ func()) {
			request(log)
			log.With("a", 1).WithGroup("g").Warn("careful", "b", 2)
		}, []int{2}},
		"not what else happened": {func(log *slog.Logger, _ func()) { log.Info("serving"); request(log) }, []int{1}},
		"nor very many": {func(log *slog.Logger, _ func()) {
			for range 1000 {
				request(log)
			}
		}, nil},
		"what is not worth it is nothing": {func(log *slog.Logger, flush func()) { log.Debug("detail"); flush() }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w calls
				log, flush := newLog(&w, slog.LevelInfo)
				tt.do(log, flush)
				synctest.Wait()
				got := w.lines()
				if name == "nor very many" {
					if len(got) == 0 || len(w.said[0]) < logMost || len(w.said[0]) > logMost+1000 {
						t.Errorf("calls with %d lines", got)
					}
					return
				}
				if len(got) != len(tt.want) {
					t.Fatalf("calls with %d lines, want %d", got, tt.want)
				}
				for i := range got {
					if got[i] != tt.want[i] {
						t.Errorf("calls with %d lines, want %d", got, tt.want)
					}
				}
			})
		})
	}
}

// Lines come whole and in order, whoever writes them, and a log that can't be written stops nobody.
func TestLogMany(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	for _, w := range []io.Writer{&buf, broken{}} {
		log, flush := newLog(w, slog.LevelInfo)
		var writers sync.WaitGroup
		for n := range 8 {
			writers.Go(func() {
				for i := range 500 {
					log.Info(requestLine, "n", n, "i", i)
				}
			})
		}
		writers.Wait()
		flush()
	}
	if n := strings.Count(buf.String(), "\n"); n != 4000 || strings.Count(buf.String(), `{"time":`) != n {
		t.Errorf("%d lines, want 4000", n)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }
