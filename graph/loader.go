package graph

import (
	"context"
	"sync"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/schedule"
)

// loader reads objects by id for one operation, each once. Whoever answers a list says which ids
// its elements refer to; the first of them that is asked for brings all others along, in one
// query. Lists whose references nobody asks for cost nothing.
type loader[K comparable, V any] struct {
	read func(context.Context, []K) (map[K]V, error)

	mu       sync.Mutex
	expected map[K]struct{}     // said, not yet asked for
	batches  map[K]*batch[K, V] // asked for
}

// batch is one query; its result is there when done is closed.
type batch[K comparable, V any] struct {
	done  chan struct{}
	found map[K]V
	err   error
}

func newLoader[K comparable, V any](read func(context.Context, []K) (map[K]V, error)) *loader[K, V] {
	return &loader[K, V]{read: read, expected: map[K]struct{}{}, batches: map[K]*batch[K, V]{}}
}

// expect says that an id may be asked for.
func (l *loader[K, V]) expect(id K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.batches[id] == nil {
		l.expected[id] = struct{}{}
	}
}

// load reads an object; nil if there is none.
func (l *loader[K, V]) load(ctx context.Context, id K) (*V, error) {
	l.mu.Lock()
	b := l.batches[id]
	if b == nil {
		b = &batch[K, V]{done: make(chan struct{})}
		l.expected[id] = struct{}{}
		ids := make([]K, 0, len(l.expected))
		for k := range l.expected {
			ids = append(ids, k)
			l.batches[k] = b
		}
		clear(l.expected)
		l.mu.Unlock()
		l.fill(ctx, b, ids)
	} else {
		l.mu.Unlock()
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	found, ok := b.found[id]
	if !ok || b.err != nil {
		return nil, b.err
	}
	return &found, nil
}

func (l *loader[K, V]) fill(ctx context.Context, b *batch[K, V], ids []K) {
	defer close(b.done)
	b.err = context.Canceled // for the others, if read panics
	b.found, b.err = l.read(ctx, ids)
}

// loaders are those of one operation.
type loaders struct {
	organizations *loader[booking.OrganizationID, schedule.Organization]
	doctors       *loader[booking.DoctorID, schedule.Doctor]
	slots         *loader[booking.SlotID, booking.Slot]
	patients      *loader[booking.PatientID, auth.Patient]
}

type loadersKey struct{}

func withLoaders(ctx context.Context, parts Parts) context.Context {
	l := &loaders{
		organizations: newLoader(parts.Schedule.OrganizationsByID),
		slots:         newLoader(parts.Availability.SlotsByID),
		patients:      newLoader(parts.Patients.ByID),
	}
	l.doctors = newLoader(func(ctx context.Context, ids []booking.DoctorID) (map[booking.DoctorID]schedule.Doctor, error) {
		found, err := parts.Schedule.DoctorsByID(ctx, ids)
		for _, doctor := range found {
			l.organizations.expect(doctor.OrganizationID)
		}
		return found, err
	})
	return context.WithValue(ctx, loadersKey{}, l)
}

func loadersOf(ctx context.Context) *loaders { return ctx.Value(loadersKey{}).(*loaders) }
