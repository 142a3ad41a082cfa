package auth

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

const (
	maxReason = 500 // characters

	// The database announces blocks, and Recheck passes that on: it takes milliseconds. Whatever
	// becomes of the announcement, they are read so often, each time for so long at most.
	recheckAfter   = 2 * time.Second
	recheckTimeout = 2 * time.Second
	retryAfter     = 200 * time.Millisecond // a read that failed
)

// ErrBlocked is what a blocked patient hears.
var ErrBlocked error = booking.Refuse(booking.Forbidden, "Your access has been blocked. Please call the practice.")

// Staff of the organization $2, whose registrar is $3, block patient $1, or the operators do, for
// whom both are NULL. Whose the patient is and whether that may be are decided on the locked row;
// theirsSQL and answerSQL are parts of both statements.
const (
	theirsSQL = `$2::bigint IS NULL OR p.issuer = $3
           OR EXISTS (SELECT FROM appointment a WHERE a.patient_id = p.id AND a.organization_id = $2)`

	answerSQL = `
SELECT p.id, p.name, p.email, p.phone, p.locale, CASE WHEN c.id IS NULL THEN k.blocked_at ELSE c.blocked_at END,
       c.id IS NOT NULL, k.theirs, k.allowed
  FROM known k JOIN patient p ON p.id = k.id LEFT JOIN changed c ON c.id = k.id`

	blockSQL = `
WITH known AS (
    SELECT p.id, p.blocked_at, ` + theirsSQL + ` AS theirs,
           $2 IS NULL OR NOT EXISTS (SELECT FROM appointment a WHERE a.patient_id = p.id AND a.organization_id <> $2) AS allowed
      FROM patient p WHERE p.id = $1 FOR NO KEY UPDATE
), changed AS (
    UPDATE patient p SET blocked_at = clock_timestamp(), blocked_by = $4, blocked_for = $2, block_reason = nullif($5, '')
      FROM known k WHERE p.id = k.id AND k.theirs AND k.allowed AND k.blocked_at IS NULL
    RETURNING p.id, p.blocked_at
)` + answerSQL

	unblockSQL = `
WITH known AS (
    SELECT p.id, p.blocked_at, ` + theirsSQL + ` AS theirs,
           $2 IS NULL OR p.blocked_at IS NULL OR p.blocked_for IS NOT DISTINCT FROM $2 AS allowed
      FROM patient p WHERE p.id = $1 FOR NO KEY UPDATE
), changed AS (
    UPDATE patient p SET blocked_at = NULL, blocked_by = NULL, blocked_for = NULL, block_reason = NULL
      FROM known k WHERE p.id = k.id AND k.theirs AND k.allowed AND k.blocked_at IS NOT NULL
    RETURNING p.id, p.blocked_at
)` + answerSQL
)

// Block ends a patient's own access: from now on their tokens are refused, and what they hold open
// ends, here at once and on every instance within 5 s. Their appointments stand, and others may go
// on booking and cancelling for them. changed is false for one who is blocked already.
//
// It concerns the patient's whole account, so staff may block only those who are their
// organization's alone: registered by it, or with appointments there and nowhere else. The operators
// may block anybody. The refusals: NOT_FOUND, also for patients of others; FORBIDDEN for those who
// are shared with others, and for callers who are neither staff nor operators; UNAUTHENTICATED,
// INVALID, UNAVAILABLE, OVERLOADED.
func (p *Patients) Block(ctx context.Context, actor booking.Actor, id booking.PatientID, reason string) (patient Patient, changed bool, err error) {
	if utf8.RuneCountInString(reason) > maxReason || !storable(reason) {
		return Patient{}, false, booking.Refuse(booking.Invalid, "reason must be text of at most %d characters.", maxReason)
	}
	return p.setBlock(ctx, actor, id, blockSQL, actor.Caller(), reason)
}

// Unblock lets a patient in again. Staff may undo what staff of their organization did, the
// operators anything. The refusals are those of Block.
func (p *Patients) Unblock(ctx context.Context, actor booking.Actor, id booking.PatientID) (patient Patient, changed bool, err error) {
	return p.setBlock(ctx, actor, id, unblockSQL)
}

func (p *Patients) setBlock(ctx context.Context, actor booking.Actor, id booking.PatientID, sql string, more ...any) (patient Patient, changed bool, err error) {
	var organization *booking.OrganizationID
	var registrar *string
	switch actor.Kind {
	case booking.System:
	case booking.Staff:
		organization, registrar = &actor.Organization, new(actor.Registrar())
	case booking.Anonymous:
		return Patient{}, false, booking.Refuse(booking.Unauthenticated, "Sign in to block patients.")
	default:
		return Patient{}, false, booking.Refuse(booking.Forbidden, "Only staff can block patients.")
	}
	var theirs, allowed bool
	err = p.pool.QueryRow(ctx, sql, append([]any{id, organization, registrar}, more...)...).
		Scan(&patient.ID, &patient.Name, &patient.Email, &patient.Phone, &patient.Locale, &patient.BlockedAt, &changed, &theirs, &allowed)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && !theirs:
		return Patient{}, false, booking.Refuse(booking.NotFound, "There is no such patient.")
	case err != nil:
		return Patient{}, false, failed("block a patient", err)
	case !allowed:
		return Patient{}, false, booking.Refuse(booking.Forbidden, "This is for the operators of the installation to do. Ask them.")
	}
	if patient.BlockedAt != nil {
		p.blocks.add(id)
	}
	p.Recheck() // the feed says so as well, where there is one
	return patient, changed, nil
}

// storable reports whether s can be kept as text.
func storable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range []byte(s) {
		if c == 0 {
			return false
		}
	}
	return true
}

// Recheck has the blocked patients read again, soon: somebody's access has changed, or may have.
func (p *Patients) Recheck() {
	select {
	case p.blocks.wake <- struct{}{}:
	default:
	}
}

// OnBlocked calls f once, on a goroutine of its own, when the identity's access is blocked; at once
// if it is. stop ends that.
func (a *Authenticator) OnBlocked(identity Identity, f func()) (stop func()) {
	if identity.Actor.Kind != booking.Patient {
		return func() {}
	}
	return a.patients.blocks.watch(identity.Actor.PatientID, f)
}

// admitted is identity, or FORBIDDEN for a patient who is blocked.
func (a *Authenticator) admitted(identity Identity) (Identity, error) {
	if identity.Actor.Kind == booking.Patient && a.patients.blocks.has(identity.Actor.PatientID) {
		return Identity{}, ErrBlocked
	}
	return identity, nil
}

// blocks are the blocked patients, as far as this process knows. They are few, so it knows all of
// them, and a request costs a look into memory. Who is blocked when they sign in is added then, for
// a process that has not read them yet.
type blocks struct {
	pool *pgxpool.Pool
	wake chan struct{} // holds a token when they have to be read again
	set  atomic.Pointer[map[booking.PatientID]struct{}]

	mu       sync.Mutex // held to replace the set
	watching map[booking.PatientID]map[*func()]struct{}
}

func newBlocks(pool *pgxpool.Pool) *blocks {
	b := &blocks{pool: pool, wake: make(chan struct{}, 1), watching: make(map[booking.PatientID]map[*func()]struct{})}
	b.set.Store(&map[booking.PatientID]struct{}{})
	return b
}

func (b *blocks) has(id booking.PatientID) bool {
	_, ok := (*b.set.Load())[id]
	return ok
}

// run reads the blocked patients when it is woken, and every now and then, until ctx ends. A read
// that is asked for while another one is under way begins after it, so nothing is missed.
func (b *blocks) run(ctx context.Context, failing func(error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	well := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-timer.C:
		}
		err := b.read(ctx)
		next := recheckAfter
		if err != nil {
			next = retryAfter
			if well && ctx.Err() == nil {
				failing(err)
			}
		}
		well = err == nil
		timer.Reset(next)
	}
}

func (b *blocks) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
	defer cancel()
	rows, err := b.pool.Query(ctx, `SELECT id FROM patient WHERE blocked_at IS NOT NULL`)
	if err != nil {
		return err
	}
	set := make(map[booking.PatientID]struct{})
	var id booking.PatientID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { set[id] = struct{}{}; return nil }); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replace(set)
	return nil
}

func (b *blocks) add(id booking.PatientID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	set := maps.Clone(*b.set.Load())
	set[id] = struct{}{}
	b.replace(set)
}

// replace makes set the truth and tells those who watch its patients.
func (b *blocks) replace(set map[booking.PatientID]struct{}) {
	b.set.Store(&set)
	for id := range set {
		for f := range b.watching[id] {
			go (*f)()
		}
		delete(b.watching, id)
	}
}

func (b *blocks) watch(id booking.PatientID, f func()) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(id) {
		go f()
		return func() {}
	}
	if b.watching[id] == nil {
		b.watching[id] = make(map[*func()]struct{})
	}
	b.watching[id][&f] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watching[id], &f)
		if len(b.watching[id]) == 0 {
			delete(b.watching, id)
		}
	}
}
