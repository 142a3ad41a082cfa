package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// next is a message of the subscription.
func next(kind string, slots ...shown) []byte {
	texts := make([]string, len(slots))
	for i, s := range slots {
		texts[i] = fmt.Sprintf(`{"id":"%d","free":%d,"status":"%s","version":%d}`, s.slot, s.free, map[bool]string{true: "OPEN", false: "CLOSED"}[s.open], s.version)
	}
	return fmt.Appendf(nil, `{"id":"1","type":"next","payload":{"data":{"availability":{"kind":"%s","slots":[%s]}}}}`, kind, strings.Join(texts, ","))
}

// TestReadUpdate holds the quick way to read against encoding/json.
func TestReadUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) shown {
			return shown{rapid.Int64Range(1, 1e9).Draw(t, "slot"), rapid.IntRange(0, 99).Draw(t, "free"),
				rapid.IntRange(0, 9).Draw(t, "closed") > 0, rapid.Int64Range(0, 1e6).Draw(t, "version")}
		}), 0, 5).Draw(t, "slots")
		text := rapid.SampledFrom([][]byte{
			next("SNAPSHOT", slots...), next("DELTA", slots...), next("OTHER", slots...),
			[]byte(`{"type":"connection_ack"}`),
			[]byte(`{"id":"1","type":"error","payload":[{"message":"no"}]}`),
			[]byte(`{"id":"1","type":"next","payload":{"errors":[{"message":"no"}],"data":null}}`),
		}).Draw(t, "text")
		if rapid.Bool().Draw(t, "garbled") {
			text = bytes.Clone(text)
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "by")
		}
		got, gotOK, gotErr := readUpdate(text, nil)
		want, wantOK, wantErr := parseUpdate(text)
		same := gotOK == wantOK && (gotErr == nil) == (wantErr == nil) && got.snapshot == want.snapshot && fmt.Sprint(got.slots) == fmt.Sprint(want.slots)
		if gotErr == nil && !same || (gotErr == nil) != (wantErr == nil) {
			t.Errorf("readUpdate(%s) = %+v, %v, %v, want %+v, %v, %v", text, got, gotOK, gotErr, want, wantOK, wantErr)
		}
	})
}

func TestReadFrame(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	frame := func(head ...byte) []byte { return head }
	for _, tt := range []struct {
		name    string
		in      []byte
		payload string
		size    int
		bad     bool
	}{
		{"short", append(frame(0x81, 2), "hi"...), "hi", 4, false},
		{"more follows", append(frame(0x81, 2), "hi\x81"...), "hi", 4, false},
		{"16 bits", append(frame(0x81, 126, 0, 200), long[:200]...), long[:200], 204, false},
		{"64 bits", append(frame(0x81, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70), long...), long, 70_010, false},
		{"nothing", nil, "", 0, false},
		{"half a head", frame(0x81, 126, 0), "", 0, false},
		{"half a payload", append(frame(0x81, 3), "hi"...), "", 0, false},
		{"a part", frame(0x01, 0), "", 0, true},
		{"compressed", frame(0xc1, 0), "", 0, true},
		{"masked", frame(0x81, 0x80, 0, 0, 0, 0), "", 0, true},
		{"too long", frame(0x81, 127, 1, 0, 0, 0, 0, 0, 0, 0), "", 0, true},
	} {
		op, payload, size, err := readFrame(tt.in)
		if (err != nil) != tt.bad || size != tt.size || string(payload) != tt.payload || size > 0 && op != opText {
			t.Errorf("%s: %d, %.20q, %d, %v", tt.name, op, payload, size, err)
		}
	}
}

// day is the slots of a doctor's first day, all alike.
func day(doctor, free int, version int64) []shown {
	all := make([]shown, slotsPerDay)
	for at := range all {
		all[at] = shown{slotID(doctor, at), free, true, version}
	}
	return all
}

// TestScreenIsCompared: whatever a program does wrong shows at the end.
func TestScreenIsCompared(t *testing.T) {
	changed := shown{slotID(0, 3), 4, true, 2}
	truth := map[int64]shown{}
	for _, s := range day(0, 5, 1) {
		truth[s.slot] = s
	}
	truth[changed.slot] = changed
	tests := []struct {
		name  string
		texts [][]byte
		right bool
	}{
		{"Right", [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", changed)}, true},
		{"OldNews", [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", changed), next("DELTA", shown{changed.slot, 9, true, 1})}, true},
		{"NewSnapshot", [][]byte{next("SNAPSHOT", day(0, 9, 1)...), next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", changed)}, true},
		{"LostDelta", [][]byte{next("SNAPSHOT", day(0, 5, 1)...)}, false},
		{"WrongCount", [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", shown{changed.slot, 5, true, 2})}, false},
		{"WrongStatus", [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", shown{changed.slot, 4, false, 2})}, false},
		{"WrongVersion", [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", shown{changed.slot, 4, true, 3})}, false},
		{"SlotMissing", [][]byte{next("SNAPSHOT", day(0, 5, 1)[1:]...), next("DELTA", changed)}, false},
		{"SlotTooMany", [][]byte{next("SNAPSHOT", append(day(0, 5, 1), shown{slotID(1, 0), 5, true, 1})...), next("DELTA", changed)}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &screen{}
			for _, text := range tt.texts {
				if err := s.show(text, 1); err != nil {
					t.Fatal(err)
				}
			}
			wrong, ended, err := (&audience{screens: []*screen{s}}).compare(truth)
			if (wrong == 0) != tt.right || ended != 0 {
				t.Errorf("%d screens are wrong: %v", wrong, err)
			}
		})
	}
	t.Run("Ended", func(t *testing.T) {
		_, ended, _ := (&audience{screens: []*screen{{err: errors.New("closed")}, {stalled: true}, {leaving: true}}}).compare(truth)
		if ended != 1 {
			t.Errorf("%d of one have ended", ended)
		}
	})
	t.Run("DeltaFirst", func(t *testing.T) {
		if (&screen{}).show(next("DELTA", changed), 1) == nil {
			t.Error("a delta before any snapshot was taken")
		}
	})
}

// TestDelays: a change that was never shown by itself counts until a later one of its slot was.
func TestDelays(t *testing.T) {
	s := &screen{}
	for i, text := range [][]byte{next("SNAPSHOT", day(0, 5, 1)...), next("DELTA", shown{1, 4, true, 2}), next("DELTA", shown{1, 2, true, 4})} {
		if err := s.show(text, int64(1000*i)); err != nil {
			t.Fatal(err)
		}
	}
	a := &audience{screens: []*screen{s}}
	h := a.delays(map[change]int64{{1, 2}: 900, {1, 3}: 1100, {1, 4}: 1990, {2, 1}: 0})
	if h.count != 3 || h.buckets[bucketOf(100)] != 1 || h.buckets[bucketOf(900)] != 1 || h.buckets[bucketOf(10)] != 1 {
		t.Errorf("%d delays, from %v to %v ms, want 0.01, 0.1, 0.9", h.count, h.quantile(0), h.quantile(1))
	}
}

// TestGorilla: the floor sends every member of a group what is posted for it, as often as it is.
func TestGorilla(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{folder: t.TempDir(), progress: newProgress(t.Output())}
	p, err := g.start(t.Context(), exec.CommandContext(context.Background(), self, "gorilla"), "/", os.Environ()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	a, err := gather(t.Context(), host{address: p.address, gorilla: true}, []int{0, 0, 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.leave()
	var tape []message
	for v := range 50 {
		tape = append(tape, message{v % 2, int64(v) * 1000, next("DELTA", shown{int64(1 + v%2), 1, true, int64(v + 1)})})
	}
	happened, tally := play(t.Context(), p.address, tape)
	if tally.errors > 0 || len(happened) != len(tape) {
		t.Fatalf("%d messages were posted: %v", len(happened), tally.examples)
	}
	if err := a.heard(t.Context(), 75); err != nil {
		t.Fatal(err)
	}
	h := a.delays(happened)
	if h.count < 75 || h.quantile(0.01) < 0 || h.quantile(1) > float64(time.Minute.Milliseconds()) {
		t.Errorf("%d delays, up to %v ms", h.count, h.quantile(1))
	}
	if n := a.unequal(25); n != 0 {
		t.Errorf("%d of 3 screens were not sent 25 messages", n)
	}
	if n := a.unequal(24); n != 3 {
		t.Errorf("the control: %d of 3 screens were not sent 24 messages", n)
	}
}

// TestCommits: every version that bookings made has the moment of its commit, and where somebody else
// changed the slot as well, none is made up.
func TestCommits(t *testing.T) {
	g := testGround(t)
	db, err := g.stirring(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().UnixMicro()
	before, err := db.truth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var at map[change]int64
	var odd int64
	err = db.withServer(t.Context(), func(p *process) error {
		s := &stir{database: db, address: p.address, doctors: 2}
		c := newCaller(p.address, 0)
		defer c.conn.close()
		for _, slot := range []int64{1, 2, 1} {
			if err := s.book(t.Context(), c, slot); err != nil {
				return err
			}
		}
		i, ok := s.cancellable(1)
		if !ok {
			return errors.New("nothing can be cancelled")
		}
		if err := s.cancel(t.Context(), c, i); err != nil { // the first of slot 1
			return err
		}
		if err := db.exec(t.Context(), `UPDATE time_slot SET capacity = capacity WHERE id = 2`); err != nil {
			return err
		}
		at, odd, err = db.commits(t.Context(), before)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	last := begin
	for n := range int64(3) {
		moment, ok := at[change{1, before[1].version + 1 + n}]
		if !ok || moment < last || moment > time.Now().UnixMicro() {
			t.Errorf("version %d of slot 1 was made at %d (known: %v), the one before at %d", before[1].version+1+n, moment, ok, last)
		}
		last = moment
	}
	if odd != 1 || len(at) != 3 {
		t.Errorf("%d moments are known, of %d slots they are not: want 3, 1", len(at), odd)
	}
}
