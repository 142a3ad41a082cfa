package booking

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// queue is the rules of the waiting list in plain Go, for one doctor: what the database has to come to.
// It knows what has been written down, for that is when places come free.
type queue struct {
	now      time.Time
	withhold bool
	doctor   DoctorID
	slots    []modelSlot
	places   []*queuePlace
	entries  []*queueEntry
}

type queuePlace struct {
	id      AppointmentID
	slot    int
	owner   Actor
	status  AppointmentStatus // as it was written down
	expires time.Time
	ended   time.Time   // when it was cancelled, or lapsed
	returns time.Time   // when the place comes back, or zero: it has
	offer   *queueEntry // to whom it was offered
}

type queueEntry struct {
	id     WaitingID
	owner  Actor
	slots  int // the days: the first so many slots
	status WaitingStatus
	turn   time.Time
	joined time.Time
}

// occupies reports whether the place counts as taken.
func (c *queuePlace) occupies() bool {
	return c.status == AppointmentHeld || c.status == AppointmentBooked || !c.returns.IsZero()
}

// live reports whether the patient is in it.
func (q *queue) live(c *queuePlace) bool {
	return c.status == AppointmentBooked || c.status == AppointmentHeld && c.expires.After(q.now)
}

func (q *queue) due(c *queuePlace) bool {
	return c.status == AppointmentHeld && !c.expires.After(q.now) || !c.returns.IsZero() && !c.returns.After(q.now)
}

// count is how many places of a slot there are of which something is true.
func (q *queue) count(slot int, is func(*queuePlace) bool) (n int) {
	for _, c := range q.places {
		if c.slot == slot && is(c) {
			n++
		}
	}
	return n
}

// own is the owner's place in a slot that was not written off, or nil.
func (q *queue) own(owner Actor, slot int) *queuePlace {
	for _, c := range q.places {
		if c.owner == owner && c.slot == slot && (c.status == AppointmentHeld || c.status == AppointmentBooked) {
			return c
		}
	}
	return nil
}

// release writes down what is due in some slots.
func (q *queue) release(slots ...int) (n int) {
	freed := map[int]int{}
	for _, c := range q.places {
		if !slices.Contains(slots, c.slot) || !q.due(c) {
			continue
		}
		if c.status == AppointmentHeld {
			c.status, c.ended = AppointmentExpired, c.expires
			q.again(c)
		}
		c.returns = time.Time{}
		freed[c.slot]++
		n++
	}
	for _, slot := range slots {
		q.offer(slot, freed[slot])
	}
	return n
}

// again puts the entry whose offer has come to nothing back in the line.
func (q *queue) again(c *queuePlace) {
	if c.offer != nil && c.offer.status == WaitingOffered {
		c.offer.status = WaitingForPlace
	}
}

// offer offers places of a slot; it gives how many nobody took.
func (q *queue) offer(slot, places int) int {
	line := slices.Clone(q.entries)
	slices.SortStableFunc(line, func(a, b *queueEntry) int { return a.turn.Compare(b.turn) })
	for _, e := range line {
		gone := slices.ContainsFunc(q.places, func(c *queuePlace) bool {
			return c.owner == e.owner && c.slot == slot && !c.ended.IsZero() && !c.ended.Before(e.joined)
		})
		if places == 0 || e.status != WaitingForPlace || slot >= e.slots || gone || q.own(e.owner, slot) != nil ||
			!q.slots[slot].start.After(q.now.Add(time.Minute)) {
			continue
		}
		ends := q.now.Add(30 * time.Minute)
		if start := q.slots[slot].start; start.Before(ends) {
			ends = start
		}
		q.places = append(q.places, &queuePlace{slot: slot, owner: e.owner, status: AppointmentHeld, expires: ends, offer: e})
		e.status, e.turn = WaitingOffered, q.now
		places--
	}
	return places
}

// claim is what a request comes to.
func (q *queue) claim(owner Actor, slot int, hold bool) Code {
	for {
		own := q.own(owner, slot)
		full := q.count(slot, (*queuePlace).occupies) == q.slots[slot].capacity
		switch {
		case !q.slots[slot].start.After(q.now):
			return SlotPast
		case own != nil && q.live(own) && own.status == AppointmentHeld && hold:
			return ""
		case own != nil && q.live(own):
			return AlreadyBooked
		case own == nil && !full:
			c := &queuePlace{slot: slot, owner: owner, status: AppointmentBooked}
			if hold {
				c.status, c.expires = AppointmentHeld, q.now.Add(10*time.Minute)
			}
			q.places = append(q.places, c)
			return ""
		case own == nil && q.count(slot, q.due) == 0:
			return SlotFull
		}
		q.release(slot) // and again
	}
}

// end cancels or gives back a place.
func (q *queue) end(c *queuePlace, step string) Code {
	switch {
	case c.status == AppointmentCancelled:
		return ""
	case !q.live(c):
		return HoldExpired
	case c.status == AppointmentBooked && step == stepRelease:
		return InvalidState
	case !q.slots[c.slot].start.After(q.now):
		return TooLate
	}
	booked := c.status == AppointmentBooked
	c.status, c.ended = AppointmentCancelled, q.now
	q.again(c)
	release := time.Date(q.now.Year(), q.now.Month(), q.now.Day(), 5, 0, 0, 0, time.UTC) // 7:00 in Berlin, in October
	if !release.After(q.now) {
		release = release.AddDate(0, 0, 1)
	}
	if q.offer(c.slot, 1) == 1 && q.withhold && booked && release.Before(q.slots[c.slot].start) {
		c.returns = release
	}
	return ""
}

func (q *queue) confirm(c *queuePlace) Code {
	switch {
	case c.status == AppointmentBooked:
		return ""
	case c.status == AppointmentCancelled:
		return InvalidState
	case !q.live(c):
		return HoldExpired
	case !q.slots[c.slot].start.After(q.now):
		return TooLate
	}
	c.status = AppointmentBooked
	if c.offer != nil && c.offer.status == WaitingOffered {
		c.offer.status = WaitingBooked
	}
	return ""
}

// standing is what the database has to have: taken places by slot, appointments and entries.
func (q *queue) standing() string {
	var s strings.Builder
	for i := range q.slots {
		fmt.Fprint(&s, q.count(i, (*queuePlace).occupies), " ")
	}
	for i, c := range q.places {
		fmt.Fprint(&s, i, "=", c.owner.PatientID, c.status, " ")
	}
	for _, e := range q.entries {
		fmt.Fprint(&s, e.id, "=", e.status, " ")
	}
	return s.String()
}

// Whatever is asked of a practice with a waiting list, of two instances and with sweepers in between: who
// is offered what, when, is what the model says, and so is what stands.
func TestModelOfOffers(t *testing.T) {
	for name, n := range map[string]int{"rapid.checks": rounds(300), "rapid.steps": 100} {
		if err := flag.Set(name, strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	p := newPractice(t)
	offers := 0
	rapid.Check(t, func(t *rapid.T) {
		q := &queue{now: now, withhold: rapid.Bool().Draw(t, "withhold")}
		q.doctor = one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Model') RETURNING id`, p.organization)
		p.exec(`UPDATE organization SET cancelled_returns = CASE WHEN $1 THEN 'NEXT_RELEASE' ELSE 'AT_ONCE' END`, q.withhold)
		for i := range 4 { // on the days from tomorrow on, one each
			s := modelSlot{start: now.Add(time.Duration(1+i)*24*time.Hour + 30*time.Minute), capacity: 1 + i%2}
			s.id = one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				VALUES ($1, $2::timestamptz, $2::timestamptz + interval '20 min', $3, '2026-01-01') RETURNING id`, q.doctor, s.start, s.capacity)
			q.slots = append(q.slots, s)
		}
		playQueue(t, p, q)
		p.check()
		for _, c := range q.places {
			if c.offer != nil {
				offers++
			}
		}
	})
	t.Logf("%d offers", offers)
}

func playQueue(t *rapid.T, p *practice, q *queue) {
	ctx := context.Background()
	config := patient(now)
	config.Now = func() time.Time { return q.now }
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	patients := p.patients(5)
	first := one[AppointmentID](p, `SELECT coalesce(max(id), 0) FROM appointment`)
	any := func() *Service { return rapid.SampledFrom(services).Draw(t, "instance") }
	ids := func() { // those of the model's places: rows come in the order in which they were made
		made := all[AppointmentID](p, `SELECT id FROM appointment WHERE id > $1 ORDER BY id`, first)
		if len(made) != len(q.places) {
			t.Fatalf("%d appointments, want %d: %s", len(made), len(q.places), q.standing())
		}
		for i, id := range made {
			q.places[i].id = id
		}
	}
	calls := 0
	claim := func(hold bool) {
		calls++
		slot, owner := rapid.IntRange(0, len(q.slots)-1).Draw(t, "slot"), rapid.SampledFrom(patients).Draw(t, "patient")
		want := q.claim(owner, slot, hold)
		_, err := any().claim(ctx, owner, BookRequest{Slot: q.slots[slot].id, Key: fmt.Sprint("k", calls)}, hold)
		if code(err) != want {
			t.Fatalf("hold %v of slot %d for patient %d: %v; want %q", hold, slot, owner.PatientID, err, want)
		}
	}
	step := func(step string) {
		if len(q.places) == 0 {
			t.Skip("nothing to act on")
		}
		c := rapid.SampledFrom(q.places).Draw(t, "place")
		var want Code
		if step == stepConfirm {
			want = q.confirm(c)
		} else {
			want = q.end(c, step)
		}
		if _, err := any().step(ctx, c.owner, step, c.id, ""); code(err) != want {
			t.Fatalf("%s appointment %d: %v; want %q", step, c.id, err, want)
		}
	}
	join := func(*rapid.T) {
		owner, days := rapid.SampledFrom(patients).Draw(t, "patient"), rapid.IntRange(1, 4).Draw(t, "days")
		stands := slices.ContainsFunc(q.entries, func(e *queueEntry) bool {
			return e.owner == owner && e.slots == days && (e.status == WaitingForPlace || e.status == WaitingOffered)
		})
		e, joined, err := any().JoinWaitingList(ctx, owner, WaitingRequest{Doctor: q.doctor, From: today, To: today.AddDays(days)})
		if !today.AddDays(days+1).At(0, time.FixedZone("", 2*60*60)).After(q.now) {
			if code(err) != Invalid {
				t.Fatalf("joined for days that are over: %+v, %v", e, err)
			}
			return
		}
		if err != nil || joined == stands {
			t.Fatalf("join: %+v, %v, %v", e, joined, err)
		}
		if joined {
			q.entries = append(q.entries, &queueEntry{id: e.ID, owner: owner, slots: days, status: WaitingForPlace, turn: q.now, joined: q.now})
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"book":     func(*rapid.T) { claim(false) },
		"book 2":   func(*rapid.T) { claim(false) },
		"hold":     func(*rapid.T) { claim(true) },
		"hold 2":   func(*rapid.T) { claim(true) },
		"confirm":  func(*rapid.T) { step(stepConfirm) },
		"release":  func(*rapid.T) { step(stepRelease) },
		"cancel":   func(*rapid.T) { step(stepCancel) },
		"cancel 2": func(*rapid.T) { step(stepCancel) },
		"join":     join,
		"join 2":   join,
		"leave": func(*rapid.T) {
			if len(q.entries) == 0 {
				t.Skip("nobody waits")
			}
			e := rapid.SampledFrom(q.entries).Draw(t, "entry")
			over := !today.AddDays(e.slots+1).At(0, time.FixedZone("", 2*60*60)).After(q.now)
			want := !over && (e.status == WaitingForPlace || e.status == WaitingOffered)
			if _, changed, err := any().LeaveWaitingList(ctx, e.owner, e.id); err != nil || changed != want {
				t.Fatalf("leave %d: %v, %v; want %v", e.id, changed, err, want)
			}
			if want {
				e.status = WaitingLeft
			}
		},
		"sweep": func(*rapid.T) {
			want := q.release(0, 1, 2, 3)
			if n, err := any().Expire(ctx, q.doctor); n != want || err != nil {
				t.Fatalf("%d came back, %v; want %d", n, err, want)
			}
		},
		"wait": func(*rapid.T) {
			q.now = q.now.Add(time.Duration(rapid.SampledFrom([]int{1, 5, 10, 29, 30, 600, 1320}).Draw(t, "minutes")) * time.Minute)
		},
		"": func(*rapid.T) {
			ids()
			got := one[string](p, `SELECT concat((SELECT string_agg(booked_count || ' ', '' ORDER BY id) FROM time_slot WHERE doctor_id = $2),
				(SELECT string_agg(n - 1 || '=' || patient_id || status || ' ', '' ORDER BY id)
				   FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM appointment WHERE id > $1) AS a),
				(SELECT string_agg(id || '=' || status || ' ', '' ORDER BY id) FROM waiting_entry WHERE doctor_id = $2))`,
				first, q.doctor)
			if want := q.standing(); got != want {
				t.Fatalf("taken, appointments and entries\n%s\nwant\n%s", got, want)
			}
		},
	})
}
