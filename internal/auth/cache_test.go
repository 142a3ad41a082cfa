package auth

import (
	"testing"
	"time"
)

func TestCache(t *testing.T) {
	t.Parallel()
	const size = 10
	c := newCache[int, int](size)
	later := epoch.Add(time.Minute)
	c.put(-1, 1, later)
	for i := range 100 * size {
		c.put(i, i, later)
		if v, ok := c.at(i, epoch); !ok || v != i {
			t.Fatalf("at(%d) = %d, %v right after put", i, v, ok)
		}
		if _, ok := c.at(-1, epoch); !ok {
			t.Fatalf("what is asked for all the time is gone after %d others", i)
		}
		if n := c.len(); n > 2*size {
			t.Fatalf("%d entries, want %d at most", n, 2*size)
		}
	}
	if _, ok := c.at(0, epoch); ok {
		t.Error("what nobody asked for is still there")
	}
	if _, ok := c.at(-1, later.Add(-1)); !ok {
		t.Error("gone before its time")
	}
	if _, ok := c.at(-1, later); ok {
		t.Error("there after its time")
	}
}
