package graph

import (
	"context"
	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/live"
	"openslot/internal/schedule"

	"github.com/99designs/gqlgen/graphql"
)

func (r *appointmentResolver) Slot(ctx context.Context, obj *booking.Appointment) (*booking.Slot, error) {
	return loadersOf(ctx).slots.load(ctx, obj.SlotID)
}

func (r *appointmentResolver) Doctor(ctx context.Context, obj *booking.Appointment) (*schedule.Doctor, error) {
	return loadersOf(ctx).doctors.load(ctx, obj.DoctorID)
}

func (r *appointmentResolver) Patient(ctx context.Context, obj *booking.Appointment) (*auth.Patient, error) {
	return loadersOf(ctx).patients.load(ctx, obj.PatientID)
}

func (r *doctorResolver) Organization(ctx context.Context, obj *schedule.Doctor) (*schedule.Organization, error) {
	return loadersOf(ctx).organizations.load(ctx, obj.OrganizationID)
}

func (r *mutationResolver) BookAppointment(ctx context.Context, input booking.BookRequest) (*BookAppointmentPayload, error) {
	return r.book(ctx, input, graphql.CollectAllFields(ctx))
}

func (r *mutationResolver) HoldSlot(ctx context.Context, input booking.BookRequest) (*HoldSlotPayload, error) {
	return r.hold(ctx, input, graphql.CollectAllFields(ctx))
}

func (r *mutationResolver) ConfirmAppointment(ctx context.Context, input ConfirmAppointmentInput) (*ConfirmAppointmentPayload, error) {
	appointment, changed, errs, err := step(r.Booking.Confirm(ctx, auth.ActorFrom(ctx), booking.AppointmentID(input.AppointmentID)))
	return &ConfirmAppointmentPayload{Appointment: appointment, Changed: changed, Errors: errs}, err
}

func (r *mutationResolver) ReleaseHold(ctx context.Context, input ReleaseHoldInput) (*ReleaseHoldPayload, error) {
	appointment, changed, errs, err := step(r.Booking.Release(ctx, auth.ActorFrom(ctx), booking.AppointmentID(input.AppointmentID)))
	return &ReleaseHoldPayload{Appointment: appointment, Changed: changed, Errors: errs}, err
}

func (r *mutationResolver) CancelAppointment(ctx context.Context, input booking.CancelRequest) (*CancelAppointmentPayload, error) {
	appointment, changed, errs, err := step(r.Booking.Cancel(ctx, auth.ActorFrom(ctx), input))
	return &CancelAppointmentPayload{Appointment: appointment, Changed: changed, Errors: errs}, err
}

func (r *mutationResolver) RescheduleAppointment(ctx context.Context, input booking.RescheduleRequest) (*RescheduleAppointmentPayload, error) {
	return r.reschedule(ctx, input, graphql.CollectAllFields(ctx))
}

func (r *mutationResolver) JoinWaitingList(ctx context.Context, input booking.WaitingRequest) (*JoinWaitingListPayload, error) {
	entry, joined, err := r.Booking.JoinWaitingList(ctx, auth.ActorFrom(ctx), input)
	if err != nil {
		errs, err := refusals(err)
		return &JoinWaitingListPayload{Errors: errs}, err
	}
	return &JoinWaitingListPayload{Entry: &entry, Joined: joined}, nil
}

func (r *mutationResolver) LeaveWaitingList(ctx context.Context, input LeaveWaitingListInput) (*LeaveWaitingListPayload, error) {
	entry, changed, err := r.Booking.LeaveWaitingList(ctx, auth.ActorFrom(ctx), booking.WaitingID(input.EntryID))
	if err != nil {
		errs, err := refusals(err)
		return &LeaveWaitingListPayload{Errors: errs}, err
	}
	return &LeaveWaitingListPayload{Entry: &entry, Changed: changed}, nil
}

func (r *mutationResolver) MarkAppointment(ctx context.Context, input MarkAppointmentInput) (*MarkAppointmentPayload, error) {
	appointment, changed, errs, err := step(r.Booking.Mark(ctx, auth.ActorFrom(ctx), booking.AppointmentID(input.AppointmentID), input.Status))
	return &MarkAppointmentPayload{Appointment: appointment, Changed: changed, Errors: errs}, err
}

func (r *mutationResolver) RegisterPatient(ctx context.Context, input auth.Registration) (*RegisterPatientPayload, error) {
	patient, created, err := r.Patients.Register(ctx, auth.ActorFrom(ctx), input)
	return &RegisterPatientPayload{Patient: &patient, Created: created}, err
}

func (r *mutationResolver) CreateOrganization(ctx context.Context, input CreateOrganizationInput) (*CreateOrganizationPayload, error) {
	created, err := r.Schedule.CreateOrganization(ctx, auth.ActorFrom(ctx), input.Name, input.TimeZone)
	return &CreateOrganizationPayload{Organization: &created}, err
}

func (r *mutationResolver) UpdateBookingRules(ctx context.Context, input schedule.RulesChange) (*UpdateBookingRulesPayload, error) {
	changed, err := r.Schedule.UpdateRules(ctx, auth.ActorFrom(ctx), input)
	return &UpdateBookingRulesPayload{Organization: &changed}, err
}

func (r *mutationResolver) CreateDoctor(ctx context.Context, input CreateDoctorInput) (*CreateDoctorPayload, error) {
	actor := auth.ActorFrom(ctx)
	created, err := r.Schedule.CreateDoctor(ctx, actor, actor.Organization, input.Name, input.Specialty)
	return &CreateDoctorPayload{Doctor: &created}, err
}

func (r *mutationResolver) CreateSchedule(ctx context.Context, input CreateScheduleInput) (*CreateSchedulePayload, error) {
	template, err := input.template()
	if err != nil {
		return nil, err
	}
	id, err := r.Schedule.CreateSchedule(ctx, auth.ActorFrom(ctx), booking.DoctorID(input.DoctorID), template)
	if err != nil {
		errs, err := refusals(err)
		return &CreateSchedulePayload{Errors: errs}, err
	}
	return &CreateSchedulePayload{ScheduleID: new(ID(id))}, nil
}

func (r *mutationResolver) GenerateSlots(ctx context.Context, input GenerateSlotsInput) (*GenerateSlotsPayload, error) {
	added, err := r.Schedule.Generate(ctx, auth.ActorFrom(ctx), booking.DoctorID(input.DoctorID), input.Days)
	return &GenerateSlotsPayload{Added: added}, err
}

func (r *mutationResolver) UpdateSlot(ctx context.Context, input UpdateSlotInput) (*UpdateSlotPayload, error) {
	change := schedule.SlotChange{Capacity: input.Capacity, Status: input.Status}
	slot, err := r.Schedule.UpdateSlot(ctx, auth.ActorFrom(ctx), booking.SlotID(input.SlotID), change)
	if err != nil {
		errs, err := refusals(err)
		return &UpdateSlotPayload{Errors: errs}, err
	}
	return &UpdateSlotPayload{Slot: &slot}, nil
}

func (r *mutationResolver) BlockPatient(ctx context.Context, input BlockPatientInput) (*BlockPatientPayload, error) {
	patient, changed, err := r.Patients.Block(ctx, auth.ActorFrom(ctx), booking.PatientID(input.PatientID), value(input.Reason))
	return &BlockPatientPayload{Patient: &patient, Changed: changed}, err
}

func (r *mutationResolver) UnblockPatient(ctx context.Context, input UnblockPatientInput) (*UnblockPatientPayload, error) {
	patient, changed, err := r.Patients.Unblock(ctx, auth.ActorFrom(ctx), booking.PatientID(input.PatientID))
	return &UnblockPatientPayload{Patient: &patient, Changed: changed}, err
}

func (r *queryResolver) Me(ctx context.Context) (*booking.Actor, error) {
	actor := auth.ActorFrom(ctx)
	if actor.Kind == booking.Anonymous {
		return nil, nil
	}
	return &actor, nil
}

func (r *queryResolver) Doctor(ctx context.Context, id ID) (*schedule.Doctor, error) {
	return absent(r.Schedule.Doctor(ctx, booking.DoctorID(id)))
}

func (r *queryResolver) Doctors(ctx context.Context, search *string, organizationID *ID, first *int, after *string) (*DoctorConnection, error) {
	page, err := r.Schedule.Doctors(ctx, schedule.DoctorQuery{Search: value(search),
		OrganizationID: (*booking.OrganizationID)(organizationID), First: value(first), After: value(after)})
	return doctorConnection(ctx, page, after), err
}

func (r *queryResolver) Slots(ctx context.Context, doctorID ID, date booking.Date, includeFull *bool) (*availability.Day, error) {
	return r.day(ctx, booking.DoctorID(doctorID), date, value(includeFull))
}

func (r *queryResolver) Days(ctx context.Context, doctorID ID, from booking.Date, days *int) ([]booking.DaySummary, error) {
	return r.Availability.Days(ctx, booking.DoctorID(doctorID), from, value(days))
}

func (r *queryResolver) FreeStarts(ctx context.Context, doctorID ID, date booking.Date, minutes int) (*schedule.FreeStarts, error) {
	starts, err := r.Schedule.FreeStarts(ctx, auth.ActorFrom(ctx),
		schedule.StartsQuery{Doctor: booking.DoctorID(doctorID), Date: date, Minutes: minutes})
	return &starts, err
}

func (r *queryResolver) Appointment(ctx context.Context, id ID) (*booking.Appointment, error) {
	return absent(r.Booking.Appointment(ctx, auth.ActorFrom(ctx), booking.AppointmentID(id)))
}

func (r *queryResolver) MyAppointments(ctx context.Context, first *int, after *string) (*AppointmentConnection, error) {
	page, err := r.Booking.PatientAppointments(ctx, auth.ActorFrom(ctx), booking.Page{First: value(first), After: value(after)})
	return appointmentConnection(ctx, page, after), err
}

func (r *queryResolver) Appointments(ctx context.Context, doctorID ID, date booking.Date, first *int, after *string) (*AppointmentConnection, error) {
	page, err := r.Booking.DoctorAppointments(ctx, auth.ActorFrom(ctx), booking.DoctorID(doctorID), date,
		booking.Page{First: value(first), After: value(after)})
	return appointmentConnection(ctx, page, after), err
}

func (r *queryResolver) WaitingEntry(ctx context.Context, id ID) (*booking.WaitingEntry, error) {
	return absent(r.Booking.WaitingEntry(ctx, auth.ActorFrom(ctx), booking.WaitingID(id)))
}

func (r *queryResolver) MyWaitingList(ctx context.Context, first *int, after *string) (*WaitingListConnection, error) {
	page, err := r.Booking.PatientWaiting(ctx, auth.ActorFrom(ctx), booking.Page{First: value(first), After: value(after)})
	return waitingConnection(ctx, page, after), err
}

func (r *queryResolver) WaitingList(ctx context.Context, doctorID ID, first *int, after *string) (*WaitingListConnection, error) {
	page, err := r.Booking.DoctorWaiting(ctx, auth.ActorFrom(ctx), booking.DoctorID(doctorID),
		booking.Page{First: value(first), After: value(after)})
	return waitingConnection(ctx, page, after), err
}

func (r *subscriptionResolver) Availability(ctx context.Context, doctorIds []ID, from booking.Date, days *int) (<-chan *live.Update, error) {
	s, err := r.Hub.Subscribe(ctx, watched(doctorIds, from, days))
	return begun(ctx, s, err)
}

func (r *subscriptionResolver) DayCounts(ctx context.Context, doctorIds []ID, from booking.Date, days *int) (<-chan *live.DayCounts, error) {
	c, err := r.Hub.Count(ctx, watched(doctorIds, from, days))
	return begun(ctx, c, err)
}

func (r *viewerResolver) Patient(ctx context.Context, obj *booking.Actor) (*auth.Patient, error) {
	if obj.Kind != booking.Patient {
		return nil, nil
	}
	return loadersOf(ctx).patients.load(ctx, obj.PatientID)
}

func (r *viewerResolver) Organization(ctx context.Context, obj *booking.Actor) (*schedule.Organization, error) {
	if obj.Kind != booking.Staff {
		return nil, nil
	}
	return loadersOf(ctx).organizations.load(ctx, obj.Organization)
}

func (r *waitingEntryResolver) Doctor(ctx context.Context, obj *booking.WaitingEntry) (*schedule.Doctor, error) {
	return loadersOf(ctx).doctors.load(ctx, obj.DoctorID)
}

func (r *waitingEntryResolver) Patient(ctx context.Context, obj *booking.WaitingEntry) (*auth.Patient, error) {
	return loadersOf(ctx).patients.load(ctx, obj.PatientID)
}

func (r *bookAppointmentInputResolver) Target(ctx context.Context, obj *booking.BookRequest, data *TargetInput) error {
	return data.into(&obj.Slot, &obj.Time)
}

func (r *holdSlotInputResolver) Target(ctx context.Context, obj *booking.BookRequest, data *TargetInput) error {
	return data.into(&obj.Slot, &obj.Time)
}

func (r *rescheduleAppointmentInputResolver) To(ctx context.Context, obj *booking.RescheduleRequest, data *TargetInput) error {
	return data.into(&obj.To, &obj.ToTime)
}

func (r *resolver) Appointment() AppointmentResolver { return &appointmentResolver{r} }

func (r *resolver) Doctor() DoctorResolver { return &doctorResolver{r} }

func (r *resolver) Mutation() MutationResolver { return &mutationResolver{r} }

func (r *resolver) Query() QueryResolver { return &queryResolver{r} }

func (r *resolver) Subscription() SubscriptionResolver { return &subscriptionResolver{r} }

func (r *resolver) Viewer() ViewerResolver { return &viewerResolver{r} }

func (r *resolver) WaitingEntry() WaitingEntryResolver { return &waitingEntryResolver{r} }

func (r *resolver) BookAppointmentInput() BookAppointmentInputResolver {
	return &bookAppointmentInputResolver{r}
}

func (r *resolver) HoldSlotInput() HoldSlotInputResolver { return &holdSlotInputResolver{r} }

func (r *resolver) RescheduleAppointmentInput() RescheduleAppointmentInputResolver {
	return &rescheduleAppointmentInputResolver{r}
}

type (
	appointmentResolver                struct{ *resolver }
	doctorResolver                     struct{ *resolver }
	mutationResolver                   struct{ *resolver }
	queryResolver                      struct{ *resolver }
	subscriptionResolver               struct{ *resolver }
	viewerResolver                     struct{ *resolver }
	waitingEntryResolver               struct{ *resolver }
	bookAppointmentInputResolver       struct{ *resolver }
	holdSlotInputResolver              struct{ *resolver }
	rescheduleAppointmentInputResolver struct{ *resolver }
)
