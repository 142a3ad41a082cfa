package auth

import (
	"sync"
	"time"
)

// cache keeps what was found out lately, each until a moment of its own. It holds at most twice
// size entries: when the young ones are that many they become the old ones, and the old ones go,
// but for those that were asked for in the meantime.
type cache[K comparable, V any] struct {
	size       int
	mu         sync.Mutex
	young, old map[K]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

func newCache[K comparable, V any](size int) *cache[K, V] {
	return &cache[K, V]{size: size, young: make(map[K]entry[V]), old: make(map[K]entry[V])}
}

// at is the value that stands for key at now.
func (c *cache[K, V]) at(key K, now time.Time) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[key]
	if !ok {
		if e, ok = c.old[key]; ok {
			c.insert(key, e)
		}
	}
	if !ok || !now.Before(e.until) {
		var none V
		return none, false
	}
	return e.value, true
}

// put keeps value for key until that moment.
func (c *cache[K, V]) put(key K, value V, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(key, entry[V]{value, until})
}

func (c *cache[K, V]) insert(key K, e entry[V]) {
	if len(c.young) >= c.size {
		c.old, c.young = c.young, c.old
		clear(c.young) // its room stays: a crowd fills it again and again
	}
	c.young[key] = e
}

// len is the number of entries kept.
func (c *cache[K, V]) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.young) + len(c.old)
}
