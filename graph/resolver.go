package graph

import (
	"context"
	"errors"
	"slices"

	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

// resolver answers the fields that the core's types don't answer by themselves. Its methods, in
// schema.resolvers.go, are called by generated code; this file has what more than a few lines of
// them need.
type resolver struct {
	Parts
	presenter presenter
}

// Arguments that the contract lets be null have a default, which null is not: it counts as the
// zero value, which the core refuses where a number is needed.
func value[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

// element is one of a connection.
type element interface{ Cursor() string }

func pageInfo[T element](items []T, hasNext bool, after *string) *PageInfo {
	info := &PageInfo{HasNextPage: hasNext, HasPreviousPage: value(after) != ""}
	if len(items) > 0 {
		info.StartCursor = new(items[0].Cursor())
		info.EndCursor = new(items[len(items)-1].Cursor())
	}
	return info
}

func doctorConnection(ctx context.Context, page schedule.DoctorPage, after *string) *DoctorConnection {
	c := &DoctorConnection{Nodes: page.Doctors, PageInfo: pageInfo(page.Doctors, page.HasNext, after)}
	for i := range page.Doctors {
		doctor := &page.Doctors[i]
		c.Edges = append(c.Edges, DoctorEdge{Cursor: doctor.Cursor(), Node: doctor})
		loadersOf(ctx).organizations.expect(doctor.OrganizationID)
	}
	return c
}

func appointmentConnection(ctx context.Context, page booking.AppointmentPage, after *string) *AppointmentConnection {
	c := &AppointmentConnection{Nodes: page.Appointments, PageInfo: pageInfo(page.Appointments, page.HasNext, after)}
	l := loadersOf(ctx)
	for i := range page.Appointments {
		appointment := &page.Appointments[i]
		c.Edges = append(c.Edges, AppointmentEdge{Cursor: appointment.Cursor(), Node: appointment})
		l.slots.expect(appointment.SlotID)
		l.doctors.expect(appointment.DoctorID)
		l.patients.expect(appointment.PatientID)
	}
	return c
}

func waitingConnection(ctx context.Context, page booking.WaitingPage, after *string) *WaitingListConnection {
	c := &WaitingListConnection{Nodes: page.Entries, PageInfo: pageInfo(page.Entries, page.HasNext, after)}
	l := loadersOf(ctx)
	for i := range page.Entries {
		entry := &page.Entries[i]
		c.Edges = append(c.Edges, WaitingListEdge{Cursor: entry.Cursor(), Node: entry})
		l.doctors.expect(entry.DoctorID)
		l.patients.expect(entry.PatientID)
		if entry.Offer != nil {
			l.slots.expect(entry.Offer.SlotID)
			l.doctors.expect(entry.Offer.DoctorID)
			l.patients.expect(entry.Offer.PatientID)
		}
	}
	return c
}

// book is the mutation bookAppointment. asked are the fields of its payload that anybody wants.
func (r *resolver) book(ctx context.Context, request booking.BookRequest, asked []string) (*BookAppointmentPayload, error) {
	booked, err := r.Booking.Book(ctx, auth.ActorFrom(ctx), request)
	return r.booked(ctx, request.Slot, booked, err, asked)
}

// hold is the mutation holdSlot; asked is as for book.
func (r *resolver) hold(ctx context.Context, request booking.BookRequest, asked []string) (*HoldSlotPayload, error) {
	held, err := r.Booking.Hold(ctx, auth.ActorFrom(ctx), request)
	payload, err := r.booked(ctx, request.Slot, held, err, asked)
	return (*HoldSlotPayload)(payload), err
}

// reschedule is the mutation rescheduleAppointment; asked is as for book.
func (r *resolver) reschedule(ctx context.Context, request booking.RescheduleRequest, asked []string) (*RescheduleAppointmentPayload, error) {
	moved, err := r.Booking.Reschedule(ctx, auth.ActorFrom(ctx), request)
	payload, err := r.booked(ctx, request.To, moved, err, asked)
	return (*RescheduleAppointmentPayload)(payload), err
}

// step is the part of their payloads that mutations have in common which change an appointment's state.
func step(taken booking.Step, err error) (*booking.Appointment, bool, []Refusal, error) {
	if err != nil {
		errs, err := refusals(err)
		return nil, false, errs, err
	}
	return &taken.Appointment, taken.Changed, nil, nil
}

// day is the query slots.
func (r *resolver) day(ctx context.Context, doctor booking.DoctorID, date booking.Date, full bool) (*availability.Day, error) {
	day, err := r.Availability.Day(ctx, doctor, date)
	if !full {
		day.Slots = day.Free()
	}
	return &day, err
}

// maxAlternatives is how many slots are offered to whoever came too late.
const maxAlternatives = 5

// booked makes the payload of a call that was to win a place in the slot. Whatever else it tells beside a refusal is help: the
// refusal stands without it, and nothing is read that nobody asked for. A crowd that is refused must
// not cost the database a query each.
func (r *resolver) booked(ctx context.Context, slot booking.SlotID, booked booking.Booking, err error, asked []string) (*BookAppointmentPayload, error) {
	if err == nil {
		return &BookAppointmentPayload{Appointment: &booked.Appointment, Replayed: booked.Replayed}, nil
	}
	errs, rest := refusals(err)
	if rest != nil {
		return nil, rest
	}
	payload := &BookAppointmentPayload{Errors: errs}
	var known *booking.Error
	errors.As(err, &known)
	switch {
	case known.Existing != 0 && slices.Contains(asked, "appointment"):
		if standing, err := r.Booking.Appointment(ctx, auth.ActorFrom(ctx), known.Existing); err == nil {
			payload.Appointment = &standing
		}
	case known.Code == booking.SlotFull && slices.Contains(asked, "alternatives"):
		payload.Alternatives, _ = r.Availability.Next(ctx, slot, maxAlternatives)
	}
	return payload, nil
}

// into puts a target where a request has its slot or its time. Variables are not held against @oneOf
// by the executor in all cases, so it is done here.
func (in *TargetInput) into(slot *booking.SlotID, time **booking.TimeTarget) error {
	switch {
	case in == nil:
		return nil
	case *slot != 0:
		return booking.Refuse(booking.Invalid, "Name the slot or a target, not both.")
	case (in.SlotID == nil) == (in.Time == nil):
		return booking.Refuse(booking.Invalid, "A target is either a slotId or a time.")
	case in.SlotID != nil:
		*slot = booking.SlotID(*in.SlotID)
	}
	*time = in.Time
	return nil
}

// template turns the contract's shifts, in times of day, into the core's, in minutes.
func (in CreateScheduleInput) template() (schedule.Template, error) {
	t := schedule.Template{ValidFrom: in.ValidFrom, ValidUntil: value(in.ValidUntil)}
	for _, w := range in.Windows {
		start, end, err := schedule.ParseTimes(w.Start, w.End)
		if err != nil {
			return schedule.Template{}, err
		}
		t.Windows = append(t.Windows, schedule.Window{Weekday: w.Weekday, StartMinute: start, EndMinute: end,
			EveryMinutes: w.EveryMinutes, Durations: w.Durations})
	}
	for _, s := range in.Shifts {
		start, end, err := schedule.ParseTimes(s.Start, s.End)
		if err != nil {
			return schedule.Template{}, err
		}
		every := s.SlotMinutes
		if s.EveryMinutes != nil {
			every = *s.EveryMinutes
		}
		t.Shifts = append(t.Shifts, schedule.Shift{Weekday: s.Weekday, StartMinute: start, EndMinute: end,
			SlotMinutes: s.SlotMinutes, EveryMinutes: every, Capacity: s.Capacity})
	}
	return t, nil
}

// watched is what a subscription's arguments ask for.
func watched(ids []ID, from booking.Date, days *int) live.Query {
	query := live.Query{From: from, Days: value(days)}
	for _, id := range ids {
		query.Doctors = append(query.Doctors, booking.DoctorID(id))
	}
	return query
}

// begun passes on a subscription of the hub, or the reason why there is none.
func begun[T any](ctx context.Context, s subscription[T], err error) (<-chan *T, error) {
	if errors.Is(err, live.ErrGoingAway) {
		return nil, booking.Refuse(booking.Unavailable, "This instance is going away. Connect again.")
	}
	if err != nil {
		return nil, err
	}
	return follow(ctx, s), nil
}
