package app

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// The line of a request that went well may wait so long for others, or until there are so many bytes
// of them, to be written with one call of the system. Every other line is written at once, with
// those before it; an ordinary stop loses none.
const (
	logWait = 100 * time.Millisecond
	logMost = 32 << 10
)

// newLog makes the program's log, in JSON, with a line for each thing that is worth level. flush
// writes what waits; call it before the end.
func newLog(w io.Writer, level slog.Level) (log *slog.Logger, flush func()) {
	lines := &logLines{w: w}
	return slog.New(logHandler{slog.NewJSONHandler(lines, &slog.HandlerOptions{Level: level}), lines}), lines.flush
}

// logHandler knows which lines may wait.
type logHandler struct {
	slog.Handler
	lines *logLines
}

// Handle implements [slog.Handler].
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if r.Message != requestLine || r.Level > slog.LevelInfo {
		h.lines.flush()
	}
	return err
}

// WithAttrs implements [slog.Handler].
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup implements [slog.Handler].
func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name), h.lines}
}

// logLines are whole lines on their way.
type logLines struct {
	w io.Writer

	mu      sync.Mutex
	waiting []byte
}

// Write takes a line.
func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		time.AfterFunc(logWait, l.flush)
	}
	if l.waiting = append(l.waiting, line...); len(l.waiting) >= logMost {
		l.write()
	}
	return len(line), nil
}

func (l *logLines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write()
}

// write passes on what waits. The caller holds the lock.
func (l *logLines) write() {
	if len(l.waiting) > 0 {
		_, _ = l.w.Write(l.waiting) // there is nobody to tell
		l.waiting = l.waiting[:0]
	}
}
