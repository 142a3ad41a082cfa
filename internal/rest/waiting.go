package rest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"openslot/internal/booking"
)

type waitingJSON struct {
	ID        booking.WaitingID     `json:"id"`
	DoctorID  booking.DoctorID      `json:"doctorId"`
	PatientID booking.PatientID     `json:"patientId"`
	From      string                `json:"from"`
	To        string                `json:"to"`
	Status    booking.WaitingStatus `json:"status"`
	CreatedAt time.Time             `json:"createdAt"`
	Offer     *appointmentJSON      `json:"offer"`
}

func waiting(w booking.WaitingEntry) waitingJSON {
	body := waitingJSON{w.ID, w.DoctorID, w.PatientID, w.From.String(), w.To.String(), w.Status, w.CreatedAt, nil}
	if w.Offer != nil {
		body.Offer = new(appointment(*w.Offer))
	}
	return body
}

type waitingPageJSON struct {
	Entries []waitingJSON `json:"entries"`
	Next    *string       `json:"next"`
}

// day is a date in a body.
type day struct{ into *booking.Date }

// UnmarshalJSON takes a string that is a date.
func (d day) UnmarshalJSON(text []byte) (err error) {
	var date string
	if err = json.Unmarshal(text, &date); err == nil {
		*d.into, err = booking.ParseDate(date)
	}
	return err
}

func joinWaitingList(h *Handler, in *request) (reply, error) {
	var asked booking.WaitingRequest
	const wantDay = "a day, such as 2026-10-12"
	in.object(member{"doctorId", (*idNumber)(&asked.Doctor), wantID, true}, member{"from", &day{&asked.From}, wantDay, true},
		member{"to", &day{&asked.To}, wantDay, true}, member{"patientId", (*idNumber)(&asked.Patient), wantID, false})
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	entry, joined, err := h.Booking.JoinWaitingList(in.Context(), in.actor, asked)
	status := http.StatusOK
	if joined {
		status = http.StatusCreated
	}
	return reply{status: status, body: waiting(entry), location: "/api/waiting/" + strconv.FormatInt(int64(entry.ID), 10)}, err
}

func getWaitingEntry(h *Handler, in *request) (reply, error) {
	id := booking.WaitingID(in.id("entryId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	if in.actor.Kind == booking.Anonymous { // the core only says that there is none
		return reply{}, booking.Refuse(booking.Unauthenticated, "Sign in first.")
	}
	found, err := h.Booking.WaitingEntry(in.Context(), in.actor, id)
	return reply{body: waiting(found)}, err
}

func leaveWaitingList(h *Handler, in *request) (reply, error) {
	id := booking.WaitingID(in.id("entryId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	left, _, err := h.Booking.LeaveWaitingList(in.Context(), in.actor, id)
	return reply{body: waiting(left)}, err
}

func listWaiting(h *Handler, in *request) (reply, error) {
	return waitingPage(in, func(page booking.Page) (booking.WaitingPage, error) {
		return h.Booking.PatientWaiting(in.Context(), in.actor, page)
	})
}

func listDoctorWaiting(h *Handler, in *request) (reply, error) {
	id := booking.DoctorID(in.id("doctorId"))
	return waitingPage(in, func(page booking.Page) (booking.WaitingPage, error) {
		return h.Booking.DoctorWaiting(in.Context(), in.actor, id, page)
	})
}

// waitingPage answers with a page of entries.
func waitingPage(in *request, read func(booking.Page) (booking.WaitingPage, error)) (reply, error) {
	page := booking.Page{First: in.number("first", pageSize), After: in.optional("after")}
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := read(page)
	body := waitingPageJSON{Entries: make([]waitingJSON, len(found.Entries)), Next: next(found.Entries, found.HasNext)}
	for i, w := range found.Entries {
		body.Entries[i] = waiting(w)
	}
	return reply{body: body}, err
}
