// Package live brings every change of a slot to those who watch the slot's doctor.
//
//	triggers on time_slot ──NOTIFY──▶ Listener ──▶ Hub ──▶ Subscription.Next
//	                                     │
//	                                     └──▶ whoever else is a [Consumer] of the feed
//
// # What a subscriber may rely on
//
// A SNAPSHOT replaces all that is known of one doctor and range; DELTAs follow, each with a newer
// version of a slot than told before: no gap and no step back. A subscription is registered
// first and read afterwards, and a read is shared only with those who asked before it
// began, so whatever the read doesn't show yet is announced later. After any trouble (the feed
// broke, too much changed at once, a reader fell behind) a new SNAPSHOT comes by itself, and the
// last state told equals the database. A view of one doctor goes through
//
//	        Next                  the read is there
//	stale ────────▶ being read ─────────────────────▶ live
//	  ▲                                                 │
//	  └── resync · re-read of the doctor · overflow · a slot that it should know but doesn't ·
//	      the release of slots (opensAt passes, which changes no row)
//
// A subscriber that doesn't read costs nobody anything: it keeps the latest value per slot, and
// beyond a bound only the fact that it has to read again.
//
// Subscribers who watch the same days and have kept up are told the same, by one object that remembers
// how it is encoded ([Update.Encoded]): the work is done once, however many they are. One that fell
// behind is told what it missed in one update of its own, and shares the next one again.
//
// One thing is told that the database no longer says: a slot made and withdrawn within the feed's
// delay (milliseconds) before a SNAPSHOT may be told as new, and at once as WITHDRAWN.
//
// That a slot begins is not told: a screen knows it from startAt and its own clock, set right by
// the SNAPSHOT's AsOf, and nobody can book it any more. [Counts], which have no slots to look at,
// change at that moment.
//
// # Counts
//
// Overview screens watch [Counts]: what is left of each day. All who count the same days of a
// doctor share one tally, which is itself a subscriber; what each of them keeps is which revision
// of it they were told.
//
//	Hub ──▶ Subscription ──▶ tally ──▶ Counts.Next
//	                           └─ also at the moment a slot begins
//
// # Concurrency
//
// [Listener.Run] calls its consumers from one goroutine, in the order in which transactions
// committed. All methods of Hub may be called at any time from any goroutine; those of a
// Subscription as well, but only one Next or Take at a time. Locks are taken in the order
// tallies.mu, Hub.mu, Subscription.mu, openings.mu; reads.mu, tally.mu and content.mu are never held
// with one that comes after. None is held while waiting for anything but memory. The only
// goroutines are those that Hub.Run owns, and one for each tally, which has ended when the Close of
// the last that share it returns.
package live

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"openslot/internal/booking"
)

// Limits of one subscription.
const (
	MaxDoctors = 50
	MaxDays    = 31
)

var (
	// ErrGoingAway ends a subscription because this process stops: the client should come back,
	// to another instance.
	ErrGoingAway = errors.New("live: going away")
	// ErrClosed is what Next returns after Close.
	ErrClosed = errors.New("live: subscription closed")
)

// Query says what to watch.
type Query struct {
	Doctors []booking.DoctorID // 1 to MaxDoctors, each once
	From    booking.Date       // first day, in each doctor's own time zone
	Days    int                // 1 to MaxDays
}

func (q Query) check() error {
	switch {
	case len(q.Doctors) == 0:
		return booking.Refuse(booking.Invalid, "Name at least one doctor.")
	case len(q.Doctors) > MaxDoctors:
		return booking.Refuse(booking.Invalid, "Name at most %d doctors in one subscription.", MaxDoctors)
	case q.From.IsZero():
		return booking.Refuse(booking.Invalid, "Name the first day.")
	case q.Days < 1 || q.Days > MaxDays:
		return booking.Refuse(booking.Invalid, "Ask for 1 to %d days.", MaxDays)
	}
	seen := make(map[booking.DoctorID]bool, len(q.Doctors))
	for _, doctor := range q.Doctors {
		if seen[doctor] {
			return booking.Refuse(booking.Invalid, "Name each doctor once: %d is there twice.", doctor)
		}
		seen[doctor] = true
	}
	return nil
}

// Kind says how to apply an Update.
type Kind string

// The kinds of update.
const (
	Snapshot Kind = "SNAPSHOT" // replaces all that is known of the doctor and range
	Delta    Kind = "DELTA"    // replaces slots one by one
)

// Update is one message to a subscriber, about one doctor.
type Update struct {
	Kind     Kind
	DoctorID booking.DoctorID
	From     booking.Date
	Days     int
	TimeZone string // IANA name, the zone of From; as it was when the subscription began
	Epoch    int64  // counts the feed's connections; for diagnosis only

	// SNAPSHOT: the database's clock, UTC; the slots are at least as new. DELTA: nil.
	AsOf *time.Time

	// SNAPSHOT: all slots of the range that are not WITHDRAWN, past, full, closed and not yet open
	// ones included. DELTA: those that changed; a WITHDRAWN one is gone. Both by start.
	// The slice may be shared with other subscribers: it must not be written to.
	Slots []booking.Slot

	content *content // of Slots, if others are told the same
}

// Consumer is told what the feed brings. Its functions are called one at a time and must not
// block; nil ones are left out.
type Consumer struct {
	// Resync: changes may have been missed; what is known of any slot is in doubt. It is called
	// when a connection's LISTEN is in force (each connection is a new epoch, counted from 1),
	// so that a read that begins afterwards misses nothing, and with an unchanged epoch after a
	// notification that made no sense. since is the database's clock, read when the changes to
	// come were sure to arrive: what was true of a slot after it is still true, or its change is
	// announced.
	Resync func(epoch int64, since time.Time)
	// Changed brings new states, grouped by doctor and in order of commit for each slot. A slot
	// that was deleted comes as WITHDRAWN. The slice must not be kept or written to.
	Changed func([]booking.Slot)
	// Stale: so much of this doctor changed that it is cheaper to read it again. since is as
	// for Resync.
	Stale func(doctor booking.DoctorID, since time.Time)
	// Access: these patients were blocked, or let in again.
	Access func([]booking.PatientID)
}

const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// pause waits before try number attempt+1, the longer the more attempts have failed. It reports
// false if ctx ended.
func pause(ctx context.Context, attempt int) bool { return pass(ctx, delay(attempt)) == nil }

// pass lets some time pass, unless ctx ends, whose error it then returns.
func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// delay doubles from firstPause to maxPause. Half of it is random, so that instances which lost
// the same database don't come back in step.
func delay(attempt int) time.Duration {
	d := min(firstPause<<min(attempt, 16), maxPause)
	return d/2 + rand.N(d/2)
}
