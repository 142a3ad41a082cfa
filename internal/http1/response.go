package http1

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// flushFrom is from how many bytes on an answer is sent in pieces.
const flushFrom = 64 << 10

// response is the [http.ResponseWriter] of a connection: an answer is written with one call of the
// system once the handler is done, with its Content-Length, unless it is flushed before: then it goes in
// chunks.
type response struct {
	conn   *conn
	header http.Header

	begun   bool // the status is known and the fields are fixed
	status  int
	typed   bool  // there is a Content-Type, or there should be none
	last    bool  // the connection ends with this answer
	chunked bool  // the head has been sent
	*unsent       // nil between answers
	err     error // of the connection
}

// unsent is what has not been sent of an answer. Connections are many and answers few at any one
// time, so they share it.
type unsent struct {
	head []byte // without what is only known with the body
	body []byte
}

var unsents = sync.Pool{New: func() any { return new(unsent) }}

// keptUnsent is how many bytes somebody else may get with an unsent. Few answers are longer.
const keptUnsent = 2 * flushFrom

// begin makes room for an answer, which ends with end.
func (w *response) begin() {
	clear(w.header)
	*w = response{conn: w.conn, header: w.header, unsent: unsents.Get().(*unsent)} //nolint:forcetypeassert,errcheck // as New has it
}

func (w *response) end() {
	if cap(w.head)+cap(w.body) <= keptUnsent {
		w.head, w.body = w.head[:0], w.body[:0]
		unsents.Put(w.unsent)
	}
	w.unsent = nil
}

// Header implements [http.ResponseWriter]. What is changed after the status was written is not sent.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter]. Informational answers (1xx) are not sent.
func (w *response) WriteHeader(status int) {
	if w.begun || status < http.StatusOK {
		return
	}
	w.begun, w.status = true, status
	w.head = append(w.head, statusLine(status)...)
	dated := false
	for name, values := range w.header {
		switch name {
		case "Content-Length", "Transfer-Encoding": // follow from the body
			continue
		case "Content-Type", "Content-Encoding":
			w.typed = true
		case "Date":
			dated = true
		case "Connection":
			w.last = w.last || slices.Contains(values, "close")
		}
		for _, value := range values {
			w.head = appendField(w.head, name, value)
		}
	}
	if !dated {
		w.head = append(w.head, date()...)
	}
}

// Write implements [http.ResponseWriter].
func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if !w.hasBody() {
		return 0, http.ErrBodyNotAllowed
	}
	w.body = append(w.body, p...)
	if len(w.body) >= flushFrom {
		return len(p), w.FlushError()
	}
	return len(p), w.err
}

// hasBody is false for the answers that RFC 9110 gives none.
func (w *response) hasBody() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// Flush implements [http.Flusher].
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what has been written so far, for [http.ResponseController].
func (w *response) FlushError() error {
	w.WriteHeader(http.StatusOK)
	if !w.hasBody() {
		return w.err
	}
	if !w.chunked {
		w.chunked = true
		w.sniff()
		w.head = append(w.head, "Transfer-Encoding: chunked\r\n\r\n"...)
	}
	if len(w.body) > 0 {
		w.head = strconv.AppendInt(w.head, int64(len(w.body)), 16)
		w.head = append(append(append(w.head, "\r\n"...), w.body...), "\r\n"...)
	}
	return w.send()
}

// finish sends the rest.
func (w *response) finish() error {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.chunked:
		if err := w.FlushError(); err != nil {
			return err
		}
		w.head = append(w.head, "0\r\n\r\n"...)
	default:
		if w.conn.server.closing.Load() && !w.last {
			w.last = true
			w.head = append(w.head, "Connection: close\r\n"...)
		}
		if w.hasBody() {
			w.sniff()
			w.head = append(w.head, "Content-Length: "...)
			w.head = strconv.AppendInt(w.head, int64(len(w.body)), 10)
			w.head = append(w.head, "\r\n"...)
		}
		w.head = append(append(w.head, "\r\n"...), w.body...)
	}
	return w.send()
}

// send writes what is ready. After an error nothing more is sent.
func (w *response) send() error {
	if w.err == nil {
		w.err = w.conn.write(w.head)
	}
	w.head, w.body = w.head[:0], w.body[:0]
	return w.err
}

// sniff says what a body is whose handler did not.
func (w *response) sniff() {
	if !w.typed && len(w.body) > 0 {
		w.head = appendField(w.head, "Content-Type", http.DetectContentType(w.body))
	}
}

// SetReadDeadline is for [http.ResponseController].
func (w *response) SetReadDeadline(t time.Time) error {
	w.conn.readBy = time.Time{}
	return w.conn.socket.SetReadDeadline(t)
}

// SetWriteDeadline is for [http.ResponseController].
func (w *response) SetWriteDeadline(t time.Time) error {
	w.conn.writeBy = time.Time{}
	return w.conn.socket.SetWriteDeadline(t)
}

func statusLine(status int) string {
	if status == http.StatusOK {
		return "HTTP/1.1 200 OK\r\n"
	}
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status) // as net/http has it
	}
	return fmt.Sprintf("HTTP/1.1 %03d %s\r\n", status, text)
}

// appendField writes a field. A value can't begin a line of its own.
func appendField(to []byte, name, value string) []byte {
	to = append(append(to, name...), ": "...)
	if strings.ContainsAny(value, "\r\n") {
		value = oneLine.Replace(value)
	}
	return append(append(to, value...), "\r\n"...)
}

var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// stamp is a Date field and the second for which it is right.
type stamp struct {
	second int64
	field  string
}

var lastStamp atomic.Pointer[stamp]

// date is the field Date of this second.
func date() string {
	now := time.Now()
	if s := lastStamp.Load(); s != nil && s.second == now.Unix() {
		return s.field
	}
	s := &stamp{now.Unix(), "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"}
	lastStamp.Store(s)
	return s.field
}
