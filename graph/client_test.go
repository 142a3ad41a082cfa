package graph

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// client speaks graphql-transport-ws.
type client struct {
	t    testing.TB
	conn *websocket.Conn
}

// dial connects, with headers "Name: value".
func (w *world) dial(headers ...string) *client {
	w.t.Helper()
	conn, res, err := w.handshake([]string{subprotocol}, headers...)
	if err != nil {
		w.t.Fatalf("%v: %+v", err, res)
	}
	w.t.Cleanup(func() { conn.Close() })
	return &client{w.t, conn}
}

func (w *world) handshake(protocols []string, headers ...string) (*websocket.Conn, *http.Response, error) {
	header := http.Header{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		header.Add(name, value)
	}
	dialer := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience, EnableCompression: true}
	conn, res, err := dialer.DialContext(w.t.Context(), "ws"+strings.TrimPrefix(w.url, "http"), header)
	if res != nil {
		res.Body.Close()
	}
	return conn, res, err
}

// connect connects, and is admitted; "" = without a token.
func (w *world) connect(token string) *client {
	w.t.Helper()
	c := w.dial()
	if token == "" {
		c.write(`{"type":"connection_init"}`)
	} else {
		c.write(`{"type":"connection_init","payload":{"Authorization":"Bearer ` + token + `"}}`)
	}
	c.expect("connection_ack", "")
	return c
}

func (c *client) write(text string) {
	c.t.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) subscribe(id, query string, variables vars) {
	c.t.Helper()
	payload, _ := json.Marshal(map[string]any{"query": query, "variables": variables})
	text, _ := json.Marshal(message{ID: id, Type: "subscribe", Payload: payload})
	c.write(string(text))
}

func (c *client) read() (message, error) {
	var m message
	c.conn.SetReadDeadline(time.Now().Add(patience))
	err := c.conn.ReadJSON(&m)
	return m, err
}

// expect reads the next message, which must be of that type and id.
func (c *client) expect(kind, id string) json.RawMessage {
	c.t.Helper()
	m, err := c.read()
	if err != nil || m.Type != kind || m.ID != id {
		c.t.Fatalf("got %s %q %s %v, want %s %q", m.Type, m.ID, m.Payload, err, kind, id)
	}
	return m.Payload
}

// closed reads until the socket is closed, which must come next, and returns the code and reason.
func (c *client) closed() (int, string) {
	c.t.Helper()
	m, err := c.read()
	var end *websocket.CloseError
	if !errors.As(err, &end) {
		c.t.Fatalf("got %s %q %s %v, want the end", m.Type, m.ID, m.Payload, err)
	}
	return end.Code, end.Text
}

// quick shortens the time limits. It must come before anybody connects.
func (w *world) quick(change func(*pace)) { change(&w.handler.sockets.pace) }

const watching = `subscription($d:[ID!]!,$day:Date!){availability(doctorIds:$d,from:$day){kind slots{id free version}}}`

// raw is a client that reads only when it is told to.
func (w *world) raw() net.Conn {
	w.t.Helper()
	host := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/graphql")
	conn, err := (&net.Dialer{}).DialContext(w.t.Context(), "tcp", host)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	fmt.Fprintf(conn, "GET /graphql HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", host, subprotocol)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != 101 {
		w.t.Fatalf("%+v %v", res, err)
	}
	res.Body.Close()
	return conn
}

// frame is a client's text frame, masked with zeros.
func frame(text string) []byte {
	head := []byte{0x81, 0x80 | byte(len(text))}
	if len(text) > 125 {
		head = []byte{0x81, 0x80 | 126, byte(len(text) >> 8), byte(len(text))}
	}
	return append(append(head, 0, 0, 0, 0), text...)
}
