package availability

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"openslot/internal/booking"
)

const (
	markLife  = 30 * time.Second // how long a mark holds without being confirmed, here and in Redis
	hintLife  = 5 * time.Second  // how long after its time one from Redis is believed
	hintSkew  = time.Second      // how far ahead of what we take for the database's time it may be
	markQuiet = time.Second      // how long the same mark is not sent to Redis again
	marksMost = 1 << 17          // slots remembered
)

// marks knows of slots whether they are full.
//
// What is known comes from the feed, which says how a slot is in a version; from committed
// bookings, which say that it was full in a version at a time; and from Redis, where others leave
// what they heard in the second way. Such a mark counts only as long as nothing can have changed
// unheard: the feed is alive, has been in force since before the mark's time, and has shown no
// newer version. Then the slot is still as the mark says, but for what is on its way to us.
//
// A mark from Redis is a hint, believed for a short time and only once in a while: whoever wrote
// it, a slot with a free place that nobody books for a few seconds is bookable after these.
type marks struct {
	alive func() bool // the feed

	mu    sync.Mutex
	since time.Time // by the database's clock: marks from before don't count
	began time.Time // by the database's clock: from here on the feed tells everything
	heard time.Time // by ours, the same moment or a little later
	slots recent[booking.SlotID, mark]
}

// mark is what is known of a slot. The zero mark is a slot of which nothing is known.
type mark struct {
	known   bool  // version and full are
	version int64 // the newest
	full    bool
	until   time.Time // when to ask anew though nothing was heard
	sent    time.Time // to Redis
	hinted  bool      // by Redis; then
	hint    time.Time // until when to believe it
}

func newMarks(alive func() bool) *marks {
	return &marks{alive: alive, slots: newRecent[booking.SlotID, mark](hintLife+hintSkew, marksMost)}
}

// doubt forgets everything: what was so at the given time of the database is not sure any more.
func (m *marks) doubt(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since, m.began, m.heard = since, since, time.Now()
	m.slots = newRecent[booking.SlotID, mark](m.slots.period, m.slots.most)
}

// changed hears from the feed.
func (m *marks) changed(slots []booking.Slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, s := range slots {
		known, _ := m.slots.find(s.ID, now)
		if known.known && known.version >= s.Version {
			continue
		}
		// Slots that refuse for another reason as well are the database's to explain.
		full := s.Free() <= 0 && s.Status == booking.SlotOpen && s.StartAt.After(now.Add(markLife)) && !s.OpensAt.After(now)
		m.put(s.ID, mark{known: true, version: s.Version, full: full, until: now.Add(markLife)}, now)
	}
}

// put remembers what is known of a slot. If something that was learned a moment ago had to be
// forgotten for it, marks from before now can't be held against it any more.
func (m *marks) put(slot booking.SlotID, k mark, now time.Time) {
	if m.slots.put(slot, k, now) && !m.since.IsZero() {
		m.since = m.clock(now).Add(hintSkew)
	}
}

// clock is about what the database's shows.
func (m *marks) clock(now time.Time) time.Time { return m.began.Add(now.Sub(m.heard)) }

// full hears of a slot that was full in a committed transaction, and reports whether others
// should be told.
func (m *marks) full(f booking.FullMark) (tell bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	k, _ := m.slots.find(f.Slot, now)
	switch {
	case k.known && (k.version > f.Version || k.version == f.Version && !k.full):
		return false
	case !m.since.IsZero() && f.At.After(m.since):
		sent := k.sent
		if k.version != f.Version {
			sent = time.Time{}
		}
		k = mark{known: true, version: f.Version, full: true, until: now.Add(markLife), sent: sent}
	}
	if now.Sub(k.sent) >= markQuiet {
		tell, k.sent = true, now
	}
	m.put(f.Slot, k, now)
	return tell
}

// look reports whether a slot is known to be full, and if not, whether Redis may know.
func (m *marks) look(slot booking.SlotID) (full, ask bool) {
	if !m.alive() {
		return false, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	k, _ := m.slots.find(slot, now)
	switch {
	case m.since.IsZero():
		return false, false
	case k.known:
		return k.full && now.Before(k.until), false
	default:
		return k.hinted && now.Before(k.hint), !k.hinted
	}
}

// believe reports whether a mark from Redis counts.
func (m *marks) believe(slot booking.SlotID, text string) bool {
	f, ok := parseMark(text)
	if !ok || f.Slot != slot || !m.alive() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	age := m.clock(now).Sub(f.At)
	if m.since.IsZero() || !f.At.After(m.since) || age < -hintSkew || age > hintLife {
		return false
	}
	k, _ := m.slots.find(slot, now)
	if k.known {
		// The feed has told of the slot meanwhile. Whatever is newer than that it will tell as well.
		return k.full && k.version >= f.Version && now.Before(k.until)
	}
	if !k.hinted {
		k.hinted, k.hint = true, now.Add(min(hintLife, hintLife-age))
		m.put(slot, k, now)
	}
	return now.Before(k.hint)
}

func markKey(slot booking.SlotID) string {
	return "openslot:full:{" + strconv.FormatInt(int64(slot), 10) + "}"
}

// markText is a mark as Redis has it: slot, version, and microseconds since 1970.
func markText(f booking.FullMark) string {
	return fmt.Sprintf("full %d %d %d", f.Slot, f.Version, f.At.UnixMicro())
}

// parseMark reads exactly what markText writes.
func parseMark(text string) (f booking.FullMark, ok bool) {
	fields := strings.Split(text, " ")
	if len(fields) != 4 {
		return f, false
	}
	var n [3]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(fields[i+1], 10, 64)
	}
	f = booking.FullMark{Slot: booking.SlotID(n[0]), Version: n[1], At: time.UnixMicro(n[2])}
	return f, markText(f) == text && f.Slot > 0 && f.Version >= 0
}

// tell leaves a mark in Redis. Nobody waits for it.
func (r *Redis) tell(f booking.FullMark) {
	r.send([]redis.Cmder{redis.NewStatusCmd(context.Background(), "set", markKey(f.Slot), markText(f), "px", markLife.Milliseconds())})
}
