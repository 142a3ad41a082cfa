package live

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"openslot/internal/booking"
)

// message is what one notification says.
type message struct {
	changed  []booking.Slot
	stale    []booking.DoctorID
	patients []booking.PatientID
	lost     bool  // something could not be read, not even whom it concerns
	err      error // why the first unreadable line was so; nil if all made sense
}

// parse reads a payload; migrations/002_change.up.sql and 004_patient_block.up.sql say what is in
// it. It never fails: of a line that makes no sense remains that its doctor, or everything, has to
// be read again.
func parse(payload string) message {
	var m message
	for line := range strings.SplitSeq(payload, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		field, rest, more := strings.Cut(rest, " ")
		id, err := strconv.ParseInt(field, 10, 64)
		doctor := booking.DoctorID(id)
		switch {
		case err != nil || id <= 0 || kind != "s" && kind != "d" && kind != "p" || kind == "p" && more:
			m.lost = true
			m.fail(fmt.Errorf("unknown line %.200q", line))
		case kind == "p":
			m.patients = append(m.patients, booking.PatientID(id))
		case kind == "d" && !more:
			m.stale = append(m.stale, doctor)
		case kind == "d":
			m.stale = append(m.stale, doctor)
			m.fail(fmt.Errorf("more than a doctor in line %.200q", line))
		default:
			slot, err := parseSlot(doctor, rest)
			if err != nil {
				m.stale = append(m.stale, doctor)
				m.fail(fmt.Errorf("%w in line %.200q", err, line))
				continue
			}
			m.changed = append(m.changed, slot)
		}
	}
	return m
}

func (m *message) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// parseSlot reads what follows the doctor:
// <slot> <version> <start> <end> <capacity> <booked> <status> <opens>
func parseSlot(doctor booking.DoctorID, fields string) (booking.Slot, error) {
	p := fieldReader{rest: fields}
	slot := booking.Slot{
		DoctorID: doctor,
		ID:       booking.SlotID(p.number()),
		Version:  p.number(),
		StartAt:  time.UnixMicro(p.number()).UTC(),
		EndAt:    time.UnixMicro(p.number()).UTC(),
		Capacity: int(p.number()),
		Booked:   int(p.number()),
		Status:   booking.SlotStatus(p.next()),
		OpensAt:  time.UnixMicro(p.number()).UTC(),
	}
	switch {
	case p.err != nil:
		return booking.Slot{}, p.err
	case !p.done:
		return booking.Slot{}, fmt.Errorf("%q is too much", p.rest)
	}
	switch slot.Status {
	case booking.SlotOpen, booking.SlotClosed, booking.SlotWithdrawn:
	default:
		return booking.Slot{}, fmt.Errorf("status %q", slot.Status)
	}
	if slot.ID <= 0 || slot.Version < 0 || slot.Capacity < 1 || slot.Booked < 0 || slot.Booked > slot.Capacity ||
		!slot.EndAt.After(slot.StartAt) {
		return booking.Slot{}, fmt.Errorf("a slot that can't be")
	}
	return slot, nil
}

// fieldReader takes fields off a line and remembers the first error.
type fieldReader struct {
	rest string
	done bool // the last field was taken
	err  error
}

func (p *fieldReader) next() string {
	if p.done && p.err == nil {
		p.err = fmt.Errorf("too few fields")
	}
	field, rest, more := strings.Cut(p.rest, " ")
	p.rest, p.done = rest, !more
	return field
}

func (p *fieldReader) number() int64 {
	field := p.next()
	n, err := strconv.ParseInt(field, 10, 64)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%q is no number", field)
	}
	return n
}
