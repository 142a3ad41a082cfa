package live

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"openslot/internal/booking"
)

// watcher is a live view of some days of doctor 1, in memory, that knows no slot yet.
func watcher(from, days int) *Subscription {
	s := &Subscription{hub: NewHub(nil, nil), from: monday, days: days, wake: make(chan struct{}, 1)}
	begin, _ := monday.AddDays(from).In(time.UTC)
	end, _ := monday.AddDays(from + days).In(time.UTC)
	s.views = []view{{sub: s, scope: scope{1, begin, end}, zone: "UTC"}}
	return s
}

func (s *Subscription) told(t testing.TB) (Update, bool) {
	t.Helper()
	u, ok, begin, err := s.step()
	if err != nil || len(begin) > 0 {
		t.Fatal(err, begin)
	}
	return u, ok
}

// publish does what the hub does with changes of a doctor.
func publish(changes []booking.Slot, to ...*Subscription) {
	b := newBatch(changes)
	for _, s := range to {
		if v := &s.views[0]; b.within(v.from, v.to) != nil {
			v.offer(b.within(v.from, v.to))
		}
	}
}

func slotOn(day int, id booking.SlotID, version int64) booking.Slot {
	at, _ := monday.AddDays(day).In(time.UTC)
	return booking.Slot{ID: id, DoctorID: 1, StartAt: at.Add(time.Duration(id) * time.Minute), Version: version, Status: booking.SlotOpen}
}

// A change is encoded once for all who are told the same in the same form, and anew for others.
func TestShared(t *testing.T) {
	t.Parallel()
	times := map[string]int{}
	encode := func(u Update, form string) string {
		return string(u.Encoded(form, func(u *Update) []byte {
			times[form]++
			return fmt.Appendf(nil, "%s %s %d", form, u.Kind, u.Slots[0].Version)
		}))
	}
	prompt := []*Subscription{watcher(0, 1), watcher(0, 1), watcher(0, 1)}
	slow, other := watcher(0, 1), watcher(1, 1)
	everybody := append(slices.Clone(prompt), slow, other)
	for version := range int64(3) {
		publish([]booking.Slot{slotOn(0, 1, version)}, everybody...)
		for _, s := range prompt {
			u, ok := s.told(t)
			if want := fmt.Sprintf("a DELTA %d", version); !ok || encode(u, "a") != want {
				t.Errorf("told %t %+v, want %q", ok, u, want)
			}
		}
	}
	if times["a"] != 3 {
		t.Errorf("3 changes were encoded %d times for those who kept up", times["a"])
	}
	// Who fell behind is told the latest, of its own.
	u, ok := slow.told(t)
	if !ok || len(u.Slots) != 1 || encode(u, "a") != "a DELTA 2" || encode(u, "a") != "a DELTA 2" || times["a"] != 5 || u.content != nil {
		t.Errorf("%t %+v, encoded %d times", ok, u, times["a"])
	}
	// Then it shares again; and another form is encoded for itself.
	publish([]booking.Slot{slotOn(0, 1, 3)}, everybody...)
	first, _ := prompt[0].told(t)
	second, _ := slow.told(t)
	if encode(first, "a") != encode(second, "a") || times["a"] != 6 {
		t.Errorf("encoded %d times", times["a"])
	}
	if encode(first, "b") != "b DELTA 3" || times["b"] != 1 {
		t.Error("another form")
	}
	// The same content in another zone is another update.
	second.TimeZone = "Asia/Tokyo"
	if encode(second, "a"); times["a"] != 7 {
		t.Error("an update of another zone was taken for it")
	}
	if _, ok := other.told(t); ok {
		t.Error("told of another day")
	}
}

// Forms and ranges are kept within bounds; beyond them everybody is still told right.
func TestSharedBounds(t *testing.T) {
	t.Parallel()
	b := newBatch([]booking.Slot{slotOn(0, 1, 0), slotOn(0, 2, 5), slotOn(0, 1, 3), slotOn(0, 2, 4)})
	from, to := monday.In(time.UTC)
	for n := range 2 * maxRanges {
		c := b.within(from, to.Add(time.Duration(n)))
		if len(c.slots) != 2 || c.slots[0].Version != 3 || c.slots[1].Version != 5 {
			t.Fatalf("%+v", c.slots)
		}
	}
	if b.within(to, to.Add(time.Hour)) != nil || len(b.ranges) != maxRanges {
		t.Errorf("%d ranges", len(b.ranges))
	}
	u := Update{content: b.within(from, to)}
	for n := range 2 * maxForms {
		if got := u.Encoded(n, func(*Update) []byte { return []byte{byte(n)} }); got[0] != byte(n) {
			t.Fatal(got)
		}
	}
	if len(u.content.forms) != maxForms {
		t.Errorf("%d forms", len(u.content.forms))
	}
}

// Whoever reads when, and whatever comes together: nobody is told a step back, all end with the
// truth of their days, and what is shared is what they would be told alone.
func TestSharedAtRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var watchers []*Subscription
		var screens []map[booking.SlotID]booking.Slot
		for range rapid.IntRange(1, 5).Draw(t, "watchers") {
			watchers = append(watchers, watcher(rapid.IntRange(0, 2).Draw(t, "from"), rapid.IntRange(1, 3).Draw(t, "days")))
			screens = append(screens, map[booking.SlotID]booking.Slot{})
		}
		truth := map[booking.SlotID]booking.Slot{}
		read := func(i int) bool {
			u, ok, begin, err := watchers[i].step()
			if err != nil || len(begin) > 0 {
				t.Fatalf("%v, stale: %d", err, len(begin))
			}
			for _, slot := range u.Slots {
				if old, held := screens[i][slot.ID]; held && old.Version >= slot.Version {
					t.Fatalf("told %+v after %+v", slot, old)
				}
				screens[i][slot.ID] = slot
			}
			if !slices.IsSortedFunc(u.Slots, func(a, b booking.Slot) int { return a.StartAt.Compare(b.StartAt) }) {
				t.Fatal("not by start")
			}
			return ok
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if i := rapid.IntRange(-1, len(watchers)-1).Draw(t, "who reads; -1: a change"); i >= 0 {
				read(i)
				continue
			}
			var changes []booking.Slot
			for range rapid.IntRange(1, 4).Draw(t, "changes") {
				id := booking.SlotID(rapid.IntRange(1, 6).Draw(t, "slot"))
				version := int64(0)
				if old, ok := truth[id]; ok {
					version = old.Version + 1
				}
				truth[id] = slotOn(int(id)%4, id, version)
				changes = append(changes, truth[id])
			}
			publish(changes, watchers...)
		}
		for i, s := range watchers {
			for read(i) {
			}
			v := &s.views[0]
			for id, slot := range truth {
				inside := !slot.StartAt.Before(v.from) && slot.StartAt.Before(v.to)
				if got, held := screens[i][id]; held != inside || held && got != slot {
					t.Fatalf("screen %d shows %+v, want %+v (in its days: %t)", i, got, slot, inside)
				}
			}
		}
	})
}
