package rest

import (
	"errors"
	"regexp"
	"time"

	"openslot/internal/booking"
	"openslot/internal/schedule"
)

func listStarts(h *Handler, in *request) (reply, error) {
	id, date, minutes := booking.DoctorID(in.id("doctorId")), in.date("date"), in.number("minutes", 0)
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := h.Schedule.FreeStarts(in.Context(), in.actor, schedule.StartsQuery{Doctor: id, Date: date, Minutes: minutes})
	return reply{body: startsJSON{found.AsOf, found.Date.String(), found.TimeZone, found.Minutes, found.Durations, found.Starts}, public: true}, err
}

type startsJSON struct {
	AsOf      time.Time   `json:"asOf"` // the first: see reply.public
	Date      string      `json:"date"`
	TimeZone  string      `json:"timeZone"`
	Minutes   int         `json:"minutes"`
	Durations []int       `json:"durations"`
	Starts    []time.Time `json:"starts"`
}

const wantTime = "an object with doctorId, startAt and minutes"

// timeTarget is a time of a doctor in a body.
type timeTarget struct{ into **booking.TimeTarget }

// UnmarshalJSON takes an object as the document has it.
func (t *timeTarget) UnmarshalJSON(text []byte) error {
	var target booking.TimeTarget
	err := decodeObject(text, []member{
		{"doctorId", (*idNumber)(&target.Doctor), wantID, true},
		{"startAt", (*instant)(&target.StartAt), "an instant", true},
		{"minutes", (*minutes)(&target.Minutes), "a number of minutes", true},
	})
	*t.into = &target
	return err
}

// instantPattern is that of the document: RFC 3339 in whole seconds.
var instantPattern = regexp.MustCompile(`^"2\d{3}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"$`)

// instant is a moment in a body.
type instant time.Time

// UnmarshalJSON takes a moment with its offset.
func (i *instant) UnmarshalJSON(text []byte) error {
	at, err := time.Parse(`"`+time.RFC3339+`"`, string(text))
	if err != nil || !instantPattern.Match(text) {
		return errors.New("no instant")
	}
	*i = instant(at)
	return nil
}

// minutes is how long an appointment lasts, in a body.
type minutes int

// UnmarshalJSON takes a whole number from 1 to 1440.
func (m *minutes) UnmarshalJSON(text []byte) error {
	n, ok := wholeID(string(text))
	if !ok || n > 24*60 {
		return errors.New("no minutes")
	}
	*m = minutes(n)
	return nil
}

// either is a fault unless just one of two members was given, a slot or a time.
func either(slotName string, slot booking.SlotID, timeName string, time *booking.TimeTarget) error {
	switch {
	case slot != 0 && time != nil:
		return booking.Refuse(booking.Invalid, "Send %s or %s, not both.", slotName, timeName)
	case slot == 0 && time == nil:
		return booking.Refuse(booking.Invalid, "%s is missing: %s. Or send %s, where hours are flexible: %s.", slotName, wantID, timeName, wantTime)
	}
	return nil
}
