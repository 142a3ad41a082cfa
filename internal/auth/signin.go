package auth

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

const (
	knownSize   = 50_000 // patients, times two
	knownFor    = time.Hour
	maxWaiting  = 5_000 // newcomers; more are OVERLOADED
	signInLimit = 5 * time.Second
)

// identity is what makes a patient one and the same: a subject, in the words of its issuer.
type identity struct{ issuer, subject string }

// newcomer is a patient on the way into the table, for everybody who waits for them.
type newcomer struct {
	contact contact
	done    chan struct{} // closed once id or err is set
	id      booking.PatientID
	err     error
}

// signIn is the row of a patient, which it makes if there is none. Whoever comes while an insert is
// in flight goes into the next one, all together: as many patients as may sign in at once, there is
// one statement at a time, and nobody waits for a timer.
func (p *Patients) signIn(ctx context.Context, who identity, said func() contact) (booking.PatientID, error) {
	if id, ok := p.known.at(who, time.Now()); ok {
		return id, nil
	}
	n, err := p.enter(who, said())
	if err != nil {
		return 0, err
	}
	select {
	case <-n.done:
		return n.id, n.err
	case <-ctx.Done(): // the row is made for the others, and for the next try
		return 0, failed("sign in", ctx.Err())
	}
}

// enter puts the patient among those who wait, once, and sees to it that somebody serves them.
func (p *Patients) enter(who identity, c contact) (*newcomer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.waiting[who]; ok {
		return n, nil
	}
	if len(p.waiting) >= maxWaiting {
		return nil, &booking.Error{Code: booking.Overloaded, RetryAfter: time.Second,
			Message: "Too many people sign in right now. Try again in a moment."}
	}
	n := &newcomer{contact: c, done: make(chan struct{})}
	p.waiting[who] = n
	if !p.busy {
		p.busy = true
		go p.serve()
	}
	return n, nil
}

// serve inserts until nobody waits.
func (p *Patients) serve() {
	for {
		p.mu.Lock()
		batch := p.waiting
		if len(batch) == 0 {
			p.busy = false
			p.mu.Unlock()
			return
		}
		p.waiting = make(map[identity]*newcomer)
		p.mu.Unlock()
		p.admit(batch)
	}
}

// admit answers everybody in batch.
func (p *Patients) admit(batch map[identity]*newcomer) {
	// Nobody's own context: one caller who gives up must not take the others along.
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	ids, err := p.insert(ctx, batch)
	until := time.Now().Add(knownFor)
	for who, n := range batch {
		n.id, n.err = ids[who], err
		switch {
		case n.err != nil:
		case n.id == 0:
			n.err = failed("sign in", errors.New("the patient's row is gone"))
		default:
			p.known.put(who, n.id, until)
		}
		close(n.done)
	}
}

const (
	signedInSQL = `
SELECT p.issuer, p.subject, p.id, p.blocked_at IS NOT NULL
  FROM unnest($1::text[], $2::text[]) AS n(issuer, subject)
  JOIN patient p ON p.issuer = n.issuer AND p.subject = n.subject`

	// Rows that another instance is making are waited for: in one order, so that two instances with
	// the same newcomers don't wait for each other.
	signInSQL = `
INSERT INTO patient (issuer, subject, name, email, locale)
SELECT n.issuer, n.subject, n.name, n.email, n.locale
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
       AS n(issuer, subject, name, email, locale)
 ORDER BY n.issuer, n.subject
    ON CONFLICT (issuer, subject) DO NOTHING
RETURNING issuer, subject, id, false`
)

// insert reads the rows of all, and makes those that are missing. Most have theirs from another day.
func (p *Patients) insert(ctx context.Context, newcomers map[identity]*newcomer) (map[identity]booking.PatientID, error) {
	ids := make(map[identity]booking.PatientID, len(newcomers))
	ask := func(sql string, args ...any) error {
		rows, err := p.pool.Query(ctx, sql, args...)
		if err != nil {
			return failed("sign in", err)
		}
		var who identity
		var id booking.PatientID
		var blocked bool
		_, err = pgx.ForEachRow(rows, []any{&who.issuer, &who.subject, &id, &blocked}, func() error {
			ids[who] = id
			if blocked {
				p.blocks.add(id)
			}
			return nil
		})
		if err != nil {
			return failed("sign in", err)
		}
		return nil
	}
	var issuers, subjects []string
	for who := range newcomers {
		issuers, subjects = append(issuers, who.issuer), append(subjects, who.subject)
	}
	if err := ask(signedInSQL, issuers, subjects); err != nil || len(ids) == len(newcomers) {
		return ids, err
	}

	issuers, subjects = issuers[:0], subjects[:0]
	var names, emails, locales []*string
	for who, n := range newcomers {
		if ids[who] == 0 {
			issuers, subjects = append(issuers, who.issuer), append(subjects, who.subject)
			names, emails, locales = append(names, n.contact.Name), append(emails, n.contact.Email), append(locales, n.contact.Locale)
		}
	}
	if err := ask(signInSQL, issuers, subjects, names, emails, locales); err != nil || len(ids) == len(newcomers) {
		return ids, err
	}
	// Another instance has made some of them meanwhile, which only a new statement sees.
	return ids, ask(signedInSQL, issuers, subjects)
}
