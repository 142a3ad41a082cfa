package live

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"openslot/internal/booking"
)

const (
	maxForms  = 64 // encodings of one content that are kept; more clients' different wishes are encoded for each
	maxRanges = 64 // of one batch; views of further ones are told for themselves alone
)

// content is what an update says of slots, the same for everybody who is told it. Its slots are
// never written to.
type content struct {
	slots []booking.Slot // by start
	first []int64        // of changes: the first version of each that came; slots has the latest

	mu    sync.Mutex // held while encoding: whoever comes meanwhile wants the same, as a rule
	forms []encoded
}

// form is what the bytes of an update depend on, besides its content.
type form struct {
	by    any
	from  booking.Date
	days  int
	zone  string
	epoch int64
}

type encoded struct {
	form
	bytes []byte
}

// Encoded returns the update as encode writes it. Subscribers who are told the same share the
// bytes: encode runs once for them, if they pass the same by, which stands for what encode does
// and must be comparable. The bytes must not be written to.
func (u *Update) Encoded(by any, encode func(*Update) []byte) []byte {
	c := u.content
	if c == nil { // made for this subscriber alone
		return encode(u)
	}
	f := form{by, u.From, u.Days, u.TimeZone, u.Epoch}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.forms {
		if c.forms[i].form == f {
			return c.forms[i].bytes
		}
	}
	bytes := encode(u)
	if len(c.forms) < maxForms {
		c.forms = append(c.forms, encoded{f, bytes})
	}
	return bytes
}

// batch is changes of one doctor that came together, cut to the ranges of those who watch. Only
// the feed's goroutine uses it.
type batch struct {
	slots  []booking.Slot // by start, the latest state of each
	first  []int64
	ranges []cut
}

type cut struct {
	from, to time.Time
	content  *content // nil: nothing lies in the range
}

// newBatch takes changes in the order in which they came, and keeps none of the slice.
func newBatch(changes []booking.Slot) *batch {
	b := &batch{}
	first := make(map[booking.SlotID]int64, len(changes))
	latest := make(map[booking.SlotID]booking.Slot, len(changes))
	for _, slot := range changes {
		if old, again := latest[slot.ID]; !again || slot.Version > old.Version {
			latest[slot.ID] = slot
		}
		if _, again := first[slot.ID]; !again {
			first[slot.ID] = slot.Version
		}
	}
	b.slots = slices.AppendSeq(make([]booking.Slot, 0, len(latest)), maps.Values(latest))
	sortSlots(b.slots)
	for _, slot := range b.slots {
		b.first = append(b.first, first[slot.ID])
	}
	return b
}

// within is what lies in a range; nil if nothing does.
func (b *batch) within(from, to time.Time) *content {
	for i := range b.ranges {
		if c := &b.ranges[i]; c.from.Equal(from) && c.to.Equal(to) {
			return c.content
		}
	}
	first, _ := slices.BinarySearchFunc(b.slots, from, startsBefore)
	end, _ := slices.BinarySearchFunc(b.slots, to, startsBefore)
	var c *content
	if first < end {
		c = &content{slots: b.slots[first:end:end], first: b.first[first:end:end]}
	}
	if len(b.ranges) < maxRanges {
		b.ranges = append(b.ranges, cut{from, to, c})
	}
	return c
}

func startsBefore(s booking.Slot, at time.Time) int { return s.StartAt.Compare(at) }

func sortSlots(slots []booking.Slot) {
	slices.SortFunc(slots, func(a, b booking.Slot) int {
		return cmp.Or(a.StartAt.Compare(b.StartAt), cmp.Compare(a.ID, b.ID))
	})
}
