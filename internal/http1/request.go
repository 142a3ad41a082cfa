package http1

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// verdict is what is thought of bytes that should be a request.
type verdict int

const (
	incomplete verdict = iota // they may become a plain one
	plain
	other
)

// message is a plain request. Its strings are of one copy of its head, its body is where it was read.
type message struct {
	method, target, host string
	fields               []field // but for Host
	length               int     // of the body, which is there in whole
	body                 []byte
	size                 int // in bytes, head and body
}

type field struct{ name, value string }

var endOfHead = []byte("\r\n\r\n")

// parse reads a request from the beginning of in. It is plain if it is
//
//	GET, POST, PUT or DELETE, of a path in letters, digits and / _ . ~ - with or without a query, HTTP/1.1
//	with lines that end in CR LF, one field in each, in printable ASCII
//	with one Host, and a body of one Content-Length or none
//	without Transfer-Encoding, Expect, Upgrade, Trailer and Pragma, or a Connection but keep-alive
//
// so that RFC 9112 knows but one way to read it. Everything else is other.
func parse(in []byte) (m message, v verdict) {
	end := bytes.Index(in, endOfHead)
	if end < 0 {
		if isHopeless(in) {
			return m, other
		}
		return m, incomplete
	}
	head := string(in[:end+2])
	line, rest, _ := strings.Cut(head, "\r\n")
	if !m.start(line) {
		return m, other
	}
	m.fields = make([]field, 0, 12)
	for rest != "" {
		line, rest, _ = strings.Cut(rest, "\r\n")
		if !m.field(line) {
			return m, other
		}
	}
	if m.host == "" {
		return m, other
	}
	m.size = end + len(endOfHead) + m.length
	if len(in) < m.size {
		return m, incomplete
	}
	m.body = in[m.size-m.length : m.size]
	return m, plain
}

// leastRequest is how many bytes net/http waits for before it has an opinion.
const leastRequest = 4

// isHopeless says of a head that is not whole whether it can't become a plain one, so that nobody
// waits for its end.
func isHopeless(in []byte) bool {
	if len(in) < leastRequest {
		return false
	}
	if in[0] < 'A' || in[0] > 'Z' {
		return true
	}
	for at := bytes.IndexByte(in, '\n'); at >= 0; {
		if at == 0 || in[at-1] != '\r' {
			return true
		}
		next := bytes.IndexByte(in[at+1:], '\n')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return false
}

// start reads the first line.
func (m *message) start(line string) bool {
	method, rest, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(rest, " ")
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return false
	}
	m.method, m.target = method, target
	path, query, asked := strings.Cut(target, "?")
	return version == "HTTP/1.1" && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") &&
		all(path, inPath) && all(query, inQuery) && asked == (query != "")
}

// field reads one line of the head.
func (m *message) field(line string) bool {
	name, value, ok := strings.Cut(line, ":")
	if !ok || name == "" || !all(name, inName) || !all(value, inValue) {
		return false
	}
	name, value = canonical(name), strings.Trim(value, " ")
	switch name {
	case "Host":
		if m.host != "" || value == "" || !all(value, inHost) {
			return false
		}
		m.host = value
		return true
	case "Content-Length":
		if m.length, ok = smallNumber(value); !ok || m.has(name) {
			return false
		}
	case "Connection":
		if !strings.EqualFold(value, "keep-alive") {
			return false
		}
	case "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Pragma":
		return false
	}
	m.fields = append(m.fields, field{name, value})
	return true
}

func (m *message) has(name string) bool {
	for _, f := range m.fields {
		if f.name == name {
			return true
		}
	}
	return false
}

// smallNumber reads a length that can be one of ours: without sign, leading zeros or blanks.
func smallNumber(s string) (n int, ok bool) {
	if s == "" || len(s) > 4 || s[0] == '0' && s != "0" {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// A byte's places in a request.
const (
	inPath = 1 << iota
	inQuery
	inName
	inValue
	inHost
)

var places = func() (t [256]byte) {
	mark := func(place byte, bytes string) {
		for _, c := range []byte(bytes) {
			t[c] |= place
		}
	}
	const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	mark(inPath, alphanumeric+"/_.~-")
	mark(inName, alphanumeric+"!#$%&'*+-.^_`|~") // token of RFC 9110
	mark(inHost, alphanumeric+".-:[]")
	for c := byte(' '); c <= '~'; c++ {
		mark(inValue, string(c))
		if c != ' ' && c != '#' {
			mark(inQuery, string(c))
		}
	}
	return t
}()

func all(s string, place byte) bool {
	for i := range len(s) {
		if places[s[i]]&place == 0 {
			return false
		}
	}
	return true
}

// canonical is the name as net/http has it.
func canonical(name string) string {
	if known, ok := names[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// names has what nearly every request sends, in the two ways in which it is written.
var names = func() map[string]string {
	t := map[string]string{}
	for _, name := range []string{"Host", "Content-Length", "Content-Type", "Connection", "Accept", "Accept-Encoding", "Accept-Language",
		"Authorization", "Idempotency-Key", "If-None-Match", "Origin", "Referer", "User-Agent", "X-Request-Id", "X-Forwarded-For"} {
		t[name], t[strings.ToLower(name)] = name, name
	}
	return t
}()

// request is the message as a handler gets it.
func (m *message) request(ctx context.Context, remote string) *http.Request {
	r := empty.WithContext(ctx)
	path, query, _ := strings.Cut(m.target, "?")
	r.Method, r.RequestURI, r.Host, r.RemoteAddr = m.method, m.target, m.host, remote
	r.URL = &url.URL{Path: path, RawQuery: query}
	r.Header = make(http.Header, len(m.fields)+1) // a request id is added, as a rule
	values := make([]string, len(m.fields))
	for i, f := range m.fields {
		values[i] = f.value
		if r.Header[f.name] == nil {
			r.Header[f.name] = values[i : i+1 : i+1]
		} else {
			r.Header[f.name] = append(r.Header[f.name], f.value)
		}
	}
	if m.length > 0 {
		b := new(payload)
		b.Reset(m.body)
		r.Body, r.ContentLength = b, int64(m.length)
	}
	return r
}

var empty = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}

// payload is a body that is there in whole.
type payload struct{ bytes.Reader }

var _ io.ReadCloser = (*payload)(nil)

// Close implements [io.Closer].
func (*payload) Close() error { return nil }
