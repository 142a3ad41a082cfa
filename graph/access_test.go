package graph

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/booking"
)

// callers are everybody who may ask, in the order of the table's columns.
var callers = []string{"nobody", "patient", "other patient", "staff", "other staff", "partner", "system"}

// Who gets what, for every field of Query, Mutation and Subscription. The patient has an appointment
// with the staff's doctor and contact data; the partner has registered another. A field that is
// new fails this test until it has its row.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tokens := map[string]string{
		"nobody":        "",
		"patient":       w.patient("ada"),
		"other patient": w.patient("ben"),
		"staff":         w.staff(),
		"other staff":   w.token(booking.Staff, "desk", w.south),
		"partner":       w.token(booking.Partner, "portal", 0),
		"system":        w.token(booking.System, "ops", 0),
	}
	const canary = "canary@example.org"
	slot := w.slot(w.northDoctor, noon(2), 1000)
	standing := get[payload](w, tokens["patient"], book, vars{"s": id(slot), "k": "k"}).Appointment
	patient := standing.Patient.ID
	sql[int](w, `UPDATE patient SET email = $1 WHERE id = $2 RETURNING 1`, canary, patient)
	registered := get[struct{ Patient struct{ ID string } }](w, tokens["staff"], `mutation{registerPatient(input:{subject:"eve"}){patient{id}}}`, nil).Patient.ID
	date := noon(2).Format(time.DateOnly)
	entry := get[entryPayload](w, tokens["patient"], join, vars{"d": id(w.northDoctor), "f": date, "t": noon(3).Format(time.DateOnly)}).Entry.ID
	const (
		data = "data" // an answer that is not null
		null = "null"
		una  = "UNAUTHENTICATED"
		forb = "FORBIDDEN"
		none = "NOT_FOUND"
		bad  = "INVALID"
	)
	// One column per caller. sees says which of them may find the patient's address in the answer.
	table := map[string]struct {
		query string
		want  [7]string
		sees  []string
	}{
		"Query.me":             {`{me{role patient{email} organization{name}}}`, [7]string{null, data, data, data, data, data, data}, []string{"patient"}},
		"Query.doctor":         {`{doctor(id:%doctor){name organization{name}}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Query.doctors":        {`{doctors{nodes{name}}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Query.slots":          {`{slots(doctorId:%doctor,date:"%date"){slots{free}}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Query.freeStarts":     {`{freeStarts(doctorId:%doctor,date:"%date",minutes:30){starts}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Query.days":           {`{days(doctorId:%doctor,from:"%date"){free}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Query.appointment":    {`{appointment(id:%standing){id patient{email}}}`, [7]string{null, data, null, data, null, null, data}, []string{"patient", "staff", "system"}},
		"Query.myAppointments": {`{myAppointments{nodes{patient{email}}}}`, [7]string{una, data, data, forb, forb, forb, forb}, []string{"patient"}},
		"Query.appointments":   {`{appointments(doctorId:%doctor,date:"%date"){nodes{patient{email}}}}`, [7]string{una, forb, forb, data, data, forb, forb}, []string{"staff"}},
		"Query.waitingEntry":   {`{waitingEntry(id:%entry){status patient{email}}}`, [7]string{null, data, null, data, null, null, data}, []string{"patient", "staff", "system"}},
		"Query.myWaitingList":  {`{myWaitingList{nodes{patient{email}}}}`, [7]string{una, data, data, forb, forb, forb, forb}, []string{"patient"}},
		"Query.waitingList":    {`{waitingList(doctorId:%doctor){nodes{patient{email}}}}`, [7]string{una, forb, forb, data, data, forb, forb}, []string{"staff"}},

		// Without patientId: for oneself.
		"Mutation.bookAppointment": {`mutation{bookAppointment(input:{slotId:%slot,idempotencyKey:"k2"}){errors{code} appointment{patient{email}}}}`, [7]string{una, data, data, bad, bad, bad, bad}, []string{"patient"}},
		// For the patient: those who know them. Staff by the appointment that stands.
		"Mutation.bookAppointment for the patient": {`mutation{bookAppointment(input:{slotId:%slot,patientId:%patient,idempotencyKey:"k3"}){errors{code} appointment{patient{email}}}}`, [7]string{una, data, none, data, none, none, data}, []string{"patient", "staff", "system"}},
		"Mutation.holdSlot":                        {`mutation{holdSlot(input:{slotId:%slot,idempotencyKey:"k4"}){errors{code} appointment{patient{email}}}}`, [7]string{una, data, data, bad, bad, bad, bad}, []string{"patient"}},
		"Mutation.confirmAppointment":              {`mutation{confirmAppointment(input:{appointmentId:%standing}){changed appointment{patient{email}}}}`, [7]string{una, data, none, data, none, none, data}, []string{"patient", "staff", "system"}},
		"Mutation.releaseHold":                     {`mutation{releaseHold(input:{appointmentId:%standing}){changed errors{code}}}`, [7]string{una, data, none, data, none, none, data}, nil},
		"Mutation.rescheduleAppointment":           {`mutation{rescheduleAppointment(input:{appointmentId:%standing,toSlotId:%slot,idempotencyKey:"k5"}){replayed appointment{patient{email}}}}`, [7]string{una, data, none, data, none, none, data}, []string{"patient", "staff", "system"}},
		"Mutation.joinWaitingList":                 {`mutation{joinWaitingList(input:{doctorId:%doctor,from:"%date",to:"%date"}){joined entry{patient{email}}}}`, [7]string{una, data, data, bad, bad, bad, bad}, []string{"patient"}},
		"Mutation.leaveWaitingList":                {`mutation{leaveWaitingList(input:{entryId:%entry}){changed entry{patient{email}}}}`, [7]string{una, data, none, data, none, none, data}, []string{"patient", "staff", "system"}},
		"Mutation.markAppointment":                 {`mutation{markAppointment(input:{appointmentId:%standing,status:BOOKED}){changed appointment{patient{email}}}}`, [7]string{una, forb, forb, data, none, forb, data}, []string{"staff", "system"}},
		"Mutation.registerPatient":                 {`mutation{registerPatient(input:{subject:"ada"}){created patient{email}}}`, [7]string{una, forb, forb, data, data, data, forb}, nil},
		"Mutation.createOrganization":              {`mutation{createOrganization(input:{name:"%caller",timeZone:"UTC"}){organization{id}}}`, [7]string{una, forb, forb, forb, forb, forb, data}, nil},
		"Mutation.updateBookingRules":              {`mutation{updateBookingRules(input:{holdMinutes:10}){organization{id}}}`, [7]string{una, forb, forb, data, data, forb, none}, nil},
		"Mutation.updateBookingRules by id":        {`mutation{updateBookingRules(input:{organizationId:%north,holdMinutes:10}){organization{id}}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},
		"Mutation.createDoctor":                    {`mutation{createDoctor(input:{name:"%caller"}){doctor{id}}}`, [7]string{una, forb, forb, data, data, forb, none}, nil},
		"Mutation.createSchedule":                  {`mutation{createSchedule(input:{doctorId:%doctor,validFrom:"2026-01-01",shifts:[{weekday:MONDAY,start:"09:00",end:"10:00",slotMinutes:30}]}){errors{code}}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},
		"Mutation.generateSlots":                   {`mutation{generateSlots(input:{doctorId:%doctor}){added}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},
		"Mutation.updateSlot":                      {`mutation{updateSlot(input:{slotId:%slot,capacity:1000}){errors{code}}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},
		"Mutation.cancelAppointment":               {`mutation{cancelAppointment(input:{appointmentId:%standing}){changed appointment{patient{email}}}}`, [7]string{una, data, none, data, none, none, data}, []string{"patient", "staff", "system"}},

		"Mutation.blockPatient":   {`mutation{blockPatient(input:{patientId:%registered}){changed patient{email}}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},
		"Mutation.unblockPatient": {`mutation{unblockPatient(input:{patientId:%registered}){changed patient{email}}}`, [7]string{una, forb, forb, data, none, forb, data}, nil},

		"Subscription.dayCounts":    {`subscription{dayCounts(doctorIds:[%doctor],from:"%date"){days{free}}}`, [7]string{data, data, data, data, data, data, data}, nil},
		"Subscription.availability": {`subscription{availability(doctorIds:[%doctor],from:"%date"){kind}}`, [7]string{data, data, data, data, data, data, data}, nil},
	}
	values := strings.NewReplacer("%north", id(w.north), "%doctor", id(w.northDoctor), "%date", date, "%standing", standing.ID, "%entry", entry, "%slot", id(slot), "%patient", patient, "%registered", registered)

	schema := NewExecutableSchema(Config{}).Schema()
	for _, root := range []*ast.Definition{schema.Query, schema.Mutation, schema.Subscription} {
		for _, field := range root.Fields {
			if _, ok := table[root.Name+"."+field.Name]; !ok && !strings.HasPrefix(field.Name, "__") {
				t.Errorf("%s.%s has no row", root.Name, field.Name)
			}
		}
	}
	// Cancelling comes last: the others need the appointment.
	rows := make([]string, 0, len(table))
	for row := range table {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b string) int {
		return strings.Compare(fmt.Sprint(strings.Contains(a, "cancel"), a), fmt.Sprint(strings.Contains(b, "cancel"), b))
	})
	for _, row := range rows {
		for i, caller := range callers {
			c := table[row]
			query := values.Replace(strings.ReplaceAll(c.query, "%caller", caller))
			var body string
			var got string
			if strings.HasPrefix(query, "subscription") {
				s := w.connect(tokens[caller])
				s.subscribe("1", query, nil)
				body = string(s.expect("next", "1"))
				got = outcome(t, []byte(body))
			} else {
				a := w.ask(tokens[caller], query, nil)
				body, got = a.Body, outcome(t, []byte(a.Body))
			}
			if got != c.want[i] {
				t.Errorf("%s as %s: %s, want %s: %s", row, caller, got, c.want[i], body)
			}
			if sees := strings.Contains(body, canary); sees != slices.Contains(c.sees, caller) {
				t.Errorf("%s as %s: sees the patient's address: %t: %s", row, caller, sees, body)
			}
		}
	}
	if strings.Contains(w.log.String(), canary) {
		t.Error("personal data in the log")
	}
}

// outcome sums up an answer: the code of its error, else whether there is data.
func outcome(t *testing.T, body []byte) string {
	t.Helper()
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	if code := a.code(); code != "" {
		return code
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(a.Data, &fields); err != nil || len(fields) != 1 {
		t.Fatalf("%v: %s", err, body)
	}
	for _, v := range fields {
		if string(v) == "null" {
			return "null"
		}
	}
	return "data"
}
