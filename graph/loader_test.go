package graph

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
)

func TestLoader(t *testing.T) {
	t.Parallel()
	var reads [][]int
	l := newLoader(func(_ context.Context, ids []int) (map[int]string, error) {
		slices.Sort(ids)
		reads = append(reads, ids)
		found := map[int]string{}
		for _, id := range ids {
			if id < 100 {
				found[id] = string(rune('a' + id))
			}
		}
		return found, nil
	})
	for i := range 5 {
		l.expect(i)
	}
	var asking sync.WaitGroup
	for i := range 5 {
		asking.Go(func() {
			if v, err := l.load(t.Context(), i); err != nil || *v != string(rune('a'+i)) {
				t.Errorf("%d: %v %v", i, v, err)
			}
		})
	}
	asking.Wait()
	if len(reads) != 1 || len(reads[0]) != 5 {
		t.Errorf("read %v, want five at once", reads)
	}
	l.expect(3) // known: not read again
	for _, id := range []int{7, 8} {
		if v, err := l.load(t.Context(), id); err != nil || v == nil { // the control: nobody said that they come
			t.Errorf("%d: %v %v", id, v, err)
		}
	}
	if v, err := l.load(t.Context(), 100); v != nil || err != nil {
		t.Errorf("absent: %v %v", v, err)
	}
	if len(reads) != 4 {
		t.Errorf("read %v, want one more for each that was not expected", reads)
	}
}

func TestLoaderFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := newLoader(func(context.Context, []int) (map[int]string, error) { return map[int]string{1: "x"}, broken })
	if v, err := l.load(t.Context(), 1); v != nil || !errors.Is(err, broken) {
		t.Errorf("%v %v", v, err)
	}
	l = newLoader(func(context.Context, []int) (map[int]string, error) { panic("broken") })
	l.expect(2)
	func() {
		defer func() { recover() }()
		l.load(t.Context(), 1)
	}()
	if v, err := l.load(t.Context(), 2); v != nil || err == nil {
		t.Errorf("beside a panic: %v %v", v, err)
	}
	slow := make(chan struct{})
	l = newLoader(func(context.Context, []int) (map[int]string, error) {
		<-slow
		return maps.Collect(maps.All(map[int]string{})), nil
	})
	go l.load(t.Context(), 1)
	await(t, "the read has begun", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.batches[1] != nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.load(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("gave up with %v", err)
	}
	close(slow)
}
