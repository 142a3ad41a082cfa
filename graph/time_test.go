package graph

import (
	"slices"
	"testing"
	"time"
)

const (
	bookTarget = `mutation($t:TargetInput!,$k:String!){bookAppointment(input:{target:$t,idempotencyKey:$k}){` + targetPayload + `}}`
	holdTarget = `mutation($i:HoldSlotInput!){holdSlot(input:$i){` + targetPayload + `}}`
	moveTarget = `mutation($a:ID!,$t:TargetInput,$k:String!){rescheduleAppointment(input:{appointmentId:$a,to:$t,idempotencyKey:$k}){` + targetPayload + `}}`
	freeStarts = `query($d:ID!,$date:Date!,$m:Int!){freeStarts(doctorId:$d,date:$date,minutes:$m){date timeZone asOf minutes durations starts}}`

	targetPayload = `appointment{id status startAt endAt slot{capacity free status}} replayed errors{code message} alternatives{id}`
)

type targetAnswer struct {
	Appointment *struct {
		ID, Status, StartAt, EndAt string
		Slot                       struct {
			Capacity, Free int
			Status         string
		}
	}
	payload
}

type startsAnswer struct {
	Date, TimeZone string
	AsOf           time.Time
	Minutes        int
	Durations      []int
	Starts         []string
}

// Flexible hours from the schedule to the appointment, as screens go: starts, one of them held, moved,
// given back.
func TestFlexibleHours(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	desk, ada, ben := w.staff(), w.patient("ada"), w.patient("ben")
	var windows []vars
	for _, day := range []string{"MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"} {
		windows = append(windows, vars{"weekday": day, "start": "14:00", "end": "16:00", "everyMinutes": 15, "durations": []int{45, 30}})
	}
	const createSchedule = `mutation($i:CreateScheduleInput!){createSchedule(input:$i){scheduleId errors{code}}}`
	made := get[struct{ ScheduleID *string }](w, desk, createSchedule, vars{"i": vars{"doctorId": w.northDoctor, "validFrom": "2026-01-01", "windows": windows}})
	if made.ScheduleID == nil {
		t.Fatal("no schedule")
	}
	date := noon(3).Format(time.DateOnly)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	y, m, d := noon(3).Date()
	two := time.Date(y, m, d, 14, 0, 0, 0, berlin)
	at := func(minutes int) string {
		return two.Add(time.Duration(minutes) * time.Minute).UTC().Format(time.RFC3339)
	}
	dayOf := func(token string, minutes int) startsAnswer {
		t.Helper()
		return get[startsAnswer](w, token, freeStarts, vars{"d": w.northDoctor, "date": date, "m": minutes})
	}
	day := func(minutes int) startsAnswer { t.Helper(); return dayOf("", minutes) }
	target := func(minutes, length int) vars {
		return vars{"time": vars{"doctorId": id(w.northDoctor), "startAt": at(minutes), "minutes": length}}
	}
	if s := day(45); s.Date != date || s.TimeZone != "Europe/Berlin" || s.Minutes != 45 || !slices.Equal(s.Durations, []int{30, 45}) ||
		!slices.Equal(s.Starts, []string{at(0), at(15), at(30), at(45), at(60), at(75)}) || time.Since(s.AsOf) > time.Minute {
		t.Errorf("starts: %+v", s)
	}
	held := get[targetAnswer](w, ada, holdTarget, vars{"i": vars{"target": target(15, 45), "idempotencyKey": "h"}})
	if a := held.Appointment; a == nil || a.Status != "HELD" || a.StartAt != at(15) || a.EndAt != at(60) || a.Slot.Capacity != 1 || a.Slot.Free != 0 {
		t.Fatalf("held: %+v", held)
	}
	if s := day(45); !slices.Equal(s.Starts, []string{at(60), at(75)}) {
		t.Errorf("starts beside a hold: %+v", s)
	}
	if p := get[targetAnswer](w, ben, bookTarget, vars{"t": target(30, 30), "k": "b"}); p.codes() != "SLOT_FULL" || p.Alternatives == nil || p.Appointment != nil {
		t.Errorf("taken: %+v", p)
	}
	if p := get[targetAnswer](w, ben, bookTarget, vars{"t": target(61, 30), "k": "b"}); p.codes() != "SLOT_CLOSED" {
		t.Errorf("off the grid: %+v", p)
	}
	get[payload](w, ada, confirm, vars{"a": held.Appointment.ID})
	moved := get[targetAnswer](w, ada, moveTarget, vars{"a": held.Appointment.ID, "t": target(30, 45), "k": "m"})
	if a := moved.Appointment; a == nil || a.Status != "BOOKED" || a.StartAt != at(30) || moved.Replayed {
		t.Fatalf("moved: %+v", moved)
	}
	if s := day(30); !slices.Equal(s.Starts, []string{at(0), at(75), at(90)}) {
		t.Errorf("starts beside an appointment: %+v", s)
	}
	// The day's list shows the time that is taken, and counts no place in it.
	listed := get[struct {
		Slots []struct {
			StartAt string
			Free    int
		}
	}](w, "", `query($d:ID!,$date:Date!){slots(doctorId:$d,date:$date,includeFull:true){slots{startAt free}}}`, vars{"d": w.northDoctor, "date": date})
	if len(listed.Slots) != 1 || listed.Slots[0].StartAt != at(30) || listed.Slots[0].Free != 0 {
		t.Errorf("slots: %+v", listed)
	}
	days := get[[]struct{ Free int }](w, "", `query($d:ID!,$date:Date!){days(doctorId:$d,from:$date,days:1){free}}`, vars{"d": w.northDoctor, "date": date})
	if len(days) != 1 || days[0].Free != 0 {
		t.Errorf("days: %+v", days)
	}
	get[payload](w, ada, `mutation($a:ID!){cancelAppointment(input:{appointmentId:$a}){changed errors{code}}}`, vars{"a": moved.Appointment.ID})
	if s := day(30); len(s.Starts) != 7 {
		t.Errorf("starts once all is given back: %+v", s)
	}
	get[struct{ Organization struct{ ID string } }](w, desk, `mutation{updateBookingRules(input:{noticeMinutes:10000}){organization{id}}}`, nil) // a week
	for token, want := range map[string]int{"": 0, ada: 0, desk: 7} {
		if s := dayOf(token, 30); len(s.Starts) != want {
			t.Errorf("within the notice: %+v, want %d", s, want)
		}
	}
	gone := get[targetAnswer](w, ada, `mutation($a:ID!){cancelAppointment(input:{appointmentId:$a}){`+`appointment{slot{status}}}}`, vars{"a": moved.Appointment.ID})
	if gone.Appointment.Slot.Status != "WITHDRAWN" {
		t.Errorf("its slot: %+v", gone.Appointment)
	}
}

// Just one target, written in the document or sent in variables.
func TestOneTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.patient("ada")
	slot := w.slot(w.northDoctor, noon(2), 1)
	at := vars{"doctorId": id(w.northDoctor), "startAt": "2026-10-12T07:15:00Z", "minutes": 15}
	const whole = `mutation($i:BookAppointmentInput!){bookAppointment(input:$i){replayed errors{code}}}`
	for name, input := range map[string]vars{
		"none":         {"idempotencyKey": "k"},
		"null":         {"idempotencyKey": "k", "target": nil},
		"empty":        {"idempotencyKey": "k", "target": vars{}},
		"both":         {"idempotencyKey": "k", "target": vars{"slotId": id(slot), "time": at}},
		"one and null": {"idempotencyKey": "k", "target": vars{"slotId": nil, "time": nil}},
		"and slotId":   {"idempotencyKey": "k", "slotId": id(slot), "target": vars{"time": at}},
		"slotId twice": {"idempotencyKey": "k", "slotId": id(slot), "target": vars{"slotId": id(slot)}},
		"no minutes":   {"idempotencyKey": "k", "target": vars{"time": vars{"doctorId": "1", "startAt": "2026-10-12T07:15:00Z"}}},
	} {
		if a := w.ask(ada, whole, vars{"i": input}); a.code() != "INVALID" {
			t.Errorf("%s: %s", name, a.Body)
		}
	}
	for name, document := range map[string]string{
		"both":  `mutation{bookAppointment(input:{idempotencyKey:"k",target:{slotId:1,time:{doctorId:1,startAt:"2026-10-12T07:15:00Z",minutes:15}}}){replayed}}`,
		"empty": `mutation{bookAppointment(input:{idempotencyKey:"k",target:{}}){replayed}}`,
		"move":  `mutation{rescheduleAppointment(input:{appointmentId:1,idempotencyKey:"k",toSlotId:1,to:{slotId:1}}){replayed}}`,
	} {
		if a := w.ask(ada, document, nil); a.code() != "INVALID" {
			t.Errorf("%s: %s", name, a.Body)
		}
	}
	if p := get[payload](w, ada, whole, vars{"i": vars{"idempotencyKey": "k", "target": vars{"slotId": id(slot)}}}); len(p.Errors) > 0 {
		t.Errorf("a slot as target: %+v", p)
	}
	if p := get[payload](w, ada, whole, vars{"i": vars{"idempotencyKey": "k", "slotId": id(slot)}}); !p.Replayed {
		t.Errorf("the same in short: %+v", p)
	}
}
