package graph

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"openslot/internal/booking"
)

// W12: blocked means that nothing of the patient's goes on, that nothing new begins, and that others
// notice nothing.
func TestBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(w.northDoctor, noon(1), 9)
	ada, ben := w.patient("ada"), w.patient("ben")
	patient := get[payload](w, ada, book, vars{"s": id(slot), "k": "k"}).Appointment.Patient.ID
	variables := vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"}
	open := func(token string) *client {
		c := w.connect(token)
		c.subscribe("1", watching, variables)
		c.expect("next", "1")
		return c
	}
	first, second, other, desk := open(ada), open(ada), open(ben), open(w.staff())

	type blocked struct {
		Changed bool
		Patient struct{ BlockedAt *string }
	}
	const block = `mutation($p:ID!){blockPatient(input:{patientId:$p,reason:"three times not there"}){changed patient{blockedAt}}}`
	if b := get[blocked](w, w.staff(), block, vars{"p": patient}); !b.Changed || b.Patient.BlockedAt == nil {
		t.Errorf("%+v", b)
	}
	for _, c := range []*client{first, second} {
		if code, reason := c.closed(); code != closeForbidden || reason != accessBlocked {
			t.Errorf("closed with %d %q", code, reason)
		}
	}
	a := w.ask(ada, `{me{role}}`, nil)
	if a.Status != http.StatusForbidden || a.code() != string(booking.Forbidden) || !strings.Contains(a.Errors[0].Message, "blocked") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := w.ask(ada, book, vars{"s": id(slot), "k": "k"}); a.code() != string(booking.Forbidden) { // a replay as well
		t.Errorf("%s", a.Body)
	}
	again := w.dial()
	again.write(`{"type":"connection_init","payload":{"Authorization":"Bearer ` + ada + `"}}`)
	if code, reason := again.closed(); code != closeForbidden || reason != accessBlocked {
		t.Errorf("connected again: %d %q", code, reason)
	}
	if _, res, err := w.handshake([]string{subprotocol}, "Authorization: Bearer "+ada); res == nil || res.StatusCode != http.StatusForbidden || err != websocket.ErrBadHandshake {
		t.Errorf("%+v %v", res, err)
	}

	// The practice sees the appointment, and that they are blocked; others go on.
	standing := get[struct {
		Nodes []struct{ Patient struct{ BlockedAt *string } }
	}](w, w.staff(),
		`query($d:ID!,$on:Date!){appointments(doctorId:$d,date:$on){nodes{patient{blockedAt}}}}`, vars{"d": id(w.northDoctor), "on": noon(1).Format("2006-01-02")})
	if len(standing.Nodes) != 1 || standing.Nodes[0].Patient.BlockedAt == nil {
		t.Errorf("%+v", standing)
	}
	for _, c := range []*client{other, desk} {
		c.subscribe("2", "{__typename}", nil)
		c.expect("next", "2")
	}
	if b := get[blocked](w, w.staff(), strings.NewReplacer("blockPatient", "unblockPatient", `,reason:"three times not there"`, "").Replace(block), vars{"p": patient}); !b.Changed || b.Patient.BlockedAt != nil {
		t.Errorf("%+v", b)
	}
}
