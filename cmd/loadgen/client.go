package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// answerWithin is how long a call may take, or up to twice as long; longer is an error.
const answerWithin = 15 * time.Second

// conn is one HTTP/1.1 connection that is kept open. It knows as much of HTTP as the servers here
// speak, answers with a Content-Length, and costs a tenth of net/http, which would take the
// time of the two cores from what is measured. Not for several goroutines at once.
type conn struct {
	address string
	net     net.Conn  // nil = to be opened
	by      time.Time // when it gives up
	in      []byte
}

func newConn(address string) *conn { return &conn{address: address, in: make([]byte, 16<<10)} }

func (c *conn) close() {
	if c.net != nil {
		c.net.Close()
		c.net = nil
	}
}

// do sends a whole request and reads the answer. The body is good until the next call. After an
// error, what became of the request is unknown; the next call opens a new connection.
func (c *conn) do(ctx context.Context, request []byte) (status int, body []byte, err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.net == nil {
		var d net.Dialer
		if c.net, err = d.DialContext(ctx, "tcp", c.address); err != nil {
			c.net = nil
			return 0, nil, err
		}
		c.by = time.Time{}
	}
	if now := time.Now(); c.by.Sub(now) < answerWithin { // a deadline for each call would cost more than the call
		c.by = now.Add(2 * answerWithin)
		if err := c.net.SetDeadline(c.by); err != nil {
			return 0, nil, err
		}
	}
	if _, err := c.net.Write(request); err != nil {
		return 0, nil, err
	}
	for n := 0; ; {
		if n == len(c.in) {
			c.in = append(c.in, make([]byte, len(c.in))...)
		}
		m, err := c.net.Read(c.in[n:])
		if err != nil {
			return 0, nil, err
		}
		n += m
		status, body, rest, err := readAnswer(c.in[:n])
		switch {
		case err != nil:
			return 0, nil, err
		case rest < 0: // more is to come
		case rest > 0:
			return 0, nil, fmt.Errorf("%d bytes after the answer", rest)
		default:
			return status, body, nil
		}
	}
}

var (
	endOfHeader   = []byte("\r\n\r\n")
	contentLength = []byte("\r\nContent-Length: ")
)

// readAnswer takes an answer apart. rest is the number of bytes after it, below 0 if it is not whole yet.
func readAnswer(in []byte) (status int, body []byte, rest int, err error) {
	end := bytes.Index(in, endOfHeader)
	if end < 0 {
		return 0, nil, -1, nil
	}
	header := in[:end+2]
	if len(header) < 12 || !bytes.HasPrefix(header, []byte("HTTP/1.1 ")) {
		return 0, nil, 0, fmt.Errorf("no HTTP: %.40q", header)
	}
	if status, err = strconv.Atoi(string(header[9:12])); err != nil {
		return 0, nil, 0, fmt.Errorf("no HTTP status: %.40q", header)
	}
	at := bytes.Index(header, contentLength)
	if at < 0 {
		return 0, nil, 0, errors.New("the answer has no Content-Length")
	}
	digits := header[at+len(contentLength):]
	length, err := strconv.Atoi(string(digits[:bytes.IndexByte(digits, '\r')]))
	if err != nil || length < 0 {
		return 0, nil, 0, fmt.Errorf("Content-Length: %.20q", digits)
	}
	body = in[end+len(endOfHeader):]
	if len(body) < length {
		return 0, nil, -1, nil
	}
	return status, body[:length], len(body) - length, nil
}
