package graph

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
	"openslot/internal/schedule"
)

// refusal, appointment and slot are what the tests read of the contract's types.
type refusal struct {
	Code, Message string
	RetryAfter    *int
}

type slotJSON struct {
	ID                      string
	StartAt, EndAt, OpensAt time.Time
	Capacity, Free, Version int
	Status                  string
}

type appointmentJSON struct {
	ID, Status   string
	CancelReason *string
	Slot         slotJSON
	Doctor       struct {
		Name         string
		Organization struct{ Name string }
	}
	Patient struct {
		ID          string
		Name, Email *string
	}
}

type payload struct {
	Appointment  *appointmentJSON
	Replayed     bool
	Changed      bool
	Errors       []refusal
	Alternatives []slotJSON
}

func (p payload) codes() string {
	var codes []string
	for _, e := range p.Errors {
		codes = append(codes, e.Code)
	}
	return strings.Join(codes, ",")
}

const (
	book = `mutation($s:ID!,$p:ID,$k:String!){bookAppointment(input:{slotId:$s,patientId:$p,idempotencyKey:$k}){
		appointment{id status slot{id free} doctor{name organization{name}} patient{id name}} replayed errors{code message retryAfter} alternatives{id free startAt}}}`
	cancel = `mutation($a:ID!,$r:String){cancelAppointment(input:{appointmentId:$a,reason:$r}){appointment{id status cancelReason} changed errors{code message}}}`
)

func TestBooking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, ben := w.patient("ada"), w.patient("ben")
	single := w.slot(w.northDoctor, noon(2), 1)
	later := w.slot(w.northDoctor, noon(3), 1)

	first := get[payload](w, ada, book, vars{"s": id(single), "k": "k1"})
	if first.Appointment == nil || first.Appointment.Status != "BOOKED" || first.Replayed || first.Errors == nil || first.Alternatives == nil ||
		first.Appointment.Slot.Free != 0 || first.Appointment.Doctor.Organization.Name != "North Practice" {
		t.Fatalf("book: %+v", first)
	}
	if again := get[payload](w, ada, book, vars{"s": id(single), "k": "k1"}); !again.Replayed || again.Appointment.ID != first.Appointment.ID {
		t.Errorf("replay: %+v", again)
	}
	full := get[payload](w, ben, book, vars{"s": id(single), "k": "k1"})
	if full.codes() != "SLOT_FULL" || full.Appointment != nil || full.Errors[0].Message == "" ||
		len(full.Alternatives) != 1 || full.Alternatives[0].ID != id(later) {
		t.Errorf("full: %+v", full)
	}
	if p := get[payload](w, ada, book, vars{"s": id(single), "k": "k2"}); p.codes() != "ALREADY_BOOKED" || p.Appointment == nil || p.Appointment.ID != first.Appointment.ID {
		t.Errorf("again with a new key: %+v", p)
	}
	if p := get[payload](w, ada, book, vars{"s": id(later), "k": "k1"}); p.codes() != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("B35 key for another slot: %+v", p)
	}
	unopened := sql[booking.SlotID](w, `INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		VALUES ($1, now() + interval '9 days', now() + interval '9 days 1 hour', now() + interval '1 hour', 1) RETURNING id`, w.northDoctor)
	if p := get[payload](w, ada, book, vars{"s": id(unopened), "k": "k3"}); p.codes() != "SLOT_NOT_OPEN" || p.Errors[0].RetryAfter == nil || *p.Errors[0].RetryAfter < 3000 {
		t.Errorf("not open yet: %+v", p)
	}
	if a := w.ask(ada, book, vars{"s": "999999", "k": "k4"}); a.code() != "NOT_FOUND" || string(a.Data) != "null" {
		t.Errorf("unknown slot: %s", a.Body)
	}

	gone := get[payload](w, ada, cancel, vars{"a": first.Appointment.ID, "r": "ill"})
	if !gone.Changed || gone.Appointment.Status != "CANCELLED" || *gone.Appointment.CancelReason != "ill" || gone.Errors == nil {
		t.Errorf("cancel: %+v", gone)
	}
	if p := get[payload](w, ada, cancel, vars{"a": first.Appointment.ID, "r": nil}); p.Changed || p.Appointment.Status != "CANCELLED" {
		t.Errorf("cancel again: %+v", p)
	}
	if p := get[payload](w, ben, book, vars{"s": id(single), "k": "k1"}); p.Appointment == nil || p.Replayed {
		t.Errorf("B21 the place is free again, and the refused key too: %+v", p)
	}
	sql[int](w, `UPDATE appointment SET during = tstzrange(now() - interval '1 hour', now()), status = 'BOOKED' WHERE id = $1 RETURNING 1`, first.Appointment.ID)
	if p := get[payload](w, ada, cancel, vars{"a": first.Appointment.ID}); p.codes() != "TOO_LATE" || p.Appointment != nil {
		t.Errorf("B26 cancel of the past: %+v", p)
	}
}

func TestAvailability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.slot(w.northDoctor, noon(2), 3)
	full := w.slot(w.northDoctor, noon(2).Add(time.Hour), 1)
	closed := w.slot(w.northDoctor, noon(2).Add(2*time.Hour), 1)
	get[payload](w, w.patient("ada"), book, vars{"s": id(full), "k": "k"})
	sql[int](w, `UPDATE time_slot SET status = 'CLOSED' WHERE id = $1 RETURNING 1`, closed)
	type day struct {
		Date, TimeZone string
		AsOf           time.Time
		Slots          []slotJSON
	}
	const list = `query($d:ID!,$day:Date!,$all:Boolean){slots(doctorId:$d,date:$day,includeFull:$all){date timeZone asOf slots{id startAt endAt opensAt capacity free status version}}}`
	ids := func(d day) (ids []string) {
		for _, s := range d.Slots {
			ids = append(ids, s.ID)
		}
		return ids
	}
	date := noon(2).Format(time.DateOnly)
	some := get[day](w, "", list, vars{"d": id(w.northDoctor), "day": date})
	if some.Date != date || some.TimeZone != "Europe/Berlin" || time.Since(some.AsOf) > time.Minute || !slices.Equal(ids(some), []string{id(free)}) {
		t.Errorf("free: %+v", some)
	}
	if s := some.Slots[0]; !s.StartAt.Equal(noon(2)) || s.EndAt.Sub(s.StartAt) != 30*time.Minute || s.Capacity != 3 || s.Free != 3 || s.Status != "OPEN" {
		t.Errorf("slot: %+v", s)
	}
	all := get[day](w, "", list, vars{"d": id(w.northDoctor), "day": date, "all": true})
	if !slices.Equal(ids(all), []string{id(free), id(full), id(closed)}) || all.Slots[1].Free != 0 || all.Slots[2].Status != "CLOSED" {
		t.Errorf("all: %+v", all)
	}
	if a := w.ask("", list, vars{"d": "999999", "day": date}); a.code() != "NOT_FOUND" {
		t.Errorf("unknown doctor: %s", a.Body)
	}
	type summary struct {
		Date           string
		Free, Capacity int
		FirstFree      *time.Time
	}
	const days = `query($d:ID!,$from:Date!,$n:Int){days(doctorId:$d,from:$from,days:$n){date free capacity firstFree}}`
	week := get[[]summary](w, "", days, vars{"d": id(w.northDoctor), "from": noon(1).Format(time.DateOnly), "n": 3})
	if len(week) != 3 || week[0].Free != 0 || week[0].FirstFree != nil || week[1].Date != date || week[1].Free != 3 || week[1].Capacity != 4 || !week[1].FirstFree.Equal(noon(2)) {
		t.Errorf("days: %+v", week)
	}
	if n := len(get[[]summary](w, "", `query($d:ID!,$from:Date!){days(doctorId:$d,from:$from){date free capacity firstFree}}`, vars{"d": id(w.northDoctor), "from": date})); n != 14 {
		t.Errorf("%d days where none is said", n)
	}
}

// Nested objects cost one query for each kind, however many there are and by whatever way they are
// reached.
func TestLoaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.patient("ada")
	for i := range 7 {
		doctor := sql[booking.DoctorID](w, `INSERT INTO doctor (organization_id, name) VALUES ($1, $2) RETURNING id`, w.south, fmt.Sprint("Doctor ", i))
		get[payload](w, ada, book, vars{"s": id(w.slot(doctor, noon(2+i), 1)), "k": fmt.Sprint(i)})
	}
	const nested = `slot{id free} doctor{name organization{name}} patient{id name}`
	w.trace.take()
	for query, want := range map[string]int{
		`{doctors{nodes{name}}}`: 1,
		`{doctors{nodes{name organization{name}} edges{node{organization{id}}}}}`: 2,
		`{myAppointments{nodes{id}}}`: 1,
		`{myAppointments{nodes{id ` + nested + `} edges{cursor node{id ` + nested + `}}}}`:      5,
		`{a:myAppointments(first:3){nodes{doctor{name}}} b:doctors{nodes{organization{name}}}}`: 4,
		`{me{role patient{id} organization{id}}}`:                                               1,
	} {
		if a := w.ask(ada, query, nil); len(a.Errors) > 0 || strings.Contains(a.Body, `"nodes":[]`) {
			t.Errorf("%s: %s", query, a.Body)
		}
		if asked := w.trace.take(); len(asked) != want {
			t.Errorf("%s: %d queries, want %d:\n%s", query, len(asked), want, strings.Join(asked, "\n"))
		}
	}
}

// A refusal costs what was asked for and no more.
func TestRefusalCosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, ben := w.patient("ada"), w.patient("ben")
	slot := id(w.slot(w.northDoctor, noon(2), 1))
	get[payload](w, ada, book, vars{"s": slot, "k": "k"})
	get[payload](w, ben, book, vars{"s": slot, "k": "k"}) // both are signed in
	for _, c := range []struct {
		token, code, fields string
		queries             int
	}{
		{ben, "SLOT_FULL", "replayed", 1},
		{ben, "SLOT_FULL", "alternatives{id}", 2},
		{ben, "SLOT_FULL", "...on BookAppointmentPayload{other:alternatives{id}}", 2},
		{ben, "SLOT_FULL", "alternatives@skip(if:true){id}", 1},
		{ada, "ALREADY_BOOKED", "replayed", 1},
		{ada, "ALREADY_BOOKED", "appointment{id}", 2},
	} {
		w.trace.take()
		p := get[payload](w, c.token, `mutation($s:ID!){bookAppointment(input:{slotId:$s,idempotencyKey:"new"}){errors{code} `+c.fields+`}}`, vars{"s": slot})
		if asked := w.trace.take(); p.codes() != c.code || len(asked) != c.queries {
			t.Errorf("%s with %s: %+v after %d queries, want %d:\n%s", c.code, c.fields, p, len(asked), c.queries, strings.Join(asked, "\n"))
		}
	}
}

func TestConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 23 {
		sql[int](w, `INSERT INTO doctor (organization_id, name, specialty) VALUES ($1, $2, 'Dermatology') RETURNING 1`, w.north, fmt.Sprintf("Zoe %d%%", i/2))
	}
	type connection struct {
		Edges []struct {
			Cursor string
			Node   struct{ ID string }
		}
		Nodes    []struct{ ID string }
		PageInfo struct {
			HasNextPage, HasPreviousPage bool
			StartCursor, EndCursor       *string
		}
	}
	const list = `query($s:String,$o:ID,$n:Int,$a:String){doctors(search:$s,organizationId:$o,first:$n,after:$a){edges{cursor node{id}} nodes{id} pageInfo{hasNextPage hasPreviousPage startCursor endCursor}}}`
	var seen []string
	var after any
	for page := 0; ; page++ {
		c := get[connection](w, "", list, vars{"s": "zoe", "o": id(w.north), "n": 10, "a": after})
		for i, e := range c.Edges {
			seen = append(seen, e.Node.ID)
			if c.Nodes[i].ID != e.Node.ID {
				t.Errorf("nodes and edges differ: %+v", c)
			}
		}
		if c.PageInfo.HasPreviousPage != (page > 0) || *c.PageInfo.StartCursor != c.Edges[0].Cursor || *c.PageInfo.EndCursor != c.Edges[len(c.Edges)-1].Cursor {
			t.Errorf("page %d: %+v", page, c.PageInfo)
		}
		if !c.PageInfo.HasNextPage {
			break
		}
		after = *c.PageInfo.EndCursor
	}
	slices.Sort(seen)
	if len(seen) != 23 || len(slices.Compact(seen)) != 23 {
		t.Errorf("saw %d doctors: %v", len(seen), seen)
	}
	for search, want := range map[string]int{"surg": 2, "%": 20, "_": 0, "nobody": 0, "": 20} {
		c := get[connection](w, "", list, vars{"s": search, "n": 20})
		if len(c.Nodes) != want {
			t.Errorf("search %q: %d", search, len(c.Nodes))
		}
		if want == 0 && (c.Nodes == nil || c.Edges == nil || c.PageInfo.StartCursor != nil) {
			t.Errorf("search %q: %+v", search, c)
		}
	}
	if n := len(get[connection](w, "", list, nil).Nodes); n != 20 {
		t.Errorf("%d where no number is said", n)
	}
}

// A practice sets itself up through the API alone, registers a patient and books for them.
func TestStaff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	system := w.token(booking.System, "ops", 0)
	organization := get[struct{ Organization struct{ ID, TimeZone string } }](w, system,
		`mutation{createOrganization(input:{name:"New",timeZone:"Asia/Tokyo"}){organization{id timeZone}}}`, nil).Organization
	var org booking.OrganizationID
	if err := json.Unmarshal([]byte(organization.ID), &org); err != nil {
		t.Fatal(err)
	}
	desk := w.token(booking.Staff, "desk", org)
	doctor := get[struct {
		Doctor struct{ ID, Specialty, TimeZone string }
	}](w, desk, `mutation{createDoctor(input:{name:"Cid Example"}){doctor{id specialty timeZone}}}`, nil).Doctor
	if doctor.TimeZone != "Asia/Tokyo" || doctor.Specialty != "" {
		t.Errorf("%+v", doctor)
	}
	const createSchedule = `mutation($d:ID!,$from:Date!,$shifts:[ShiftInput!]!){createSchedule(input:{doctorId:$d,validFrom:$from,shifts:$shifts}){scheduleId errors{code}}}`
	var shifts []vars
	for _, day := range weekdays[1:] {
		shifts = append(shifts, vars{"weekday": day, "start": "20:00", "end": "24:00", "slotMinutes": 60})
	}
	type schedulePayload struct {
		ScheduleID *string
		Errors     []refusal
	}
	if p := get[schedulePayload](w, desk, createSchedule, vars{"d": doctor.ID, "from": "2026-01-01", "shifts": shifts}); p.ScheduleID == nil || len(p.Errors) > 0 {
		t.Fatalf("%+v", p)
	}
	if p := get[schedulePayload](w, desk, createSchedule, vars{"d": doctor.ID, "from": "2026-02-01", "shifts": shifts}); p.ScheduleID != nil || len(p.Errors) != 1 || p.Errors[0].Code != "SCHEDULE_IN_USE" {
		t.Errorf("second template: %+v", p)
	}
	const generate = `mutation($d:ID!,$n:Int!){generateSlots(input:{doctorId:$d,days:$n}){added}}`
	added := get[struct{ Added int }](w, desk, generate, vars{"d": doctor.ID, "n": 3}).Added
	if added < 8 || added > 12 { // today's may have begun
		t.Errorf("added %d", added)
	}
	if again := get[struct{ Added int }](w, desk, generate, vars{"d": doctor.ID, "n": 3}).Added; again != 0 {
		t.Errorf("B68 added %d again", again)
	}
	patient := get[struct {
		Patient struct{ ID, Name string }
		Created bool
	}](w, desk, `mutation{registerPatient(input:{subject:"card-1",name:"Pat O'Example 😀",email:"pat@example.org"}){patient{id name} created}}`, nil)
	if !patient.Created || patient.Patient.Name != "Pat O'Example 😀" {
		t.Errorf("%+v", patient)
	}
	slot := sql[booking.SlotID](w, `SELECT max(id) FROM time_slot WHERE doctor_id = $1`, doctor.ID)
	booked := get[payload](w, desk, book, vars{"s": id(slot), "p": patient.Patient.ID, "k": "k"})
	if booked.Appointment == nil || *booked.Appointment.Patient.Name != patient.Patient.Name {
		t.Fatalf("%+v", booked)
	}
	date := sql[string](w, `SELECT (start_at AT TIME ZONE 'Asia/Tokyo')::date::text FROM time_slot WHERE id = $1`, slot)
	const day = `query($d:ID!,$day:Date!){appointments(doctorId:$d,date:$day){nodes{id patient{name email}}}}`
	type nodes struct{ Nodes []appointmentJSON }
	if got := get[nodes](w, desk, day, vars{"d": doctor.ID, "day": date}).Nodes; len(got) != 1 || *got[0].Patient.Email != "pat@example.org" {
		t.Errorf("the day: %+v", got)
	}
	if got := get[nodes](w, w.staff(), day, vars{"d": doctor.ID, "day": date}).Nodes; len(got) != 0 {
		t.Errorf("another organization sees %+v", got)
	}
	const update = `mutation($s:ID!,$c:Int,$st:SlotStatus){updateSlot(input:{slotId:$s,capacity:$c,status:$st}){slot{capacity free status} errors{code}}}`
	type updated struct {
		Slot   *slotJSON
		Errors []refusal
	}
	if p := get[updated](w, desk, update, vars{"s": id(slot), "c": 5, "st": "CLOSED"}); p.Slot == nil || p.Slot.Free != 4 || p.Slot.Status != "CLOSED" {
		t.Errorf("update: %+v", p)
	}
	get[payload](w, w.patient("x"), book, vars{"s": id(slot), "k": "k"})
	if p := get[updated](w, desk, update, vars{"s": id(slot), "st": "OPEN"}); p.Slot == nil || p.Slot.Status != "OPEN" || p.Slot.Capacity != 5 {
		t.Errorf("reopen: %+v", p)
	}
	get[payload](w, w.patient("x"), book, vars{"s": id(slot), "k": "k"})
	if p := get[updated](w, desk, update, vars{"s": id(slot), "c": 1}); p.Slot != nil || len(p.Errors) != 1 || p.Errors[0].Code != "CAPACITY_IN_USE" {
		t.Errorf("too few places: %+v", p)
	}
}

// Whatever is sent, the answer is a coded refusal: nothing is our fault.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := id(w.slot(w.northDoctor, noon(2), 1))
	ada, desk := w.patient("ada"), w.staff()
	shift := func(change vars) vars {
		s := vars{"weekday": "MONDAY", "start": "09:00", "end": "10:00", "slotMinutes": 30}
		for k, v := range change {
			s[k] = v
		}
		return vars{"i": vars{"doctorId": id(w.northDoctor), "validFrom": "2026-01-01", "shifts": []any{s}}}
	}
	const (
		createSchedule = `mutation($i:CreateScheduleInput!){createSchedule(input:$i){scheduleId}}`
		register       = `mutation($i:RegisterPatientInput!){registerPatient(input:$i){created}}`
		update         = `mutation($i:UpdateSlotInput!){updateSlot(input:$i){errors{code}}}`
		bookInput      = `mutation($i:BookAppointmentInput!){bookAppointment(input:$i){replayed}}`
		day            = `query($d:ID!,$day:Date!){slots(doctorId:$d,date:$day){date}}`
		days           = `query($d:ID!,$n:Int){days(doctorId:$d,from:"2026-01-01",days:$n){date}}`
	)
	const invalid, notFound = "INVALID", "NOT_FOUND"
	for name, c := range map[string]struct {
		token, query string
		variables    vars
		code         string
	}{
		"no key":                 {ada, bookInput, vars{"i": vars{"slotId": slot}}, invalid},
		"empty key":              {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": ""}}, invalid},
		"long key":               {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": strings.Repeat("k", 65)}}, invalid},
		"NUL in key":             {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": "a\x00b"}}, invalid},
		"key is a number":        {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": 7}}, invalid},
		"key is null":            {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": nil}}, invalid},
		"slot is a word":         {ada, bookInput, vars{"i": vars{"slotId": "one", "idempotencyKey": "k"}}, invalid},
		"slot is an object":      {ada, bookInput, vars{"i": vars{"slotId": vars{}, "idempotencyKey": "k"}}, invalid},
		"slot is a fraction":     {ada, bookInput, vars{"i": vars{"slotId": 1.5, "idempotencyKey": "k"}}, invalid},
		"slot beyond 64 bits":    {ada, bookInput, vars{"i": vars{"slotId": json.Number("9223372036854775808"), "idempotencyKey": "k"}}, invalid},
		"slot unknown":           {ada, bookInput, vars{"i": vars{"slotId": json.Number("9223372036854775807"), "idempotencyKey": "k"}}, notFound},
		"unknown input field":    {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": "k", "price": 1}}, invalid},
		"input is a list":        {ada, bookInput, vars{"i": []any{}}, invalid},
		"input is null":          {ada, bookInput, vars{"i": nil}, invalid},
		"no input":               {ada, bookInput, nil, invalid},
		"other patient":          {ada, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": "k", "patientId": "999"}}, notFound},
		"no patient":             {desk, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": "k"}}, invalid},
		"patient is null":        {desk, bookInput, vars{"i": vars{"slotId": slot, "idempotencyKey": "k", "patientId": nil}}, invalid},
		"long reason":            {ada, cancel, vars{"a": "1", "r": strings.Repeat("é", 501)}, invalid},
		"NUL in reason":          {ada, cancel, vars{"a": "1", "r": "\x00"}, invalid},
		"no date":                {"", day, vars{"d": "1", "day": "tomorrow"}, invalid},
		"30 February":            {"", day, vars{"d": "1", "day": "2026-02-30"}, invalid},
		"empty date":             {"", day, vars{"d": "1", "day": ""}, invalid},
		"date is null":           {"", day, vars{"d": "1", "day": nil}, invalid},
		"date is a number":       {"", day, vars{"d": "1", "day": 20260101}, invalid},
		"NUL in date":            {"", day, vars{"d": "1", "day": "2026-01-01\x00"}, invalid},
		"first of days":          {"", day, vars{"d": id(w.northDoctor), "day": "0001-01-01"}, ""},
		"last of days":           {"", day, vars{"d": id(w.northDoctor), "day": "9999-12-31"}, ""},
		"no days":                {"", days, vars{"d": id(w.northDoctor), "n": 0}, invalid},
		"many days":              {"", days, vars{"d": id(w.northDoctor), "n": 32}, invalid},
		"days is null":           {"", days, vars{"d": id(w.northDoctor), "n": nil}, invalid},
		"weekday in lower case":  {desk, createSchedule, shift(vars{"weekday": "monday"}), invalid},
		"weekday is a number":    {desk, createSchedule, shift(vars{"weekday": 1}), invalid},
		"no time":                {desk, createSchedule, shift(vars{"start": "9"}), invalid},
		"time beyond a day":      {desk, createSchedule, shift(vars{"end": "24:01"}), invalid},
		"no minutes":             {desk, createSchedule, shift(vars{"slotMinutes": 0}), invalid},
		"minutes below zero":     {desk, createSchedule, shift(vars{"everyMinutes": -1}), invalid},
		"minutes are a string":   {desk, createSchedule, shift(vars{"slotMinutes": "30"}), invalid},
		"minutes are a fraction": {desk, createSchedule, shift(vars{"slotMinutes": 30.5}), invalid},
		"capacity of 2^31":       {desk, createSchedule, shift(vars{"capacity": 1 << 31}), invalid},
		"no shifts":              {desk, createSchedule, vars{"i": vars{"doctorId": id(w.northDoctor), "validFrom": "2026-01-01", "shifts": []any{}}}, invalid},
		"shift is null":          {desk, createSchedule, vars{"i": vars{"doctorId": id(w.northDoctor), "validFrom": "2026-01-01", "shifts": []any{nil}}}, invalid},
		"ends before it begins":  {desk, createSchedule, vars{"i": vars{"doctorId": id(w.northDoctor), "validFrom": "2026-01-02", "validUntil": "2026-01-01", "shifts": shift(nil)["i"].(vars)["shifts"]}}, invalid},
		"status WITHDRAWN":       {desk, update, vars{"i": vars{"slotId": slot, "status": "WITHDRAWN"}}, invalid},
		"status in lower case":   {desk, update, vars{"i": vars{"slotId": slot, "status": "closed"}}, invalid},
		"nothing to change":      {desk, update, vars{"i": vars{"slotId": slot, "capacity": nil}}, invalid},
		"B75 long name":          {desk, register, vars{"i": vars{"subject": "s", "name": strings.Repeat("é", 201)}}, invalid},
		"empty subject":          {desk, register, vars{"i": vars{"subject": ""}}, invalid},
		"NUL in name":            {desk, register, vars{"i": vars{"subject": "s", "name": "a\x00"}}, invalid},
		"no address":             {desk, register, vars{"i": vars{"subject": "s", "email": "nobody"}}, invalid},
		"NUL in search":          {"", `query($s:String){doctors(search:$s){nodes{id}}}`, vars{"s": "\x00"}, invalid},
		"long search":            {"", `query($s:String){doctors(search:$s){nodes{id}}}`, vars{"s": strings.Repeat("x", 201)}, invalid},
		"NUL in cursor":          {"", `query($s:String){doctors(after:$s){nodes{id}}}`, vars{"s": "\x00"}, invalid},
		"cursor of another list": {ada, `query($s:String){myAppointments(after:$s){nodes{id}}}`, vars{"s": "eyJOYW1lIjoieCIsIklEIjoxfQ"}, invalid},
		"days to generate":       {desk, `mutation($d:ID!,$n:Int!){generateSlots(input:{doctorId:$d,days:$n}){added}}`, vars{"d": id(w.northDoctor), "n": schedule.MaxDays + 1}, invalid},
		"unknown zone":           {w.token(booking.System, "ops", 0), `mutation{createOrganization(input:{name:"X",timeZone:"Mars/Olympus"}){organization{id}}}`, nil, invalid},
	} {
		a := w.ask(c.token, c.query, c.variables)
		if a.Status != 200 || a.code() != c.code {
			t.Errorf("%s: %d %s, want %q", name, a.Status, a.Body, c.code)
		}
	}
	if log := w.log.String(); strings.Contains(log, "internal error") {
		t.Errorf("something was our fault: %s", log)
	}
}
