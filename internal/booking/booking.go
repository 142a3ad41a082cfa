// Package booking is the core: who may claim a place in a slot, and who gets it.
//
// A slot is a row of time_slot with a capacity and a count. A booking is won by one
// conditional update of that row, in the same transaction as the appointment and its event;
// nothing outside the database ever decides. The states of an appointment, and the events that tell
// of the steps between them:
//
//	          BOOKED                    CANCELLED
//	── Book ───────────▶ BOOKED ── Cancel ────────────────▶ CANCELLED
//	                      ▲ │ ▲                                 ▲
//	                      │ │ └────── Confirm  BOOKED ──┐       │ RELEASED
//	          HELD        │ │                           │       │
//	── Hold ──────────────┼─┼───────────────────────▶ HELD ── Release, Cancel
//	                      │ │                           │
//	             UNMARKED │ │ Mark                      └── its time is over ──▶ EXPIRED
//	                      │ ▼                                    EXPIRED
//	     ┌──▶ ARRIVED ◀──▶ FULFILLED ◀──▶ NO_SHOW ◀──┐
//	     └───────────────────────────────────────────┘
//	        ARRIVED        FULFILLED      NO_SHOW
//
// Reschedule cancels a BOOKED appointment and books another, of the same root, in one go; that is one
// event, RESCHEDULED, with both slots. A place is won by the same conditions whichever way somebody
// comes to it: the function claim has them.
//
// A place that comes free while somebody waits for it becomes a hold of theirs, made by the program
// itself, with the event OFFERED in the place of HELD: an offer (waiting.go). The place of what was
// booked and is cancelled may be withheld until the practice's next release; it counts as taken until
// then. That is told by no event of its own.
//
// Where a doctor's hours are flexible, there is no slot before its appointment: a time is asked for
// ([TimeTarget]), and the slot's row, kind FLEXIBLE, is made and claimed in one transaction, under the
// doctor's lock, which comes before all others. It is withdrawn when the time is given back, at once
// and for everybody.
//
// Nobody books, holds, confirms, moves or cancels what has begun, and nobody is marked as missing
// before. Marks follow each other in any order, and back to BOOKED. An event is named for what has
// become of the appointment: whoever wants to know of appointments that stand needs BOOKED and
// RESCHEDULED alone, whether they were held before or not; UNMARKED says that it is BOOKED as before.
//
// A hold that has lapsed counts as EXPIRED from that moment, whether or not anybody has written
// that down: it can't be confirmed, and whoever is hindered by it expires it and goes on. So does a
// place whose time of being withheld is over. Whoever has it written down ([Service.Expire]) only tells
// those who look on.
//
// Every call that books carries an idempotency key, scoped to its caller. The key is stored
// on the appointment it created, so a call may be repeated after any failure, an unknown
// commit included, and has one effect.
//
// A [Service] may be used by any number of goroutines at once.
package booking

import "time"

// Ids are typed so that one cannot be passed for another.
type (
	// OrganizationID names an organization.
	OrganizationID int64
	// DoctorID names a doctor.
	DoctorID int64
	// SlotID names a slot.
	SlotID int64
	// PatientID names a patient.
	PatientID int64
	// AppointmentID names an appointment.
	AppointmentID int64
)

// Slot is one bookable interval of a doctor, as it stood when it was read.
type Slot struct {
	ID       SlotID
	DoctorID DoctorID
	StartAt  time.Time // UTC
	EndAt    time.Time // UTC, after StartAt
	OpensAt  time.Time // UTC; not bookable before
	Capacity int       // at least 1
	Booked   int       // places taken, 0 to Capacity
	Status   SlotStatus
	Version  int64 // higher = newer, for the same slot
}

// Free is the number of places left, whether or not the slot can be booked now.
func (s Slot) Free() int { return s.Capacity - s.Booked }

// DaySummary is what is left of a doctor's day, in slots that have not begun and are not closed,
// whether they are open yet or not.
type DaySummary struct {
	Date      Date
	Free      int        // places left
	Capacity  int        // all places
	FirstFree *time.Time // UTC; start of the first slot with a place left, nil if there is none
}

// SlotStatus says whether a slot takes bookings.
type SlotStatus string

// The states of a slot.
const (
	SlotOpen      SlotStatus = "OPEN"
	SlotClosed    SlotStatus = "CLOSED"    // not bookable; its appointments stand
	SlotWithdrawn SlotStatus = "WITHDRAWN" // history only
)

// Appointment is a patient's claim on a slot.
type Appointment struct {
	ID             AppointmentID
	SlotID         SlotID
	DoctorID       DoctorID
	OrganizationID OrganizationID
	PatientID      PatientID
	Status         AppointmentStatus
	StartAt        time.Time // UTC
	EndAt          time.Time // UTC
	ReferralID     *string
	OverlapReason  *string // why staff let it overlap another one of the patient
	CreatedAt      time.Time
	ExpiresAt      *time.Time // set while Status is AppointmentHeld, and after AppointmentExpired
	CancelledAt    *time.Time // set when Status is AppointmentCancelled
	CancelReason   *string
	Replaces       *AppointmentID // which one was moved to make this one
	ReplacedBy     *AppointmentID // which one it became, set if it was moved
}

// AppointmentStatus is where an appointment stands.
type AppointmentStatus string

// The states of an appointment. HELD, BOOKED and ARRIVED are active: they block the patient's
// time. All but EXPIRED and CANCELLED occupy a place.
const (
	AppointmentHeld      AppointmentStatus = "HELD"
	AppointmentBooked    AppointmentStatus = "BOOKED"
	AppointmentArrived   AppointmentStatus = "ARRIVED"
	AppointmentFulfilled AppointmentStatus = "FULFILLED"
	AppointmentNoShow    AppointmentStatus = "NO_SHOW"
	AppointmentCancelled AppointmentStatus = "CANCELLED"
	AppointmentExpired   AppointmentStatus = "EXPIRED"
)

// ActorKind is the role in which somebody asks.
type ActorKind string

// The kinds of actor. The zero Actor is anonymous: it may read doctors and availability.
const (
	Anonymous ActorKind = ""
	Patient   ActorKind = "patient" // books and sees their own appointments only
	Staff     ActorKind = "staff"   // acts for everybody within one organization
	Partner   ActorKind = "partner" // acts for the patients it registered
	System    ActorKind = "system"  // this program itself; sees everything
)

// Actor is who asks. It is made from a verified token, or is [SystemActor]; never from input.
type Actor struct {
	Kind         ActorKind
	Subject      string         // stable and unique within Kind; never the id of a key that rotates
	PatientID    PatientID      // Patient: their row
	Organization OrganizationID // Staff: theirs
}

// SystemActor is the program itself.
var SystemActor = Actor{Kind: System, Subject: "openslot"}

// Caller is the actor's scope of idempotency keys and its name in the records.
func (a Actor) Caller() string { return string(a.Kind) + ":" + a.Subject }

// Registrar is the issuer of the patients that the actor registers and may therefore name:
// one per organization for staff, one per partner. It is empty for everybody else.
func (a Actor) Registrar() string {
	switch a.Kind {
	case Staff:
		return "organization:" + a.Organization.String()
	case Partner:
		return a.Caller()
	default:
		return ""
	}
}
