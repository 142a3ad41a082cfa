package availability

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

func codeOf(err error) booking.Code {
	var refused *booking.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	if err != nil {
		return booking.Code(err.Error())
	}
	return ""
}

func pat(n int) booking.Actor {
	return booking.Actor{Kind: booking.Patient, Subject: fmt.Sprint("p", n), PatientID: booking.PatientID(n)}
}

func request(patient int, slot booking.SlotID, key string) booking.BookRequest {
	return booking.BookRequest{Slot: slot, Patient: booking.PatientID(patient), Key: key}
}

// admit asks on behalf of a patient, and gives no reason but RATE_LIMITED and SLOT_FULL.
func admit(t testing.TB, g *Gate, patient int, slot booking.SlotID, key string) booking.Code {
	t.Helper()
	return codeOf(g.Admit(t.Context(), pat(patient), request(patient, slot, key)))
}

// newGate is a gate whose feed is alive, and tells everything since began.
func newGate(r *Redis, began time.Time) *Gate {
	g := NewGate(r, func() bool { return true })
	g.Resync(1, began)
	return g
}

func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(nil, time.Now())
		start := time.Now()
		take := func(patient int, key string, want booking.Code) {
			t.Helper()
			if got := admit(t, g, patient, 1, key); got != want {
				t.Errorf("%s: key %s of patient %d: %q, want %q", time.Since(start), key, patient, got, want)
			}
		}
		for n := range limitKeys {
			take(1, fmt.Sprint(n), "")
			time.Sleep(time.Second)
		}
		take(1, "new", booking.RateLimited)
		take(1, "0", "") // the same key again is free
		take(1, "4", "")
		take(2, "new", "")

		err := g.Admit(t.Context(), pat(1), request(1, 1, "new"))
		var refused *booking.Error
		if !errors.As(err, &refused) || refused.RetryAfter != limitWindow-5*time.Second {
			t.Errorf("%v, try again after %s", err, refused.RetryAfter)
		}
		time.Sleep(refused.RetryAfter)
		take(1, "new", "") // in the place of the first one
		take(1, "newer", booking.RateLimited)
		take(1, "1", "")
		time.Sleep(limitWindow)
		for n := range limitKeys {
			take(1, fmt.Sprint("later", n), "")
		}
		take(1, "new", booking.RateLimited)

		// Another caller for the same patient has a limit of their own.
		desk := booking.Actor{Kind: booking.Staff, Subject: "desk", Organization: 1}
		if err := g.Admit(t.Context(), desk, request(1, 1, "new")); err != nil {
			t.Error(err)
		}
	})
}

// Of many that come at once, at several instances, five are let through; each key counts once.
func TestLimitIsShared(t *testing.T) {
	t.Parallel()
	server := devenv.NewRedis(t)
	count := func(gates ...*Gate) int {
		var admitted atomic.Int64
		together(100, func(i int) {
			for range 3 {
				if admit(t, gates[i%len(gates)], 1, 1, fmt.Sprint(i)) == "" {
					admitted.Add(1)
				}
			}
		})
		return int(admitted.Load())
	}
	shared := []*Gate{
		newGate(patientRedis(t, server.URL()), time.Now()),
		newGate(patientRedis(t, server.URL()), time.Now()),
	}
	if n := count(shared...); n != 3*limitKeys {
		t.Errorf("%d calls were let through, want those of %d keys", n, limitKeys)
	}
	if code := admit(t, newGate(patientRedis(t, server.URL()), time.Now()), 1, 1, "late"); code != booking.RateLimited {
		t.Errorf("at an instance that has not seen the patient: %q", code)
	}
	if n := count(newGate(nil, time.Now()), newGate(nil, time.Now())); n != 2*3*limitKeys {
		t.Errorf("%d calls were let through by two instances without Redis, want each its own: the test above proves nothing", n)
	}
	client := clientOf(t, server)
	keys := client.Keys(t.Context(), "*").Val()
	for _, key := range keys {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > limitWindow {
			t.Errorf("%s lives for %s", key, ttl)
		}
		if strings.Contains(key, "patient") {
			t.Errorf("%s tells of a person", key)
		}
	}
	if len(keys) == 0 {
		t.Error("nothing is in Redis")
	}
}

// What others have put where our keys are does no harm, and goes.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(c *redis.Client, key string) error{
		"text": func(c *redis.Client, key string) error { return c.Set(t.Context(), key, "full", 0).Err() },
		"hash": func(c *redis.Client, key string) error { return c.HSet(t.Context(), key, "a", "b").Err() },
		"list": func(c *redis.Client, key string) error { return c.RPush(t.Context(), key, "a").Err() },
		"times to come": func(c *redis.Client, key string) error {
			return c.Set(t.Context(), key, strings.Repeat("ab 99999999999999\n", limitKeys), 0).Err()
		},
		"much": func(c *redis.Client, key string) error {
			return c.Set(t.Context(), key, strings.Repeat(fmt.Sprintf("ab %d\n", time.Now().UnixMilli()), 1000), 0).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := devenv.NewRedis(t)
			r := patientRedis(t, server.URL())
			g, c := newGate(r, time.Now()), clientOf(t, server)
			must(t, put(c, r.newAsk(pat(1).Caller(), request(1, 7, "k"), true).key))
			must(t, put(c, markKey(7)))
			for n := range limitKeys {
				if code := admit(t, g, 1, 7, fmt.Sprint(n)); code != "" {
					t.Errorf("call %d: %s", n, code)
				}
			}
			if code := admit(t, newGate(r, time.Now()), 1, 7, "one more"); code != booking.RateLimited {
				t.Errorf("the sixth key: %q, want %s", code, booking.RateLimited)
			}
			g.Full(booking.FullMark{Slot: 7, Version: 1, At: time.Now()})
			await(t, "the mark takes its place", func() bool {
				_, ok := parseMark(c.Get(t.Context(), markKey(7)).Val())
				return ok
			})
			if !r.usable() {
				t.Error("Redis is not used any more")
			}
		})
	}
}

// Calls go on whatever happens to Redis, the limit then is the process's own, and is shared again
// afterwards.
func TestGateInTrouble(t *testing.T) {
	t.Parallel()
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := devenv.NewRedis(t)
			p, url := newRelay(t, server)
			r := openRedis(t, url, nil)
			g, other := newGate(r, time.Now()), newGate(r, time.Now())
			end := trouble(t, p, server)
			together(50, func(i int) {
				if code := admit(t, g, 100+i, 7, "k"); code != "" {
					t.Errorf("patient %d: %s", i, code)
				}
			})
			admitted := 0
			for n := range 20 {
				if admit(t, g, 1, 7, fmt.Sprint(n)) == "" {
					admitted++
				}
			}
			if admitted != limitKeys {
				t.Errorf("%d keys were let through, want %d", admitted, limitKeys)
			}
			end()
			await(t, "Redis is used again", r.usable)
			for n := range limitKeys {
				admit(t, g, 2, 7, fmt.Sprint(n))
			}
			if code := admit(t, other, 2, 7, "one more"); code != booking.RateLimited {
				t.Errorf("after the trouble the sixth key elsewhere: %q", code)
			}
		})
	}
}

// liar answers commands with whatever comes to its mind: of what it has heard and read, of what
// Redis may say, and of what no Redis says. Probes it answers well, or nobody would listen to it.
type liar struct {
	mu    sync.Mutex
	dice  *rand.Rand
	heard []string
}

func newLiar(seed uint64) *liar {
	return &liar{dice: rand.New(rand.NewPCG(seed, 0)), heard: []string{"", "OK", "full 1 1 1"}}
}

func (l *liar) answer(command []string, own func() []byte) []byte {
	for _, word := range command {
		if strings.HasPrefix(word, "openslot:probe") {
			return own()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	said := l.value(0)
	if l.dice.IntN(3) == 0 {
		said = string(own()) // the truth, now and then: it is remembered for somebody else
		l.heard = append(l.heard, said)
	}
	l.heard = append(l.heard, command...)
	if len(l.heard) > 100 {
		l.heard = l.heard[50:]
	}
	return []byte(said)
}

func (l *liar) value(depth int) string {
	switch l.dice.IntN(8) {
	case 0:
		return fmt.Sprintf(":%d\r\n", l.dice.Int64()>>l.dice.IntN(64))
	case 1:
		return "$-1\r\n"
	case 2:
		return "+OK\r\n"
	case 3:
		return []string{"-ERR no\r\n", "-NOSCRIPT no\r\n", "-WRONGTYPE no\r\n", "-READONLY no\r\n", "-MOVED 1 127.0.0.1:1\r\n", "*-1\r\n", "?\r\n", "*-7\r\n"}[l.dice.IntN(8)]
	case 4, 5:
		if depth < 3 {
			n := l.dice.IntN(4)
			text := fmt.Sprintf("*%d\r\n", n)
			for range n {
				text += l.value(depth + 1)
			}
			return text
		}
	case 6:
		return l.heard[l.dice.IntN(len(l.heard))] // perhaps a whole answer to something else
	}
	word := l.heard[l.dice.IntN(len(l.heard))]
	return fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
}

// F19: no answer at random refuses anybody who is within the limit a free slot.
func TestLyingRedis(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p, url := newRelay(t, devenv.NewRedis(t))
			r := openRedis(t, url, nil)
			var lies atomic.Int64
			l := newLiar(seed)
			p.play(func(command []string, own func() []byte) []byte {
				lies.Add(1)
				return l.answer(command, own)
			})
			g := newGate(r, time.Now())
			patient := 0
			// On a busy machine the gate does without Redis for most of the time.
			for began := time.Now(); time.Since(began) < 3*time.Second || lies.Load() < 10 && time.Since(began) < time.Minute; {
				patient++
				slot := booking.SlotID(patient % 50)
				for _, key := range []string{"a", "b", "b"} {
					if code := admit(t, g, patient, slot, key); code != "" {
						t.Errorf("patient %d: %s", patient, code)
					}
				}
			}
			if lies.Load() < 10 {
				t.Errorf("only %d lies were told", lies.Load())
			}
		})
	}
}

func BenchmarkAdmit(b *testing.B) {
	r := openRedis(b, devenv.NewRedis(b).URL(), nil)
	full := newGate(r, time.Now().Add(-time.Hour))
	full.Full(booking.FullMark{Slot: 1, Version: 1, At: time.Now()})
	var patients atomic.Int64
	for name, g := range map[string]*Gate{"Full": full, "Redis": newGate(r, time.Now()), "Alone": newGate(nil, time.Now())} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(128)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					n := int(patients.Add(1))
					_ = g.Admit(context.Background(), pat(n), request(n, 1, "k"))
				}
			})
		})
	}
}
