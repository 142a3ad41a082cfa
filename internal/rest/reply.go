package rest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

// The media types of requests and answers.
const (
	mediaJSON   = "application/json"
	mediaEvents = "text/event-stream"
)

// Values of headers, shared by all answers.
var (
	contentJSON    = []string{mediaJSON + "; charset=utf-8"}
	contentProblem = []string{"application/problem+json; charset=utf-8"}
	nosniff        = []string{"nosniff"}
	noStore        = []string{"no-store"}
	noCache        = []string{"no-cache"}
	privateNoCache = []string{"private, no-cache"}
)

// reply is what an operation came to.
type reply struct {
	status   int // 0 = 200
	body     any // to be written as JSON
	location string
	// public answers are the same for everybody, or for all but staff, and have an ETag. If the first
	// member of the body is asOf, it is not part of what the answer says: that it was read again does
	// not change the tag.
	public bool

	page   *page              // instead: a page of our own
	stream *live.Subscription // instead: what it brings, until it ends
}

// write writes the answer, or to whoever has it already, that it is still so.
func (out reply) write(w http.ResponseWriter, r *http.Request, actor booking.Actor) {
	if out.page != nil {
		out.page.write(w, r)
		return
	}
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(out.body); err != nil {
		panic(err) // nothing in them can fail
	}
	body := bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
	header := w.Header()
	header["X-Content-Type-Options"] = nosniff
	header["Cache-Control"] = noStore
	if out.public {
		tag := etag(body)
		header["Etag"] = []string{tag}
		header.Add("Vary", "Authorization")
		header["Cache-Control"] = noCache // it may be stored, and must be asked for again each time
		if actor.Kind != booking.Anonymous {
			header["Cache-Control"] = privateNoCache
		}
		if matches(r.Header.Values("If-None-Match"), tag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if out.location != "" {
		header["Location"] = []string{out.location}
	}
	header["Content-Type"] = contentJSON
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(max(out.status, http.StatusOK))
	w.Write(body)
}

// etag stands for what the body says. It is weak: asOf may differ.
func etag(body []byte) string {
	if bytes.HasPrefix(body, []byte(`{"asOf":`)) {
		body = body[bytes.IndexByte(body, ','):]
	}
	sum := sha256.Sum256(body)
	return `W/"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// matches reports whether a list of entity tags, as in If-None-Match, has the tag, weakly compared.
func matches(headers []string, tag string) bool {
	for _, header := range headers {
		for one := range strings.SplitSeq(header, ",") { // none of ours has a comma in it
			if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// The types below are those of the document, in its order of members.

type doctorJSON struct {
	ID             booking.DoctorID       `json:"id"`
	OrganizationID booking.OrganizationID `json:"organizationId"`
	Name           string                 `json:"name"`
	Specialty      string                 `json:"specialty"`
	TimeZone       string                 `json:"timeZone"`
	BookingRules   bookingRulesJSON       `json:"bookingRules"`
}

type bookingRulesJSON struct {
	HoldMinutes   int  `json:"holdMinutes"`
	NoticeMinutes *int `json:"noticeMinutes"`
	HorizonDays   *int `json:"horizonDays"`
	CutoffMinutes *int `json:"cutoffMinutes"`
	MaxActive     *int `json:"maxActive"`
	MaxHolds      *int `json:"maxHolds"`
	MaxPerDay     *int `json:"maxPerDay"`
	OfferMinutes  int  `json:"offerMinutes"`

	CancelledPlacesReturn schedule.PlacesReturn `json:"cancelledPlacesReturn"`
}

func doctor(d schedule.Doctor, o schedule.Organization) doctorJSON {
	return doctorJSON{d.ID, d.OrganizationID, d.Name, d.Specialty, d.TimeZone, bookingRulesJSON(o.BookingRules)}
}

type doctorPageJSON struct {
	Doctors []doctorJSON `json:"doctors"`
	Next    *string      `json:"next"`
}

type slotJSON struct {
	ID       booking.SlotID     `json:"id"`
	DoctorID booking.DoctorID   `json:"doctorId"`
	StartAt  time.Time          `json:"startAt"`
	EndAt    time.Time          `json:"endAt"`
	OpensAt  time.Time          `json:"opensAt"`
	Capacity int                `json:"capacity"`
	Free     int                `json:"free"`
	Status   booking.SlotStatus `json:"status"`
	Version  int64              `json:"version"`
}

func slots(all []booking.Slot) []slotJSON {
	list := make([]slotJSON, len(all))
	for i, s := range all {
		list[i] = slotJSON{s.ID, s.DoctorID, s.StartAt, s.EndAt, s.OpensAt, s.Capacity, s.Free(), s.Status, s.Version}
	}
	return list
}

type slotsJSON struct {
	Slots []slotJSON `json:"slots"`
}

type daySlotsJSON struct {
	AsOf     time.Time  `json:"asOf"` // the first: see reply.public
	Date     string     `json:"date"`
	TimeZone string     `json:"timeZone"`
	Slots    []slotJSON `json:"slots"`
}

type dayJSON struct {
	Date      string     `json:"date"`
	Free      int        `json:"free"`
	Capacity  int        `json:"capacity"`
	FirstFree *time.Time `json:"firstFree"`
}

type daysJSON struct {
	Days []dayJSON `json:"days"`
}

func days(all []booking.DaySummary) daysJSON {
	list := make([]dayJSON, len(all))
	for i, d := range all {
		list[i] = dayJSON{d.Date.String(), d.Free, d.Capacity, d.FirstFree}
	}
	return daysJSON{list}
}

type updateJSON struct {
	Kind     live.Kind        `json:"kind"`
	DoctorID booking.DoctorID `json:"doctorId"`
	From     string           `json:"from"`
	Days     int              `json:"days"`
	TimeZone string           `json:"timeZone"`
	Epoch    int64            `json:"epoch"`
	AsOf     *time.Time       `json:"asOf"`
	Slots    []slotJSON       `json:"slots"`
}

func update(u live.Update) updateJSON {
	return updateJSON{u.Kind, u.DoctorID, u.From.String(), u.Days, u.TimeZone, u.Epoch, u.AsOf, slots(u.Slots)}
}

type appointmentJSON struct {
	ID            booking.AppointmentID     `json:"id"`
	Status        booking.AppointmentStatus `json:"status"`
	SlotID        booking.SlotID            `json:"slotId"`
	DoctorID      booking.DoctorID          `json:"doctorId"`
	PatientID     booking.PatientID         `json:"patientId"`
	StartAt       time.Time                 `json:"startAt"`
	EndAt         time.Time                 `json:"endAt"`
	ReferralID    *string                   `json:"referralId"`
	OverlapReason *string                   `json:"overlapReason"`
	CreatedAt     time.Time                 `json:"createdAt"`
	ExpiresAt     *time.Time                `json:"expiresAt"`
	CancelledAt   *time.Time                `json:"cancelledAt"`
	CancelReason  *string                   `json:"cancelReason"`
	Replaces      *booking.AppointmentID    `json:"replaces"`
	ReplacedBy    *booking.AppointmentID    `json:"replacedBy"`
}

func appointment(a booking.Appointment) appointmentJSON {
	return appointmentJSON{a.ID, a.Status, a.SlotID, a.DoctorID, a.PatientID, a.StartAt, a.EndAt, a.ReferralID, a.OverlapReason,
		a.CreatedAt, a.ExpiresAt, a.CancelledAt, a.CancelReason, a.Replaces, a.ReplacedBy}
}

type appointmentPageJSON struct {
	Appointments []appointmentJSON `json:"appointments"`
	Next         *string           `json:"next"`
}

type patientJSON struct {
	ID     booking.PatientID `json:"id"`
	Name   *string           `json:"name"`
	Email  *string           `json:"email"`
	Phone  *string           `json:"phone"`
	Locale *string           `json:"locale"`
}

func patient(p auth.Patient) patientJSON {
	return patientJSON{p.ID, p.Name, p.Email, p.Phone, p.Locale}
}

// next is the cursor of a page's last element, if there is more after it.
func next[T interface{ Cursor() string }](page []T, hasNext bool) *string {
	if !hasNext || len(page) == 0 {
		return nil
	}
	return new(page[len(page)-1].Cursor())
}
