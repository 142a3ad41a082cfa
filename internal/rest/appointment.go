package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
)

func bookAppointment(h *Handler, in *request) (reply, error) { return h.claim(in, h.Booking.Book) }

func holdSlot(h *Handler, in *request) (reply, error) { return h.claim(in, h.Booking.Hold) }

// claim answers with a place that was booked or held.
func (h *Handler) claim(in *request, claim func(context.Context, booking.Actor, booking.BookRequest) (booking.Booking, error)) (reply, error) {
	asked := booking.BookRequest{Key: in.key()}
	in.object(bookMembers(&asked)...)
	in.wrong(either("slotId", asked.Slot, "time", asked.Time))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	claimed, err := claim(in.Context(), in.actor, asked)
	return h.won(in, claimed, err, asked.Slot, asked.Patient)
}

// won answers with a place that was asked for in the slot, for the patient if that is known.
func (h *Handler) won(in *request, claimed booking.Booking, err error, slot booking.SlotID, patient booking.PatientID) (reply, error) {
	var known *booking.Error
	if err == nil || errors.As(err, &known) && known.Code.Business() {
		h.tellLimit(in, cmp.Or(claimed.Appointment.PatientID, patient))
	}
	if err != nil {
		return reply{}, &fullError{err, slot}
	}
	status := http.StatusCreated
	if claimed.Replayed {
		status = http.StatusOK
	}
	return reply{status: status, body: appointment(claimed.Appointment),
		location: "/api/appointments/" + strconv.FormatInt(int64(claimed.Appointment.ID), 10)}, nil
}

// bookMembers are those of a body that asks for a place.
func bookMembers(r *booking.BookRequest) []member {
	return []member{
		{"slotId", (*idNumber)(&r.Slot), wantID, false},
		{"time", &timeTarget{&r.Time}, wantTime, false},
		{"patientId", (*idNumber)(&r.Patient), wantID, false},
		{"referralId", &shortText{&r.Referral, 64}, "text of at most 64 characters", false},
		{"overlapReason", &shortText{&r.OverlapReason, 500}, "text of at most 500 characters", false},
	}
}

// tellLimit says in the answer how many more keys the caller may try for the patient.
func (h *Handler) tellLimit(in *request, patient booking.PatientID) {
	if in.actor.Kind == booking.Patient {
		patient = in.actor.PatientID
	}
	if h.Gate == nil || in.actor.Kind == booking.Anonymous || patient == 0 {
		return
	}
	a := h.Gate.Allowance(in.actor, patient)
	seconds := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
	header := in.w.Header()
	policy := append([]byte(`"keys";q=`), strconv.Itoa(a.Keys)...)
	policy = strconv.AppendInt(append(policy, ";w="...), int64(seconds(a.Window)), 10)
	left := append([]byte(`"keys";r=`), strconv.Itoa(a.Left)...)
	left = strconv.AppendInt(append(left, ";t="...), int64(seconds(a.Reset)), 10)
	header["Ratelimit-Policy"] = []string{string(policy)}
	header["Ratelimit"] = []string{string(left)}
}

func getAppointment(h *Handler, in *request) (reply, error) {
	id := booking.AppointmentID(in.id("appointmentId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	if in.actor.Kind == booking.Anonymous { // the core only says that there is none
		return reply{}, booking.Refuse(booking.Unauthenticated, "Sign in first.")
	}
	found, err := h.Booking.Appointment(in.Context(), in.actor, id)
	return reply{body: appointment(found)}, err
}

func listAppointments(h *Handler, in *request) (reply, error) {
	return appointments(in, func(page booking.Page) (booking.AppointmentPage, error) {
		return h.Booking.PatientAppointments(in.Context(), in.actor, page)
	})
}

func listDoctorAppointments(h *Handler, in *request) (reply, error) {
	id, date := booking.DoctorID(in.id("doctorId")), in.date("date")
	return appointments(in, func(page booking.Page) (booking.AppointmentPage, error) {
		return h.Booking.DoctorAppointments(in.Context(), in.actor, id, date, page)
	})
}

// appointments answers with a page of them.
func appointments(in *request, read func(booking.Page) (booking.AppointmentPage, error)) (reply, error) {
	page := booking.Page{First: in.number("first", pageSize), After: in.optional("after")}
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := read(page)
	body := appointmentPageJSON{Appointments: make([]appointmentJSON, len(found.Appointments)), Next: next(found.Appointments, found.HasNext)}
	for i, a := range found.Appointments {
		body.Appointments[i] = appointment(a)
	}
	return reply{body: body}, err
}

func rescheduleAppointment(h *Handler, in *request) (reply, error) {
	asked := booking.RescheduleRequest{Appointment: booking.AppointmentID(in.id("appointmentId")), Key: in.key()}
	in.object(moveMembers(&asked)...)
	return h.reschedule(in, asked)
}

func rescheduleByReferral(h *Handler, in *request) (reply, error) {
	asked := booking.RescheduleRequest{Key: in.key()}
	in.object(append(moveMembers(&asked), member{"referralId", &shortText{&asked.Referral, 64}, "text of at most 64 characters", true},
		member{"fromSlotId", (*idNumber)(&asked.From), wantID, true})...)
	return h.reschedule(in, asked)
}

// moveMembers are those of a body that says where to move.
func moveMembers(r *booking.RescheduleRequest) []member {
	return []member{
		{"toSlotId", (*idNumber)(&r.To), wantID, false},
		{"toTime", &timeTarget{&r.ToTime}, wantTime, false},
		{"overlapReason", &shortText{&r.OverlapReason, 500}, "text of at most 500 characters", false},
	}
}

func (h *Handler) reschedule(in *request, asked booking.RescheduleRequest) (reply, error) {
	in.wrong(either("toSlotId", asked.To, "toTime", asked.ToTime))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	moved, err := h.Booking.Reschedule(in.Context(), in.actor, asked)
	return h.won(in, moved, err, asked.To, 0)
}

func confirmHold(h *Handler, in *request) (reply, error) { return h.step(in, h.Booking.Confirm) }

func releaseHold(h *Handler, in *request) (reply, error) { return h.step(in, h.Booking.Release) }

func deleteAppointment(h *Handler, in *request) (reply, error) { return h.cancel(in, "") }

func cancelAppointment(h *Handler, in *request) (reply, error) {
	var reason string
	in.object(member{"reason", &reason, "text of at most 500 characters", false})
	return h.cancel(in, reason)
}

func (h *Handler) cancel(in *request, reason string) (reply, error) {
	return h.step(in, func(ctx context.Context, actor booking.Actor, id booking.AppointmentID) (booking.Step, error) {
		return h.Booking.Cancel(ctx, actor, booking.CancelRequest{Appointment: id, Reason: reason})
	})
}

func markAppointment(h *Handler, in *request) (reply, error) {
	var status attendance
	in.object(member{"status", &status, "BOOKED, ARRIVED, FULFILLED or NO_SHOW", true})
	return h.step(in, func(ctx context.Context, actor booking.Actor, id booking.AppointmentID) (booking.Step, error) {
		return h.Booking.Mark(ctx, actor, id, booking.AppointmentStatus(status))
	})
}

// attendance is a status that can be noted of an appointment.
type attendance booking.AppointmentStatus

// UnmarshalJSON takes one that can.
func (a *attendance) UnmarshalJSON(text []byte) error {
	var s booking.AppointmentStatus
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	switch s {
	case booking.AppointmentBooked, booking.AppointmentArrived, booking.AppointmentFulfilled, booking.AppointmentNoShow:
		*a = attendance(s)
		return nil
	}
	return errors.New("no attendance")
}

// step answers with the path's appointment after it was taken to another state.
func (h *Handler) step(in *request, take func(context.Context, booking.Actor, booking.AppointmentID) (booking.Step, error)) (reply, error) {
	id := booking.AppointmentID(in.id("appointmentId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	taken, err := take(in.Context(), in.actor, id)
	return reply{body: appointment(taken.Appointment)}, err
}

func registerPatient(h *Handler, in *request) (reply, error) {
	r := auth.Registration{Subject: in.PathValue("subject")}
	in.object(member{"name", &r.Name, "text", false}, member{"email", &r.Email, "an e-mail address", false},
		member{"phone", &r.Phone, "a phone number", false}, member{"locale", &r.Locale, "a language tag, such as de", false})
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	registered, created, err := h.Patients.Register(in.Context(), in.actor, r)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return reply{status: status, body: patient(registered)}, err
}
