package booking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimSQL runs the booking rule for all calls: one round trip, one transaction.
const claimSQL = `
SELECT outcome, opens_at, ` + ruleColumns + `, full_version, decided_at, ` + appointmentColumns + `
  FROM claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`

// outcome is what the functions claim and step say of one call.
type outcome struct {
	code        string
	opensAt     *time.Time // SLOT_NOT_OPEN
	rule        rule       // TOO_EARLY, TOO_LATE, LIMIT_REACHED
	full        *int64     // the slot's version, if it has no place left now
	at          time.Time  // when this was decided, by the database's clock
	lapsed      []SlotID   // LAPSED, of a time: whose holds
	appointment Appointment
}

// execute books the calls in one transaction and answers them; unless wait is set, those whose
// slot another process has locked stay unanswered and busy. Whoever's fault an unexpected error
// is, the others do not suffer for it: they are run again without them.
//
// The error, which the calls have been answered with too, says that the database could not be
// worked with.
func (s *Service) execute(ctx context.Context, calls []*call, wait bool) error {
	outcomes, rerun, err := s.transact(ctx, calls, wait)
	var refused *Error
	system := errors.As(err, &refused) // the database is away, or we are out of connections
	switch {
	case err == nil:
		return s.settle(ctx, calls, outcomes, settling{wait: wait, rerun: rerun})
	case system && !isGivenUp(err):
		for _, c := range calls {
			c.answer(Booking{}, err)
		}
		return err
	case system && wait:
		s.giveUp(ctx, calls, err)
		return err
	case system:
		return s.oneByOne(ctx, calls)
	case len(calls) > 1:
		half := len(calls) / 2
		return errors.Join(s.execute(ctx, calls[:half], wait), s.execute(ctx, calls[half:], wait))
	default:
		calls[0].answer(Booking{}, fmt.Errorf("booking: book %v: %w", calls[0].request.target(), err))
		return nil
	}
}

// settling is how outcomes came about.
type settling struct {
	wait  bool // for locks
	rerun bool // an earlier run may have been committed unheard
}

// settle answers calls with their outcomes, tells the gate which slots are full, and tries those
// again that had nothing but lapsed holds in their way.
func (s *Service) settle(ctx context.Context, calls []*call, outcomes []outcome, how settling) error {
	s.places.note(outcomes...)
	var hindered []*call
	var lapsed []SlotID
	for i, c := range calls {
		o := outcomes[i]
		s.hear(c.request.Slot, o)
		switch {
		case o.code == outcomeLapsed && c.cleared < clearMost:
			c.cleared++
			hindered = append(hindered, c)
			if lapsed = append(lapsed, o.lapsed...); o.lapsed == nil {
				lapsed = append(lapsed, cmp.Or(o.appointment.SlotID, c.request.Slot))
			}
		case how.wait && (o.code == outcomeBusy || o.code == outcomeLapsed): // while we waited for another lock
			c.answer(Booking{}, errOverloaded)
		default:
			c.settle(o, how.rerun)
		}
	}
	if len(hindered) == 0 {
		return nil
	}
	// In a transaction of its own, which waits for nobody once it has changed anything: see claim.
	if _, err := s.expire(ctx, lapsed, how.wait); err != nil {
		for _, c := range hindered {
			c.answer(Booking{}, withoutEffect(err))
		}
		var refused *Error
		if errors.As(err, &refused) && !isGivenUp(err) {
			return err
		}
		return nil
	}
	return s.execute(ctx, hindered, how.wait)
}

// hear tells the gate if an outcome says that the slot is full. One that was made for a time (0) nobody
// else asks for.
func (s *Service) hear(slot SlotID, o outcome) {
	if s.config.Gate != nil && o.full != nil && slot != 0 {
		s.config.Gate.Full(FullMark{Slot: slot, Version: *o.full, At: o.at})
	}
}

// oneByOne books calls of which at least one needs a lock that somebody sits on: only those
// wait for it, but all together no longer than lockPatience.
func (s *Service) oneByOne(ctx context.Context, calls []*call) error {
	until := time.Now().Add(lockPatience)
	for i := range calls {
		if time.Now().After(until) {
			s.giveUp(ctx, calls[i:], errOverloaded)
			return nil
		}
		err := s.execute(ctx, calls[i:i+1], true)
		if err == nil || isGivenUp(err) {
			continue
		}
		for _, c := range calls[i+1:] { // it would be the same for each, one after the other
			c.answer(Booking{}, withoutEffect(err))
		}
		return err
	}
	return nil
}

// transact runs the transaction. rerun says that an earlier run may have been committed unheard.
func (s *Service) transact(ctx context.Context, calls []*call, wait bool) (outcomes []outcome, rerun bool, err error) {
	if calls[0].request.Time != nil { // and there is no other
		return s.transactTime(ctx, calls[0])
	}
	r := columns(calls)
	err = s.run(ctx, func(ctx context.Context, conn *pgx.Conn, again bool) error {
		rerun = again
		rows, err := conn.Query(ctx, claimSQL, s.now(), wait,
			r.slots, r.patients, r.keys, r.callers, r.hashes, r.organizations, r.registrars,
			r.holds, r.referrals, r.overlaps, r.exempt)
		if err != nil {
			return err
		}
		outcomes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o outcome, err error) {
			err = scanAppointment(row, &o.appointment, &o.code, &o.opensAt, &o.rule.name, &o.rule.number, &o.rule.moment, &o.full, &o.at)
			return o, err
		})
		return err
	})
	if err == nil && len(outcomes) != len(calls) {
		err = fmt.Errorf("%d answers to %d calls", len(outcomes), len(calls))
	}
	return outcomes, rerun, err
}

// requests are calls as columns: what the statements take.
type requests struct {
	slots         []SlotID
	patients      []PatientID
	keys          []string
	callers       []string
	hashes        [][]byte
	organizations []OrganizationID
	registrars    []string
	// What few calls have; nil where none of these does.
	holds     []bool
	referrals []*string
	overlaps  []*string
	exempt    []bool
}

func columns(calls []*call) requests {
	n := len(calls)
	r := requests{
		slots: make([]SlotID, n), patients: make([]PatientID, n), keys: make([]string, n), callers: make([]string, n),
		hashes: make([][]byte, n), organizations: make([]OrganizationID, n), registrars: make([]string, n),
	}
	for i, c := range calls {
		r.holds = mark(r.holds, c.hold, i, n)
		r.exempt = mark(r.exempt, c.actor.Exempt(), i, n)
		r.referrals = with(r.referrals, c.request.Referral, i, n)
		r.overlaps = with(r.overlaps, c.request.OverlapReason, i, n)
		r.slots[i], r.patients[i], r.keys[i], r.hashes[i] = c.request.Slot, c.request.Patient, c.request.Key, c.hash
		r.callers[i], r.organizations[i], r.registrars[i] = c.actor.Caller(), c.actor.Organization, c.actor.Registrar()
	}
	return r
}

// mark sets place i of a column of n, which is made when it is needed, if set.
func mark(column []bool, set bool, i, n int) []bool {
	if !set {
		return column
	}
	if column == nil {
		column = make([]bool, n)
	}
	column[i] = true
	return column
}

// with puts text, if there is any, at place i of a column of n, which is made when it is needed.
func with(column []*string, text string, i, n int) []*string {
	if text == "" {
		return column
	}
	if column == nil {
		column = make([]*string, n)
	}
	column[i] = &text
	return column
}

// settle answers the call with its outcome.
func (c *call) settle(o outcome, rerun bool) {
	switch o.code {
	case outcomeBusy, outcomeLapsed:
		c.busy, c.cleared = true, 0
	case outcomeRoom:
		c.room = true
	case outcomeWon, outcomeReplayed, outcomeUnchanged:
		replayed := o.code == outcomeUnchanged || o.code == outcomeReplayed && !rerun
		c.answer(Booking{Appointment: o.appointment, Replayed: replayed}, nil)
	default:
		c.answer(Booking{}, refusal(o))
	}
}

// giveUp refuses calls whose slot stayed locked. A retry need not wait for the lock, though, to
// hear what its key has won.
func (s *Service) giveUp(ctx context.Context, calls []*call, refused error) {
	s.find(ctx, calls)
	for _, c := range calls {
		if !c.isAnswered() {
			c.answer(Booking{}, refused)
		}
	}
}
