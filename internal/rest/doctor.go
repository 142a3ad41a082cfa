package rest

import (
	"openslot/internal/booking"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

const pageSize = 20 // of lists, unless first says otherwise

func listDoctors(h *Handler, in *request) (reply, error) {
	q := schedule.DoctorQuery{Search: in.optional("search"), First: in.number("first", pageSize), After: in.optional("after")}
	if text, given := in.text("organizationId"); given {
		q.OrganizationID = new(booking.OrganizationID(in.parseID("organizationId", text)))
	}
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := h.Schedule.Doctors(in.Context(), q)
	if err != nil {
		return reply{}, err
	}
	doctors, err := h.doctors(in, found.Doctors)
	return reply{body: doctorPageJSON{doctors, next(found.Doctors, found.HasNext)}, public: true}, err
}

func getDoctor(h *Handler, in *request) (reply, error) {
	id := booking.DoctorID(in.id("doctorId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := h.Schedule.Doctor(in.Context(), id)
	if err != nil {
		return reply{}, err
	}
	doctors, err := h.doctors(in, []schedule.Doctor{found})
	if err != nil {
		return reply{}, err
	}
	return reply{body: doctors[0], public: true}, nil
}

// doctors are doctors with the rules of their organizations.
func (h *Handler) doctors(in *request, found []schedule.Doctor) ([]doctorJSON, error) {
	ids := make([]booking.OrganizationID, len(found))
	for i, d := range found {
		ids[i] = d.OrganizationID
	}
	organizations, err := h.Schedule.OrganizationsByID(in.Context(), ids)
	list := make([]doctorJSON, len(found))
	for i, d := range found {
		list[i] = doctor(d, organizations[d.OrganizationID])
	}
	return list, err
}

func listSlots(h *Handler, in *request) (reply, error) {
	id, date, full := booking.DoctorID(in.id("doctorId")), in.date("date"), in.flag("includeFull")
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	day, err := h.Availability.Day(in.Context(), id, date)
	if !full {
		day.Slots = day.Free()
	}
	return reply{body: daySlotsJSON{day.AsOf, day.Date.String(), day.TimeZone, slots(day.Slots)}, public: true}, err
}

func listDays(h *Handler, in *request) (reply, error) {
	id, from, n := booking.DoctorID(in.id("doctorId")), in.date("from"), in.number("days", 14)
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := h.Availability.Days(in.Context(), id, from, n)
	return reply{body: days(found), public: true}, err
}

// maxAlternatives is how many slots are offered to whoever came too late.
const maxAlternatives = 5

func listAlternatives(h *Handler, in *request) (reply, error) {
	id := booking.SlotID(in.id("slotId"))
	in.accepts(mediaJSON)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	found, err := h.Availability.Next(in.Context(), id, maxAlternatives)
	return reply{body: slotsJSON{slots(found)}}, err
}

func watchAvailability(h *Handler, in *request) (reply, error) {
	q := live.Query{From: in.date("from"), Days: in.number("days", 1)}
	for _, text := range in.values("doctorId") {
		q.Doctors = append(q.Doctors, booking.DoctorID(in.parseID("doctorId", text)))
	}
	in.accepts(mediaEvents)
	if err := in.fault(); err != nil {
		return reply{}, err
	}
	if h.going.Err() != nil {
		return reply{}, goingAway()
	}
	subscription, err := h.Hub.Subscribe(in.Context(), q)
	return reply{stream: subscription}, err
}
