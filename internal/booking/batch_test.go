package booking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stage is a batcher whose transactions are played by the test.
type stage struct {
	*batcher
	mu      sync.Mutex
	batches []batch
	play    func(b batch) error // answers the calls
}

type batch struct {
	calls []*call
	wait  bool
}

func (b batch) keys() (keys []string) {
	for _, c := range b.calls {
		keys = append(keys, c.request.Key)
	}
	return keys
}

// win answers all calls with success.
func win(b batch) error {
	for _, c := range b.calls {
		c.answer(Booking{}, nil)
	}
	return nil
}

func newStage(play func(b batch) error) *stage {
	s := &stage{play: play}
	s.batcher = newBatcher(func(calls []*call, wait bool) error {
		b := batch{slices.Clone(calls), wait}
		s.mu.Lock()
		s.batches = append(s.batches, b)
		s.mu.Unlock()
		return s.play(b)
	})
	return s
}

func newCall(slot SlotID, key string) *call {
	r := BookRequest{Slot: slot, Patient: 1, Key: key}
	return &call{request: r, actor: Actor{Kind: Patient, Subject: "1"}, hash: r.hash(false), done: make(chan struct{})}
}

// queue puts calls of one slot in line and gives the channel of their errors.
func (s *stage) queue(t *testing.T, slot SlotID, keys ...string) <-chan error {
	answers := make(chan error, len(keys))
	for _, key := range keys {
		go func() {
			_, err := s.book(t.Context(), newCall(slot, key))
			answers <- err
		}()
		synctest.Wait() // in line before the next one comes
	}
	return answers
}

// blocking gives a play that holds the first batch until release is called.
func blocking() (play func(b batch) error, release func()) {
	hold := make(chan struct{})
	var once sync.Once
	return func(b batch) error { <-hold; return win(b) }, func() { once.Do(func() { close(hold) }) }
}

func TestBatchOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		play, release := blocking()
		s := newStage(play)
		s.queue(t, 1, "first")
		s.queue(t, 1, "a", "b", "c", "d")
		release()
		synctest.Wait()
		if len(s.batches) != 2 || !slices.Equal(s.batches[1].keys(), []string{"a", "b", "c", "d"}) {
			t.Errorf("batches %v, want the four that waited together, in order of arrival", s.batches)
		}
	})
}

func TestBatchFairness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		play, release := blocking()
		s := newStage(play)
		s.queue(t, 1, "first")
		for i := range 900 { // a crowd at slot 2
			go func() { _, _ = s.book(t.Context(), newCall(2, fmt.Sprint(i))) }()
		}
		synctest.Wait() // the second worker has 128 of them
		s.queue(t, 3, "alone")
		release()
		synctest.Wait()
		turn := slices.IndexFunc(s.batches, func(b batch) bool { return slices.Contains(b.keys(), "alone") })
		if turn > 3 {
			t.Errorf("the call of another slot came in batch %d, behind the crowd", turn)
		}
		for _, b := range s.batches {
			if len(b.calls) > batchMost {
				t.Errorf("a batch of %d", len(b.calls))
			}
		}
	})
}

// A slot is in one batch at a time, else its order would be a matter of luck.
func TestBatchOneSlotOneBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		inFlight, most := map[SlotID]int{}, map[SlotID]int{}
		s := newStage(func(b batch) error {
			seen := map[SlotID]bool{}
			mu.Lock()
			for _, c := range b.calls {
				if !seen[c.request.Slot] {
					seen[c.request.Slot] = true
					inFlight[c.request.Slot]++
					most[c.request.Slot] = max(most[c.request.Slot], inFlight[c.request.Slot])
				}
			}
			mu.Unlock()
			time.Sleep(time.Millisecond) // the bubble's clock
			mu.Lock()
			for slot := range seen {
				inFlight[slot]--
			}
			mu.Unlock()
			return win(b)
		})
		var done sync.WaitGroup
		for i := range 2000 {
			done.Go(func() { _, _ = s.book(t.Context(), newCall(SlotID(i%5), fmt.Sprint(i))) })
		}
		done.Wait()
		synctest.Wait()
		for slot, n := range most {
			if n != 1 {
				t.Errorf("slot %d was in %d batches at once", slot, n)
			}
		}
		if s.workers != 0 || s.waiting != 0 || len(s.lines) != 0 || len(s.joining) != 0 {
			t.Errorf("not idle again: %d workers, %d waiting, %d lines, %d joining", s.workers, s.waiting, len(s.lines), len(s.joining))
		}
	})
}

func TestBatchBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		play, release := blocking()
		s := newStage(play)
		s.queue(t, 1, "in flight")
		var done sync.WaitGroup
		defer done.Wait()
		defer release()
		for i := range lineMost {
			done.Go(func() {
				if _, err := s.book(t.Context(), newCall(1, fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		_, err := s.book(t.Context(), newCall(1, "one too many"))
		wantCode(t, err, Overloaded) // at once: nothing has been released
		for i := range queueMost {   // more than there is room for
			done.Go(func() { _, _ = s.book(t.Context(), newCall(SlotID(2+i/1000), fmt.Sprint(i))) })
		}
		synctest.Wait()
		_, err = s.book(t.Context(), newCall(1000, "one too many for all"))
		wantCode(t, err, Overloaded)
	})
}

func TestBatchJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		play, release := blocking()
		s := newStage(play)
		s.queue(t, 1, "first")
		replayed := make(chan bool, 3)
		for range 3 {
			go func() {
				b, _ := s.book(t.Context(), newCall(2, "same"))
				replayed <- b.Replayed
			}()
		}
		synctest.Wait()       // they have joined before
		s.queue(t, 3, "same") // comes another request: the database decides
		release()
		synctest.Wait()
		if n := len(s.batches[1].calls); n != 2 {
			t.Errorf("%d calls were executed, want 2", n)
		}
		fresh := 0
		for range 3 {
			if !<-replayed {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%d of 3 were told that they booked", fresh)
		}
	})
}

// Whoever asks again after an answer gets a new one, however lately the first was given.
func TestBatchNoJoinOnceAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		full := true
		s := newStage(func(b batch) error {
			if !full {
				return win(b)
			}
			for _, c := range b.calls {
				c.answer(Booking{}, Refuse(SlotFull, "full"))
			}
			<-hold // answered, and not yet put away
			return nil
		})
		wantCode(t, <-s.queue(t, 1, "same"), SlotFull)
		full = false
		again := s.queue(t, 1, "same")
		close(hold)
		wantCode(t, <-again, "")
	})
}

func TestBatchCallersGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		play, release := blocking()
		s := newStage(play)
		s.queue(t, 1, "first")
		leaving, leave := context.WithCancel(t.Context())
		answers := make(chan error, 2)
		for _, key := range []string{"gone", "joined"} {
			go func() {
				_, err := s.book(leaving, newCall(2, key))
				answers <- err
			}()
		}
		synctest.Wait()
		stays := s.queue(t, 2, "joined")
		leave()
		for range 2 {
			if err := <-answers; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller who left got %v", err)
			}
		}
		release()
		if err := <-stays; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if keys := s.batches[1].keys(); !slices.Equal(keys, []string{"joined"}) {
			t.Errorf("executed %v, want only what somebody still waits for", keys)
		}
	})
}

// A slot locked elsewhere is skipped, tried again, then waited for on the slow lane; the calls
// of other slots go on, and its own keep their order.
func TestBatchSlowLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var waited batch
		s := newStage(func(b batch) error {
			if b.wait {
				waited = b
				return win(b)
			}
			for _, c := range b.calls {
				if c.busy = c.request.Slot == 1; !c.busy {
					c.answer(Booking{}, nil)
				}
			}
			return nil
		})
		stuck := s.queue(t, 1, "a", "b", "c")
		if err := <-s.queue(t, 2, "elsewhere"); err != nil {
			t.Error(err)
		}
		start := time.Now()
		for range 3 {
			if err := <-stuck; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took < skipPatience || took > skipPatience+5*skipRest {
			t.Errorf("the slow lane began after %s", took)
		}
		if !slices.Equal(waited.keys(), []string{"a", "b", "c"}) {
			t.Errorf("the slow lane took %v", waited.keys())
		}
	})
}

// More stuck slots than slow lanes: all are refused in bounded time, none waits for ever.
func TestBatchSlowLanesFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(func(b batch) error {
			if b.wait {
				time.Sleep(1500 * time.Millisecond) // the bubble's clock
				for _, c := range b.calls {
					c.answer(Booking{}, errOverloaded)
				}
				return errOverloaded
			}
			for _, c := range b.calls {
				c.busy = true
			}
			return nil
		})
		start := time.Now()
		var answers []<-chan error
		for slot := range SlotID(20) {
			answers = append(answers, s.queue(t, slot, "a"))
		}
		for _, a := range answers {
			wantCode(t, <-a, Overloaded)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("refused after %s", took)
		}
	})
}

// When the database can't be worked with, those who wait are told so at once, not batch by batch.
func TestBatchDatabaseAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := &Error{Code: OutcomeUnknown}
		s := newStage(func(b batch) error {
			time.Sleep(time.Second) // the bubble's clock
			for _, c := range b.calls {
				c.answer(Booking{}, away)
			}
			return away
		})
		start := time.Now()
		first := s.queue(t, 1, "a")
		var rest []<-chan error
		for slot := range SlotID(500) {
			rest = append(rest, s.queue(t, slot+2, "a"))
		}
		wantCode(t, <-first, OutcomeUnknown)
		unavailable := 0
		for _, r := range rest {
			if code(<-r) == Unavailable { // they had no effect, and may know it
				unavailable++
			}
		}
		if took := time.Since(start); took > 2*time.Second || unavailable == 0 {
			t.Errorf("%d of 500 were UNAVAILABLE after %s", unavailable, took)
		}
	})
}
