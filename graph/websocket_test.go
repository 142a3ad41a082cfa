package graph

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
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
	w.t.Cleanup(func() { conn.Close() }) //nolint:errcheck // may be closed
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
		res.Body.Close() //nolint:errcheck // read only
	}
	return conn, res, err
}

// connect connects and initialises; "" = without a token.
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
	c.conn.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // the read finds out
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

const watch = `subscription($d:[ID!]!,$day:Date!){availability(doctorIds:$d,from:$day){kind slots{id free version}}}`

// Every way in which a socket ends, with its code.
func TestCloseCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init = 300 * time.Millisecond })
	const sub = `{"id":"1","type":"subscribe","payload":{"query":"subscription{availability(doctorIds:[1],from:\"2030-01-01\"){kind}}"}}`
	expired, err := w.signer.Sign(auth.Grant{Role: booking.Patient, Subject: "late", TTL: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		init bool // connection_init and ack come first
		send []string
		code int
	}{
		"malformed: no JSON":         {true, []string{`{`}, 4400},
		"malformed: before init":     {false, []string{`hello`}, 4400},
		"malformed: list":            {true, []string{`[]`}, 4400},
		"malformed: unknown type":    {true, []string{`{"type":"start","id":"1"}`}, 4400},
		"malformed: no type":         {true, []string{`{"id":"1"}`}, 4400},
		"malformed: id is a number":  {true, []string{`{"id":1,"type":"subscribe","payload":{"query":"{__typename}"}}`}, 4400},
		"malformed: no id":           {true, []string{`{"type":"subscribe","payload":{"query":"{__typename}"}}`}, 4400},
		"malformed: id too long":     {true, []string{`{"id":"` + strings.Repeat("x", 200) + `","type":"subscribe","payload":{"query":"{__typename}"}}`}, 4400},
		"malformed: no payload":      {true, []string{`{"id":"1","type":"subscribe"}`}, 4400},
		"malformed: no query":        {true, []string{`{"id":"1","type":"subscribe","payload":{}}`}, 4400},
		"malformed: not UTF-8":       {true, []string{"{\"id\":\"\xff\",\"type\":\"ping\"}"}, 4400},
		"malformed: payload of init": {false, []string{`{"type":"connection_init","payload":[]}`}, 4400},
		"too large":                  {true, []string{`{"type":"ping","payload":{"x":"` + strings.Repeat("x", maxBody) + `"}}`}, 1009},
		"W3 subscribe before init":   {false, []string{sub}, 4401},
		"W4 no init in time":         {false, nil, 4408},
		"W4 pings are no init":       {false, []string{`{"type":"ping"}`}, 4408},
		"W5 second init":             {true, []string{`{"type":"connection_init"}`}, 4429},
		"W6 same id twice":           {true, []string{fmt.Sprintf(strings.Replace(sub, "[1]", "[%d]", 1), w.northDoctor), sub}, 4409},
		"token refused":              {false, []string{`{"type":"connection_init","payload":{"Authorization":"Bearer nonsense"}}`}, 4403},
		"token is a number":          {false, []string{`{"type":"connection_init","payload":{"Authorization":1}}`}, 4403},
		"token without scheme":       {false, []string{`{"type":"connection_init","payload":{"authorization":"` + w.patient("p") + `"}}`}, 4403},
		"token has expired":          {false, []string{`{"type":"connection_init","payload":{"Authorization":"Bearer ` + expired + `"}}`}, 0},
		"the client goes":            {true, nil, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.dial()
			s.t = t
			if c.init {
				s.write(`{"type":"connection_init"}`)
				s.expect("connection_ack", "")
			}
			for _, text := range c.send {
				s.write(text)
			}
			switch name {
			case "W6 same id twice":
				m, err := s.read() // the first one's snapshot may come before
				if err == nil && m.Type == "next" {
					_, err = s.read()
				}
				if !websocket.IsCloseError(err, 4409) {
					t.Errorf("%v", err)
				}
				return
			case "W4 pings are no init":
				s.expect("pong", "")
			case "the client goes":
				bye := websocket.FormatCloseMessage(1000, "bye")
				if err := s.conn.WriteControl(websocket.CloseMessage, bye, time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
			case "token has expired":
				// Within the leeway for clocks it is still good.
				s.expect("connection_ack", "")
				return
			}
			if code, reason := s.closed(); code != c.code || (code > 4000) != (reason != "") {
				t.Errorf("closed with %d %q, want %d", code, reason, c.code)
			}
		})
	}
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.AllowedOrigins = []string{"https://app.example"} })
	host := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/graphql")
	for name, c := range map[string]struct {
		protocols []string
		header    string
		status    int
	}{
		"current protocol":            {[]string{subprotocol}, "X-Nothing: 1", 101},
		"current beside legacy":       {[]string{"graphql-ws", subprotocol}, "X-Nothing: 1", 101},
		"P19 legacy protocol":         {[]string{"graphql-ws"}, "X-Nothing: 1", 400},
		"no protocol":                 {nil, "X-Nothing: 1", 400},
		"same host":                   {[]string{subprotocol}, "Origin: http://" + host, 101},
		"allowed origin":              {[]string{subprotocol}, "Origin: https://app.example", 101},
		"allowed host, other scheme":  {[]string{subprotocol}, "Origin: http://app.example", 403},
		"allowed host, other port":    {[]string{subprotocol}, "Origin: https://app.example:444", 403},
		"W1 foreign origin":           {[]string{subprotocol}, "Origin: https://evil.example", 403},
		"W1 origin that begins alike": {[]string{subprotocol}, "Origin: https://app.example.evil.example", 403},
		"W1 origin null":              {[]string{subprotocol}, "Origin: null", 403},
		"bad token":                   {[]string{subprotocol}, "Authorization: Bearer nonsense", 401},
	} {
		conn, res, err := w.handshake(c.protocols, c.header)
		if res == nil || res.StatusCode != c.status {
			t.Errorf("%s: %+v %v, want %d", name, res, err, c.status)
			continue
		}
		if conn != nil {
			if extensions := res.Header.Get("Sec-WebSocket-Extensions"); extensions != "" || conn.Subprotocol() != subprotocol {
				t.Errorf("%s: W8: negotiated %q %q", name, extensions, conn.Subprotocol())
			}
			conn.Close() //nolint:errcheck // done
		}
	}
}

func TestOperationsOnSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(w.northDoctor, noon(2), 2)
	day := noon(2).Format(time.DateOnly)

	t.Run("Query", func(t *testing.T) {
		c := w.connect("")
		c.subscribe("q", `{doctor(id:"`+id(w.northDoctor)+`"){name}}`, nil)
		if got := c.expect("next", "q"); string(got) != `{"data":{"doctor":{"name":"Ada Example"}}}` {
			t.Errorf("%s", got)
		}
		c.expect("complete", "q")
		c.write(`{"type":"ping","payload":{"n":1}}`)
		if got := c.expect("pong", ""); string(got) != `{"n":1}` {
			t.Errorf("pong %s", got)
		}
	})
	t.Run("W14Mutation", func(t *testing.T) {
		book := `mutation($s:ID!,$k:String!){bookAppointment(input:{slotId:$s,idempotencyKey:$k}){replayed appointment{status}}}`
		c := w.connect("")
		c.subscribe("1", book, vars{"s": id(slot), "k": "k"})
		if got := c.expect("next", "1"); !strings.Contains(string(got), "UNAUTHENTICATED") {
			t.Errorf("anonymous: %s", got)
		}
		c.expect("complete", "1")
		for name, c := range map[string]*client{"init": w.connect(w.patient("a")), "upgrade": w.dial("Authorization: Bearer " + w.patient("b"))} {
			if name == "upgrade" {
				c.write(`{"type":"connection_init","payload":{"sub":"W13: what a client claims counts for nothing","role":"staff"}}`)
				c.expect("connection_ack", "")
			}
			for _, replayed := range []string{"false", "true"} {
				c.subscribe("1", book, vars{"s": id(slot), "k": "k"})
				if got := string(c.expect("next", "1")); !strings.Contains(got, `"replayed":`+replayed) || !strings.Contains(got, "BOOKED") {
					t.Errorf("%s: %s", name, got)
				}
				c.expect("complete", "1")
			}
		}
	})
	t.Run("FaultsEndAnOperationOnly", func(t *testing.T) {
		c := w.connect("")
		for _, query := range []string{"{", "{nope}", "subscription{nope}", `{doctor(id:"0"){id}} `, `mutation{a:cancelAppointment(input:{appointmentId:1}){changed} b:cancelAppointment(input:{appointmentId:1}){changed}}`,
			`subscription{availability(doctorIds:["999"],from:"2030-01-01"){kind}}`, `subscription{availability(doctorIds:["1"],from:"2030-02-30"){kind}}`,
			`subscription{a:availability(doctorIds:["1"],from:"2030-01-01"){kind} b:availability(doctorIds:["1"],from:"2030-01-01"){kind}}`, // P28
			`subscription{availability(doctorIds:["1"],from:"2030-01-01")@skip(if:true){kind}}`} {
			c.subscribe("x", query, nil)
			m, err := c.read()
			if err != nil || !strings.Contains(string(m.Payload), `"code"`) {
				t.Fatalf("%s: %s %s %v", query, m.Type, m.Payload, err)
			}
			if m.Type == "next" { // a field that failed
				c.expect("complete", "x")
			} else if m.Type != "error" || m.Payload[0] != '[' { // P27
				t.Errorf("%s: %s %s", query, m.Type, m.Payload)
			}
		}
		c.subscribe("y", "{__typename}", nil) // P11: nothing came after error
		c.expect("next", "y")
		c.expect("complete", "y")
	})
	t.Run("Watch", func(t *testing.T) {
		c := w.connect("")
		c.subscribe("w", watch, vars{"d": []string{id(w.northDoctor)}, "day": day})
		if got := string(c.expect("next", "w")); !strings.Contains(got, `"SNAPSHOT"`) || !strings.Contains(got, `"id":"`+id(slot)+`"`) {
			t.Fatalf("first: %s", got)
		}
		sql[int](w, `UPDATE time_slot SET capacity = 7 WHERE id = $1 RETURNING 1`, slot)
		for {
			if got := string(c.expect("next", "w")); strings.Contains(got, `"free":5`) || strings.Contains(got, `"free":7`) {
				break
			}
		}
		c.write(`{"id":"w","type":"complete"}`)
		c.subscribe("w", `{__typename}`, nil) // the id is free again at once
		for {
			m, err := c.read()
			if err != nil || m.ID != "w" {
				t.Fatal(m, err)
			}
			if m.Type == "next" && strings.Contains(string(m.Payload), "__typename") {
				break // deltas on the way may come before, but no complete
			}
			if m.Type != "next" {
				t.Fatal(m.Type)
			}
		}
		c.expect("complete", "w")
	})
	t.Run("W9Operations", func(t *testing.T) {
		c := w.connect("")
		got := map[string]string{}
		for i := range maxOperations + 1 {
			c.subscribe(fmt.Sprint(i), watch, vars{"d": []string{id(w.northDoctor)}, "day": day})
		}
		for range maxOperations + 1 {
			m, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			got[m.ID] = m.Type
		}
		for i := range maxOperations + 1 {
			if want := map[bool]string{true: "next", false: "error"}[i < maxOperations]; got[fmt.Sprint(i)] != want {
				t.Errorf("operation %d: %s, want %s", i, got[fmt.Sprint(i)], want)
			}
		}
		c.write(`{"id":"0","type":"complete"}`)
		c.subscribe("again", "{__typename}", nil)
		c.expect("next", "again")
	})
}

// W11: a socket lives as long as its token.
func TestTokenExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signer.Leeway = 0
	authenticator, err := auth.New(t.Context(), auth.Config{Issuer: w.signer.Issuer, Audience: w.signer.Audience, Secret: w.signer.Secret, Leeway: time.Nanosecond}, auth.NewPatients(w.db.Pool))
	if err != nil {
		t.Fatal(err)
	}
	w.handler.sockets.auth = authenticator
	token, err := w.signer.Sign(auth.Grant{Role: booking.Patient, Subject: "brief", TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := w.connect(token)
	c.subscribe("1", watch, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	c.expect("next", "1")
	if code, reason := c.closed(); code != closeForbidden || !strings.Contains(reason, "expired") { // P2, P12: no complete before it
		t.Errorf("closed with %d %q", code, reason)
	}
}

// F29: everybody is told that this instance goes away, and nobody is left.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var clients []*client
	for range 20 {
		c := w.connect("")
		c.subscribe("1", watch, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
		c.expect("next", "1")
		clients = append(clients, c)
	}
	silent := w.dial() // one that never answers: it costs the time to say goodbye
	done := make(chan error, 1)
	go func() { done <- w.handler.Close(t.Context()) }()
	for _, c := range clients {
		if code, _ := c.closed(); code != closeGoingAway {
			t.Errorf("closed with %d", code)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if code, _ := silent.closed(); code != closeGoingAway {
		t.Errorf("the silent one: %d", code)
	}
	if _, res, _ := w.handshake([]string{subprotocol}); res == nil || res.StatusCode != 503 {
		t.Errorf("afterwards: %+v", res)
	}
}

// Subscriptions that the hub ends take their socket with them: a complete would tell a client that
// there is no more to come.
func TestHubGoesAway(t *testing.T) {
	t.Parallel()
	var hub *live.Hub
	w := newWorld(t, func(p *Parts) { hub = p.Hub })
	c := w.connect("")
	c.subscribe("1", watch, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	c.expect("next", "1")
	hub.Close()
	if code, _ := c.closed(); code != closeGoingAway {
		t.Errorf("closed with %d", code)
	}
	late := w.connect("")
	late.subscribe("1", watch, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	if got := late.expect("error", "1"); !strings.Contains(string(got), "UNAVAILABLE") {
		t.Errorf("%s", got)
	}
}

// P9: a panic costs the operation, not the socket and not the process.
func TestPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.Schedule, p.Hub = nil, nil })
	c := w.connect("")
	c.subscribe("1", `{doctor(id:1){id}}`, nil)
	if got := string(c.expect("next", "1")); !strings.Contains(got, "INTERNAL") || !strings.Contains(got, "requestId") {
		t.Errorf("%s", got)
	}
	c.expect("complete", "1")
	c.subscribe("2", watch, vars{"d": []string{"1"}, "day": "2030-01-01"})
	if got := string(c.expect("error", "2")); !strings.Contains(got, "INTERNAL") {
		t.Errorf("%s", got)
	}
	if a := w.ask("", `{doctor(id:1){id}}`, nil); a.Status != 200 || a.code() != "INTERNAL" || strings.Contains(a.Body, "nil pointer") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if log := w.log.String(); !strings.Contains(log, "nil pointer") || !strings.Contains(log, "schema.resolvers.go") {
		t.Errorf("logged %s", log)
	}
	// In the goroutine of a subscription: of one that is no subscription.
	if err := pass(t.Context(), &live.Subscription{}, nil); !strings.Contains(fmt.Sprint(err), "panic") {
		t.Errorf("%v", err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.bye = time.Second })
	w.dial()
	await(t, "the socket is open", func() bool { return len(w.openSockets()) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w.handler.Close(ctx) == nil {
		t.Error("closed without a goodbye")
	}
}

func (w *world) openSockets() (open []*socket) {
	w.handler.sockets.mu.Lock()
	defer w.handler.sockets.mu.Unlock()
	for s := range w.handler.sockets.open {
		open = append(open, s)
	}
	return open
}

// raw is a client that reads only when it is told to.
func (w *world) raw() net.Conn {
	w.t.Helper()
	host := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/graphql")
	conn, err := (&net.Dialer{}).DialContext(w.t.Context(), "tcp", host)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })       //nolint:errcheck // may be closed
	conn.(*net.TCPConn).SetReadBuffer(4 << 10) //nolint:errcheck // smaller is only quicker
	fmt.Fprintf(conn, "GET /graphql HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", host, subprotocol)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != 101 {
		w.t.Fatalf("%+v %v", res, err)
	}
	res.Body.Close() //nolint:errcheck // none
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

// P3: whoever stops reading is cut, and all that it had is gone; others notice nothing.
func TestSlowReaderIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.write, p.bye = time.Hour, 500*time.Millisecond, 100*time.Millisecond })
	stuck := w.stall()
	await(t, "the slow reader is cut", func() bool { return stuck.isEnded() && len(w.openSockets()) == 0 })
	other := w.connect("")
	other.subscribe("1", "{__typename}", nil)
	other.expect("next", "1")
}

// The control: nothing but the write deadline cuts slow readers.
func TestSlowReaderStaysWithoutDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.write, p.bye = time.Hour, time.Hour, 100*time.Millisecond })
	if stuck := w.stall(); stuck.isEnded() {
		t.Error("it was cut")
	}
}

// stall opens a socket that reads nothing, and asks for answers until nobody on the way takes more.
func (w *world) stall() *socket {
	w.t.Helper()
	before := len(w.openSockets())
	slow := w.raw()
	await(w.t, "the socket is open", func() bool { return len(w.openSockets()) == before+1 })
	open := w.openSockets()
	text := frame(`{"type":"ping","payload":{"x":"` + strings.Repeat("x", 60_000) + `"}}`)
	for range 10_000 {
		slow.SetWriteDeadline(time.Now().Add(2 * time.Second)) //nolint:errcheck // the write finds out
		if _, err := slow.Write(text); err != nil {
			break
		}
	}
	for _, s := range open {
		if s.conn.RemoteAddr().String() == slow.LocalAddr().String() {
			return s
		}
	}
	w.t.Fatal("the socket is not among the open ones")
	return nil
}

// P18: a peer that is gone without a word is noticed, though nothing is sent to it.
func TestDeadPeerIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.ping, p.quiet = time.Hour, 50*time.Millisecond, 400*time.Millisecond })
	go io.Copy(io.Discard, w.raw()) //nolint:errcheck // it reads, but answers no ping
	alive := w.connect("")
	received := make(chan error, 1)
	go func() { _, err := alive.read(); received <- err }()
	await(t, "the dead peer is cut", func() bool { return len(w.openSockets()) == 1 })
	// The control: one that answers pings lives on, many times longer than that.
	select {
	case err := <-received:
		t.Errorf("the living peer was cut: %v", err)
	case <-time.After(5 * w.handler.sockets.pace.quiet):
	}
	if err := alive.conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"ping"}`)); err != nil {
		t.Error(err)
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
}

// P7, P10, P16: nothing is left of sockets and subscriptions that end in whatever way.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.bye = 200 * time.Millisecond })
	for i := range 60 {
		c := w.connect("")
		for n := range 5 {
			c.subscribe(fmt.Sprint(n), watch, vars{"d": []string{id(w.northDoctor), id(w.southDoctor)}, "day": "2030-01-01"})
		}
		switch i % 3 {
		case 0:
			for n := range 5 {
				c.write(fmt.Sprintf(`{"id":"%d","type":"complete"}`, n))
			}
			c.write(`{"type":"nonsense"}`)
		case 1:
			c.write(`{`)
		}
		c.conn.Close() //nolint:errcheck // abruptly
	}
	await(t, "all sockets have ended", func() bool { return len(w.openSockets()) == 0 })
	// Their goroutines are counted by goleak, at the end of all tests.
}
