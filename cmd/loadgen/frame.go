package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// As much of RFC 6455 and graphql-transport-ws as the servers here speak: a client that knew all of
// it would take the time of the two cores from what is measured.

const subprotocol = "graphql-transport-ws"

// What frames carry.
const (
	opText  = 1
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// appendFrame appends a frame of a client, of up to 64 KB. It is masked, as the protocol demands,
// with zeros, which changes nothing.
func appendFrame(out []byte, op byte, payload []byte) []byte {
	const final, masked = 0x80, 0x80
	out = append(out, final|op)
	if n := len(payload); n < 126 {
		out = append(out, masked|byte(n))
	} else {
		out = append(out, masked|126, byte(n>>8), byte(n))
	}
	return append(append(out, 0, 0, 0, 0), payload...)
}

var errNoFrame = errors.New("no frame that a server may send here")

// readFrame takes the first frame off what came in. size is all its bytes; 0 = it is not whole yet.
func readFrame(in []byte) (op byte, payload []byte, size int, err error) {
	if len(in) < 2 {
		return 0, nil, 0, nil
	}
	if in[0]&0xf0 != 0x80 || in[1]&0x80 != 0 { // a part of a message, an extension, or masked
		return 0, nil, 0, errNoFrame
	}
	head, length := 2, uint64(in[1])
	switch {
	case length == 126 && len(in) >= 4:
		head, length = 4, uint64(binary.BigEndian.Uint16(in[2:]))
	case length == 127 && len(in) >= 10:
		head, length = 10, binary.BigEndian.Uint64(in[2:])
	case length >= 126:
		return 0, nil, 0, nil
	}
	if length > 16<<20 {
		return 0, nil, 0, errNoFrame
	}
	size = head + int(length)
	if len(in) < size {
		return 0, nil, 0, nil
	}
	return in[0] & 0x0f, in[head:size], size, nil
}

// watchQuery is what a screen subscribes to.
const watchQuery = `subscription Watch($doctor: ID!, $from: Date!, $days: Int!) { availability(doctorIds: [$doctor], from: $from, days: $days) { kind slots { id free status version } } }`

// hello is how a screen begins: it asks for a day of a doctor (from 0).
func hello(doctor int, day string) []byte {
	return append(appendFrame(nil, opText, []byte(`{"type":"connection_init"}`)), subscribe("1", doctor, day, 1)...)
}

// subscribe asks for days from a date on of a doctor.
func subscribe(id string, doctor int, from string, days int) []byte {
	return appendFrame(nil, opText, fmt.Appendf(nil, `{"id":%q,"type":"subscribe","payload":{"query":%q,"variables":{"doctor":"%d","from":%q,"days":%d}}}`,
		id, watchQuery, doctor+1, from, days))
}

// shown is the state of a slot as a screen is told it.
type shown struct {
	slot    int64
	free    int
	open    bool
	version int64
}

// update is a message of the subscription.
type update struct {
	snapshot bool
	slots    []shown
}

// readUpdate reads a message; ok is false if it is one of the protocol. into is used again. What does not look
// as expected, byte for byte, is read again by encoding/json: that alone decides what is wrong.
func readUpdate(text []byte, into []shown) (u update, ok bool, err error) {
	if rest, found := bytes.CutPrefix(text, []byte(`{"id":"1","type":"next","payload":{"data":{"availability":{"kind":"`)); found {
		u.slots = into[:0]
		var delta bool
		if rest, delta = bytes.CutPrefix(rest, []byte(`DELTA","slots":[`)); !delta {
			if rest, u.snapshot = bytes.CutPrefix(rest, []byte(`SNAPSHOT","slots":[`)); !u.snapshot {
				return parseUpdate(text)
			}
		}
		for {
			var s shown
			var whole bool
			if s, rest, whole = readShown(rest); !whole {
				break
			}
			u.slots = append(u.slots, s)
			var more bool
			if rest, more = bytes.CutPrefix(rest, []byte(",")); !more {
				break
			}
		}
		if string(rest) == `]}}}}` {
			return u, true, nil
		}
	}
	return parseUpdate(text)
}

func readShown(text []byte) (s shown, rest []byte, ok bool) {
	rest = text
	expect := func(word string) {
		ok = bytes.HasPrefix(rest, []byte(word))
		rest = rest[min(len(word), len(rest)):]
	}
	digits := func() (n int64) {
		if ok {
			n, rest, ok = number(rest)
		}
		return n
	}
	if expect(`{"id":"`); !ok {
		return s, text, false
	}
	s.slot = digits()
	if expect(`","free":`); !ok {
		return s, text, false
	}
	s.free = int(digits())
	if expect(`,"status":"OPEN","version":`); !ok {
		return s, text, false
	}
	s.open = true
	s.version = digits()
	if !ok || !bytes.HasPrefix(rest, []byte("}")) {
		return s, text, false
	}
	return s, rest[1:], true
}

func parseUpdate(text []byte) (u update, ok bool, err error) {
	var m struct {
		Type    string
		Payload json.RawMessage
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return u, false, fmt.Errorf("%w: %.200s", err, text)
	}
	switch m.Type {
	case "connection_ack", "pong":
		return u, false, nil
	case "next":
	default:
		return u, false, fmt.Errorf("unexpected: %.200s", text)
	}
	data, err := parse[struct {
		Availability *struct {
			Kind  string
			Slots []struct {
				ID      int64 `json:",string"`
				Free    int
				Status  string
				Version int64
			}
		}
	}](200, m.Payload)
	if err != nil || data.Availability == nil {
		return u, false, fmt.Errorf("no update: %.200s", text)
	}
	switch data.Availability.Kind {
	case "SNAPSHOT", "DELTA":
		u.snapshot = data.Availability.Kind == "SNAPSHOT"
	default:
		return u, false, fmt.Errorf("an update of kind %q", data.Availability.Kind)
	}
	for _, s := range data.Availability.Slots {
		u.slots = append(u.slots, shown{s.ID, s.Free, s.Status == "OPEN", s.Version})
	}
	return u, true, nil
}
