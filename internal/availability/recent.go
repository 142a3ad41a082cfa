package availability

import "time"

// recent is a map that forgets what nobody has looked at or put there for a while: not before
// period has passed, and not later than after twice that long. Its owner locks it.
type recent[K comparable, V any] struct {
	period time.Duration
	most   int // entries per period
	turned time.Time
	young  map[K]V
	old    map[K]V
}

func newRecent[K comparable, V any](period time.Duration, most int) recent[K, V] {
	return recent[K, V]{period: period, most: most, turned: time.Now(), young: map[K]V{}, old: map[K]V{}}
}

// find returns what is there, which then stays for another period.
func (r *recent[K, V]) find(k K, now time.Time) (V, bool) {
	r.turn(now)
	v, ok := r.young[k]
	if !ok {
		if v, ok = r.old[k]; ok {
			delete(r.old, k)
			r.young[k] = v
		}
	}
	return v, ok
}

// put reports whether it had to forget what is younger than a period to make room.
func (r *recent[K, V]) put(k K, v V, now time.Time) (early bool) {
	r.turn(now)
	if early = len(r.young) >= r.most; early {
		r.old, r.young, r.turned = r.young, map[K]V{}, now
	}
	delete(r.old, k)
	r.young[k] = v
	return early
}

func (r *recent[K, V]) turn(now time.Time) {
	age := now.Sub(r.turned)
	if age < r.period {
		return
	}
	r.old, r.young, r.turned = r.young, map[K]V{}, now
	if age >= 2*r.period {
		r.old = map[K]V{}
	}
}
