package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// patientToken is one of a patient, good at epoch.
func patientToken(t testing.TB, subject string) string {
	d := good()
	d.claims["role"], d.claims["sub"] = "patient", subject
	delete(d.claims, "org")
	return d.sign(t)
}

// visits are appointments of a patient with organizations.
func visits(t testing.TB, db *devenv.DB, patient booking.PatientID, organizations ...booking.OrganizationID) {
	t.Helper()
	for _, organization := range organizations {
		_, err := db.Pool.Exec(t.Context(), `
			WITH o AS (INSERT INTO organization (id, name, time_zone) VALUES ($1, $2, 'UTC') ON CONFLICT DO NOTHING),
			     d AS (INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. No') RETURNING id),
			     s AS (INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			           SELECT id, now(), now() + interval '1 hour', 1, now() FROM d RETURNING id)
			INSERT INTO appointment (slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, root_id, during)
			SELECT s.id, $3, $1, 'CANCELLED', gen_random_uuid()::text, 'x', '', 1, tstzrange(now(), now()) FROM s`,
			organization, fmt.Sprint("Practice ", organization), patient)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Who may block whom, and who may undo it.
func TestBlockRules(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	p := NewPatients(db.Pool)
	operators := booking.Actor{Kind: booking.System, Subject: "ops"}
	signedIn := func(subject string, organizations ...booking.OrganizationID) booking.PatientID {
		id, err := p.signIn(t.Context(), identity{local.Issuer, subject}, untold)
		if err != nil {
			t.Fatal(err)
		}
		visits(t, db, id, organizations...)
		return id
	}
	registered, _ := register(t, p, staff7, Registration{Subject: "1"})
	another, _ := register(t, p, staff7, Registration{Subject: "2"})
	const none, forbidden, unauthenticated = booking.NotFound, booking.Forbidden, booking.Unauthenticated
	for name, tt := range map[string]struct {
		patient booking.PatientID
		actor   booking.Actor
		block   booking.Code // "": done
		unblock booking.Code // after the operators have blocked
	}{
		"registered by them":      {registered.ID, staff7, "", forbidden},
		"registered by others":    {another.ID, staff8, none, none},
		"theirs alone":            {signedIn("theirs", 7, 7), staff7, "", forbidden},
		"of others":               {signedIn("others", 8), staff7, none, none},
		"shared":                  {signedIn("shared", 7, 8), staff7, forbidden, forbidden},
		"of nobody":               {signedIn("new"), staff7, none, none},
		"the operators, shared":   {signedIn("ops shared", 7, 8), operators, "", ""},
		"the operators, nobody's": {signedIn("ops new"), operators, "", ""},
		"who is not there":        {1 << 40, operators, none, none},
		"a partner":               {signedIn("p", 7), acme, forbidden, forbidden},
		"a patient":               {signedIn("q", 7), booking.Actor{Kind: booking.Patient, Subject: "q"}, forbidden, forbidden},
		"nobody":                  {signedIn("r", 7), booking.Actor{}, unauthenticated, unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(what string, want booking.Code, patient Patient, changed bool, err error, blocked bool) {
				t.Helper()
				if want != "" {
					wantCode(t, err, want)
					return
				}
				if err != nil || !changed || patient.ID != tt.patient || (patient.BlockedAt != nil) != blocked {
					t.Errorf("%s: %+v, changed %t, %v", what, patient, changed, err)
				}
			}
			patient, changed, err := p.Block(t.Context(), tt.actor, tt.patient, "three times not there")
			check("block", tt.block, patient, changed, err, true)
			if tt.block == "" {
				if again, changed, err := p.Block(t.Context(), tt.actor, tt.patient, ""); err != nil || changed || again.BlockedAt == nil || !again.BlockedAt.Equal(*patient.BlockedAt) {
					t.Errorf("again: %+v, changed %t, %v", again, changed, err)
				}
				var by, why string
				row := db.Pool.QueryRow(t.Context(), `SELECT blocked_by, block_reason FROM patient WHERE id = $1`, tt.patient)
				if err := row.Scan(&by, &why); err != nil || by != tt.actor.Caller() || why != "three times not there" {
					t.Errorf("recorded: %s, %s, %v", by, why, err)
				}
				patient, changed, err = p.Unblock(t.Context(), tt.actor, tt.patient)
				check("unblock", "", patient, changed, err, false)
				if _, changed, err := p.Unblock(t.Context(), tt.actor, tt.patient); err != nil || changed {
					t.Errorf("unblock again: changed %t, %v", changed, err)
				}
			}
			if _, _, err := p.Block(t.Context(), operators, tt.patient, ""); err != nil && tt.block != none {
				t.Fatal(err)
			}
			patient, changed, err = p.Unblock(t.Context(), tt.actor, tt.patient)
			check("unblock what the operators did", tt.unblock, patient, changed, err, false)
		})
	}
	for _, reason := range []string{strings.Repeat("ä", 501), "\x00", "\xff"} {
		_, _, err := p.Block(t.Context(), operators, registered.ID, reason)
		wantCode(t, err, booking.Invalid)
	}
	if _, _, err := p.Block(t.Context(), operators, signedIn("ä"), strings.Repeat("ä", 500)); err != nil {
		t.Error(err)
	}
	_, _, err := NewPatients(deadPool(t)).Block(t.Context(), operators, 1, "")
	wantCode(t, err, booking.Unavailable)
}

// A token that was good a moment ago is refused, on every instance, and what is open is ended.
func TestBlocked(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	here, there, idle := newLocal(t, NewPatients(db.Pool)), newLocal(t, NewPatients(db.Pool)), newLocal(t, NewPatients(db.Pool))
	start(t, here)
	start(t, there)
	token := patientToken(t, "ada")
	var identity Identity
	for _, a := range []*Authenticator{here, there, idle} {
		var err error
		if identity, err = a.Authenticate(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(a *Authenticator) bool {
		_, err := a.Authenticate(t.Context(), token)
		var known *booking.Error
		return errors.As(err, &known) && known.Code == booking.Forbidden
	}
	ended, unwanted := make(chan struct{}, 10), make(chan struct{}, 10)
	end := func() { ended <- struct{}{} }
	here.OnBlocked(identity, end)
	there.OnBlocked(identity, end)
	there.OnBlocked(identity, func() { unwanted <- struct{}{} })()
	there.OnBlocked(Identity{Actor: staff7}, func() { unwanted <- struct{}{} })
	there.OnBlocked(Identity{}, func() { unwanted <- struct{}{} })

	// Nobody tells the other instance: this is the worst case, a feed that is lost.
	began := time.Now()
	if _, changed, err := here.patients.Block(t.Context(), booking.SystemActor, identity.Actor.PatientID, ""); err != nil || !changed {
		t.Fatal(err)
	}
	if !refused(here) {
		t.Error("accepted at once after the block")
	}
	for range 2 {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("what was open goes on")
		}
	}
	t.Logf("what was open ended after %s", time.Since(began))
	if recheckAfter+recheckTimeout >= 5*time.Second {
		t.Error("by itself it takes 5 s and more")
	}
	if !refused(there) {
		t.Error("accepted on the other instance")
	}
	if refused(idle) {
		t.Error("refused where nothing looks: the test above proves nothing")
	}
	idle.patients.blocks.read(t.Context())
	if !refused(idle) {
		t.Error("accepted after a look")
	}
	there.OnBlocked(identity, end) // who is late is told as well
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("not told of a block that stands")
	}

	// An instance that has just started and knows nothing.
	fresh := newLocal(t, NewPatients(db.Pool))
	for range 2 {
		if !refused(fresh) {
			t.Error("accepted by a new instance")
		}
	}

	if _, _, err := here.patients.Unblock(t.Context(), booking.SystemActor, identity.Actor.PatientID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "accepted again", func() bool { return !refused(here) && !refused(there) })
	if len(ended)+len(unwanted) != 0 || len(there.patients.blocks.watching) != 0 {
		t.Errorf("%d told twice, %d who did not ask; %v", len(ended), len(unwanted), there.patients.blocks.watching)
	}
}

// With the database away what is known goes on to hold, and one line is logged.
func TestBlocksUnread(t *testing.T) {
	t.Parallel()
	var log lines
	cfg := local
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, err := New(t.Context(), cfg, NewPatients(deadPool(t)))
	if err != nil {
		t.Fatal(err)
	}
	a.patients.blocks.add(7)
	start(t, a)
	for range 3 {
		a.patients.Recheck()
		eventually(t, "the look begins", func() bool { return len(a.patients.blocks.wake) == 0 })
	}
	if !a.patients.blocks.has(7) {
		t.Error("forgotten")
	}
	const line = "blocked patients could not be read"
	eventually(t, "the log says so", func() bool { return log.count(line) > 0 })
	if n := log.count(line); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
