package graph

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"openslot/internal/auth"
	"openslot/internal/booking"
)

// Every way in which a socket ends, with its code.
func TestCloseCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init = 300 * time.Millisecond })
	const sub = `{"id":"1","type":"subscribe","payload":{"query":"subscription{availability(doctorIds:[1],from:\"2030-01-01\"){kind}}"}}`
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
		"two tokens":                 {false, []string{`{"type":"connection_init","payload":{"Authorization":"Bearer ` + w.patient("p") + `","authorization":"Bearer ` + w.patient("q") + `"}}`}, 4400},
		"token is a number":          {false, []string{`{"type":"connection_init","payload":{"Authorization":1}}`}, 4403},
		"token without scheme":       {false, []string{`{"type":"connection_init","payload":{"authorization":"` + w.patient("p") + `"}}`}, 4403},
		"token has expired":          {false, nil, 0},
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
				// Within the leeway for clocks it is still good. (Signed here: the subtest may have waited for its turn.)
				expired, err := w.signer.Sign(auth.Grant{Role: booking.Patient, Subject: "late", TTL: time.Nanosecond})
				if err != nil {
					t.Fatal(err)
				}
				s.write(`{"type":"connection_init","payload":{"Authorization":"Bearer ` + expired + `"}}`)
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
			conn.Close()
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
		c.subscribe("w", watching, vars{"d": []string{id(w.northDoctor)}, "day": day})
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
			c.subscribe(fmt.Sprint(i), watching, vars{"d": []string{id(w.northDoctor)}, "day": day})
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
