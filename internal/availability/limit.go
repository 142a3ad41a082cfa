package availability

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"openslot/internal/booking"
)

// At most limitKeys different keys are taken for one caller and patient within limitWindow.
const (
	limitKeys   = 5
	limitWindow = 10 * time.Second
	limitMost   = 1 << 18 // callers and patients remembered by this process
)

// limiter counts what came to this process. Of several processes each counts its own part;
// Redis has the sum.
type limiter struct {
	seed maphash.Seed

	mu      sync.Mutex
	windows recent[uint64, *window]
}

// window is the keys of one caller and patient, the oldest first.
type window struct {
	n       int
	keys    [limitKeys]uint64
	at      [limitKeys]time.Time
	settled [limitKeys]bool
}

// charge is a key that has been counted. Until it is settled, the same key is no proof that it
// has been let through.
type charge struct {
	window, key uint64
	settled     bool
}

func newLimiter() *limiter {
	return &limiter{seed: maphash.MakeSeed(), windows: newRecent[uint64, *window](limitWindow, limitMost)}
}

// charge counts the request's key, once however often it comes, or says how long to wait until
// there is room for another.
func (l *limiter) charge(caller string, r booking.BookRequest, now time.Time) (c charge, wait time.Duration) {
	var h maphash.Hash
	h.SetSeed(l.seed)
	h.WriteString(r.Key)
	c.key = h.Sum64()
	c.window = l.window(caller, r.Patient)

	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.windows.find(c.window, now)
	if !ok {
		w = &window{}
		l.windows.put(c.window, w, now)
	}
	for w.n > 0 && now.Sub(w.at[0]) >= limitWindow {
		w.remove(0)
	}
	if i := w.index(c.key); i >= 0 {
		c.settled = w.settled[i]
		return c, 0
	}
	if w.n == limitKeys {
		return c, limitWindow - now.Sub(w.at[0])
	}
	w.keys[w.n], w.at[w.n], w.settled[w.n] = c.key, now, false
	w.n++
	return c, 0
}

// window names the window of a caller and patient.
func (l *limiter) window(caller string, patient booking.PatientID) uint64 {
	var h maphash.Hash
	h.SetSeed(l.seed)
	h.WriteString(strconv.FormatInt(int64(patient), 10))
	h.WriteByte(' ')
	h.WriteString(caller)
	return h.Sum64()
}

// taken is how many keys are counted now, and how long the oldest of them still will be.
func (l *limiter) taken(caller string, patient booking.PatientID, now time.Time) (n int, oldest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.windows.find(l.window(caller, patient), now)
	if !ok {
		return 0, limitWindow
	}
	oldest = limitWindow
	for i := range w.n {
		if left := limitWindow - now.Sub(w.at[i]); left > 0 {
			n, oldest = n+1, min(oldest, left)
		}
	}
	return n, oldest
}

// settle lets the key through for the rest of its time; release takes the charge back.
func (l *limiter) settle(c charge) {
	if c.settled {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.windows.find(c.window, time.Now()); ok {
		if i := w.index(c.key); i >= 0 {
			w.settled[i] = true
		}
	}
}

func (l *limiter) release(c charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.windows.find(c.window, time.Now()); ok {
		if i := w.index(c.key); i >= 0 && !w.settled[i] {
			w.remove(i)
		}
	}
}

func (w *window) index(key uint64) int {
	for i := range w.n {
		if w.keys[i] == key {
			return i
		}
	}
	return -1
}

func (w *window) remove(i int) {
	copy(w.keys[i:], w.keys[i+1:w.n])
	copy(w.at[i:], w.at[i+1:w.n])
	copy(w.settled[i:], w.settled[i+1:w.n])
	w.n--
}

// limitScript counts a key for everybody, by the clock of Redis, and returns its last argument,
// for proof that it has run, and how many milliseconds to wait (0 = the key is let through). The
// value is a line for each key that was let through, with its time. What else it may find there
// counts for nothing and is written over.
const limitScript = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local window, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.pcall('GET', KEYS[1])
local kept, n, oldest = '', 0, now
if type(stored) == 'string' and #stored < 1000 then
	for key, at in string.gmatch(stored, '(%x+) (%d+)\n') do
		local age = now - tonumber(at)
		if age >= 0 and age < window then
			if key == ARGV[1] then return {ARGV[4], 0} end
			if n == 0 then oldest = tonumber(at) end
			kept, n = kept .. key .. ' ' .. at .. '\n', n + 1
		end
	end
end
if n >= most then return {ARGV[4], oldest + window - now} end
redis.call('SET', KEYS[1], kept .. ARGV[1] .. ' ' .. string.format('%d', now) .. '\n', 'PX', window)
return {ARGV[4], 0}`

var limitScriptHash = redis.NewScript(limitScript).Hash()

// ask is a run of limitScript.
type ask struct {
	*redis.Cmd
	key, member, nonce string
}

// newAsk makes a run of limitScript for a request; short sends the script's hash in its place.
// Caller and key are personal data of sorts, so Redis gets what they hash to.
func (r *Redis) newAsk(caller string, request booking.BookRequest, short bool) ask {
	who := sha256.Sum256([]byte(strconv.FormatInt(int64(request.Patient), 10) + " " + caller))
	what := sha256.Sum256([]byte(request.Key))
	a := ask{
		key:    "openslot:limit:{" + hex.EncodeToString(who[:12]) + "}",
		member: hex.EncodeToString(what[:8]),
		nonce:  r.echo(),
	}
	verb, script := "evalsha", limitScriptHash
	if !short {
		verb, script = "eval", limitScript
	}
	a.Cmd = redis.NewCmd(context.Background(), verb, script, 1, a.key, a.member, limitWindow.Milliseconds(), limitKeys, a.nonce)
	return a
}

// wait is how long the script says to wait; 0 also for whatever it can't have said.
func (a ask) wait() time.Duration {
	said, err := a.Slice()
	if err != nil || len(said) != 2 || said[0] != a.nonce {
		return 0
	}
	ms, _ := said[1].(int64)
	wait := time.Duration(ms) * time.Millisecond
	if wait < 0 || wait > limitWindow {
		return 0
	}
	return wait
}
