package availability

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// A mark counts while nothing can have changed unheard. Each row takes one of the reasons away.
func TestMarks(t *testing.T) {
	t.Parallel()
	slot := func(version int64, booked int) booking.Slot {
		return booking.Slot{ID: 7, Version: version, Capacity: 2, Booked: booked, Status: booking.SlotOpen,
			StartAt: time.Now().Add(time.Hour), OpensAt: time.Now().Add(-time.Hour)}
	}
	full := func(g *Gate, version int64, at time.Time) {
		g.Full(booking.FullMark{Slot: 7, Version: version, At: at})
	}
	for _, tt := range []struct {
		name  string
		story func(g *Gate, began time.Time)
		want  booking.Code
	}{
		{"Marked", func(g *Gate, began time.Time) { full(g, 3, began.Add(time.Second)) }, booking.SlotFull},
		{"FeedSaysFull", func(g *Gate, _ time.Time) { g.Changed([]booking.Slot{slot(3, 2)}) }, booking.SlotFull},
		{"FeedSaysTheSame", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			g.Changed([]booking.Slot{slot(3, 2)})
		}, booking.SlotFull},
		{"OldNewsAfterwards", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			g.Changed([]booking.Slot{slot(2, 1)})
		}, booking.SlotFull},
		{"AlmostTooOld", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			for range 5 {
				time.Sleep(markLife/5 - 1)
				g.marks.look(7) // somebody asks now and then
			}
		}, booking.SlotFull},

		{"Nothing", func(*Gate, time.Time) {}, ""},
		{"FeedSaysRoom", func(g *Gate, _ time.Time) { g.Changed([]booking.Slot{slot(3, 1)}) }, ""},
		{"GivenBack", func(g *Gate, began time.Time) { // B21
			full(g, 3, began.Add(time.Second))
			g.Changed([]booking.Slot{slot(4, 1)})
		}, ""},
		{"MoreCapacity", func(g *Gate, began time.Time) { // B13
			full(g, 3, began.Add(time.Second))
			s := slot(4, 2)
			s.Capacity = 3
			g.Changed([]booking.Slot{s})
		}, ""},
		{"LateMark", func(g *Gate, began time.Time) {
			g.Changed([]booking.Slot{slot(4, 1)})
			full(g, 3, began.Add(time.Second))
		}, ""},
		{"SameVersionOtherwise", func(g *Gate, began time.Time) {
			g.Changed([]booking.Slot{slot(3, 1)})
			full(g, 3, began.Add(time.Second))
		}, ""},
		{"BeforeTheFeed", func(g *Gate, began time.Time) { full(g, 3, began) }, ""},
		{"FeedBeganAnew", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			g.Resync(2, began.Add(2*time.Second))
		}, ""},
		{"FeedBeganAnewAndThenALateMark", func(g *Gate, began time.Time) {
			g.Resync(2, began.Add(2*time.Second))
			full(g, 3, began.Add(time.Second))
		}, ""},
		{"DoctorToBeReadAgain", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			g.Stale(1, began.Add(2*time.Second))
		}, ""},
		{"FeedDied", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			g.marks.alive = func() bool { return false }
		}, ""},
		{"NeverAnyFeed", func(g *Gate, began time.Time) {
			g.marks = newMarks(func() bool { return true })
			full(g, 3, began.Add(time.Second))
		}, ""},
		{"TooOld", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			for range 5 {
				time.Sleep(markLife / 5)
				g.marks.look(7)
			}
		}, ""},
		{"Forgotten", func(g *Gate, began time.Time) {
			full(g, 3, began.Add(time.Second))
			time.Sleep(2 * g.marks.slots.period)
		}, ""},
		{"Closed", func(g *Gate, _ time.Time) {
			s := slot(3, 2)
			s.Status = booking.SlotClosed
			g.Changed([]booking.Slot{s})
		}, ""},
		{"Past", func(g *Gate, _ time.Time) {
			s := slot(3, 2)
			s.StartAt = time.Now()
			g.Changed([]booking.Slot{s})
		}, ""},
		{"NotOpenYet", func(g *Gate, _ time.Time) {
			s := slot(3, 2)
			s.OpensAt = time.Now().Add(time.Minute)
			g.Changed([]booking.Slot{s})
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGate(nil, time.Now())
				tt.story(g, time.Now())
				if got := admit(t, g, 1, 7, "k"); got != tt.want {
					t.Errorf("%q, want %q", got, tt.want)
				}
				desk := booking.Actor{Kind: booking.Staff, Subject: "desk", Organization: 1}
				if err := g.Admit(t.Context(), desk, request(1, 7, "k")); err != nil {
					t.Errorf("staff: %v", err)
				}
			})
		})
	}
}

// A late mark is harmless even if what spoke against it had to be forgotten for want of room.
func TestMarksInACrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := newGate(nil, began)
		g.marks.slots.most = 10
		time.Sleep(3 * time.Second)
		g.Changed([]booking.Slot{{ID: 7, Version: 4, Capacity: 2, Booked: 1, Status: booking.SlotOpen}})
		for n := range 30 {
			g.Changed([]booking.Slot{{ID: booking.SlotID(100 + n), Version: 4, Capacity: 2, Booked: 1, Status: booking.SlotOpen}})
		}
		g.Full(booking.FullMark{Slot: 7, Version: 3, At: began.Add(2 * time.Second)})
		if got := admit(t, g, 1, 7, "k"); got != "" {
			t.Errorf("%q: the mark is older than what was forgotten", got)
		}
		g.Full(booking.FullMark{Slot: 7, Version: 5, At: began.Add(5 * time.Second)})
		if got := admit(t, g, 1, 7, "k"); got != booking.SlotFull {
			t.Errorf("%q: the mark is newer than what was forgotten", got)
		}
	})
}

// What one instance learns from the database, another hears through Redis.
func TestMarksAreShared(t *testing.T) {
	t.Parallel()
	server := devenv.NewRedis(t)
	r, c := patientRedis(t, server.URL()), clientOf(t, server)
	began := time.Now()
	a, b := newGate(r, began), newGate(r, began)
	a.Full(booking.FullMark{Slot: 7, Version: 3, At: time.Now()})
	await(t, "the mark is in Redis", func() bool { return c.Exists(t.Context(), markKey(7)).Val() == 1 })
	if ttl := c.PTTL(t.Context(), markKey(7)).Val(); ttl <= 0 || ttl > markLife {
		t.Errorf("it lives for %s", ttl)
	}
	if code := admit(t, b, 1, 7, "k"); code != booking.SlotFull {
		t.Errorf("at the other instance: %q", code)
	}
	c.FlushAll(t.Context())
	if code := admit(t, b, 2, 7, "k"); code != booking.SlotFull {
		t.Errorf("Redis was flushed, but it is known here: %q", code)
	}
	// A place is given back.
	b.Changed([]booking.Slot{{ID: 7, Version: 4, Capacity: 1, Status: booking.SlotOpen}})
	if code := admit(t, b, 3, 7, "k"); code != "" {
		t.Errorf("with room: %q", code)
	}
	a.Full(booking.FullMark{Slot: 7, Version: 3, At: time.Now()}) // late
	if code := admit(t, b, 4, 7, "k"); code != "" {
		t.Errorf("after a late mark: %q", code)
	}
	if code := admit(t, newGate(r, time.Now().Add(time.Second)), 5, 7, "k"); code != "" {
		t.Errorf("at an instance whose feed came into force later: %q", code)
	}
}

// Hints are held to what can be true, and even one that looks right does not last.
func TestHints(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 10, 5, 7, 0, 0, 0, time.UTC)
	text := func(slot, version int, at time.Time) string {
		return markText(booking.FullMark{Slot: booking.SlotID(slot), Version: int64(version), At: at})
	}
	soon := began.Add(time.Minute)
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"good":                  {text(7, 3, soon), true},
		"of another slot":       {text(8, 3, soon), false},
		"too old":               {text(7, 3, soon.Add(-hintLife-1e6)), false},
		"from before the feed":  {text(7, 3, began), false},
		"from the future":       {text(7, 3, soon.Add(2*hintSkew)), false},
		"negative version":      {text(7, -3, soon), false},
		"too much":              {text(7, 3, soon) + " ", false},
		"too little":            {"full 7 3", false},
		"other digits":          {strings.Replace(text(7, 3, soon), "full 7", "full +7", 1), false},
		"nothing":               {"", false},
		"another word":          {"Full" + text(7, 3, soon)[4:], false},
		"a number that is none": {"full 7 3 1e15", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMarks(func() bool { return true })
				m.doubt(began)
				time.Sleep(soon.Sub(began))
				if got := m.believe(7, tt.text); got != tt.want {
					t.Errorf("%q: %t, want %t", tt.text, got, tt.want)
				}
			})
		})
	}

	synctest.Test(t, func(t *testing.T) {
		m := newMarks(func() bool { return true })
		m.doubt(began)
		refusals, now := 0, began
		for range 100 { // a slot with room that nobody books, and a Redis that lies about it all the time
			time.Sleep(time.Second / 10)
			now = now.Add(time.Second / 10)
			full, ask := m.look(7)
			if ask {
				full = m.believe(7, text(7, 1<<40, now))
			}
			if full {
				refusals++
			}
		}
		if most := int(hintLife / (time.Second / 10)); refusals > most {
			t.Errorf("a lie refused %d of 100 calls in 10 s, want at most %d", refusals, most)
		}
		m.changed([]booking.Slot{{ID: 7, Version: 1, Capacity: 1, Status: booking.SlotOpen}})
		if full, ask := m.look(7); full || ask {
			t.Error("the feed has spoken, and Redis is still listened to")
		}
	})
}
