package availability

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"openslot/internal/devenv"
)

// relay stands between us and a Redis, and answers in its place when told to.
type relay struct {
	listener net.Listener
	server   string
	// answer makes the answer to a command, given a way to get the server's own. nil = none, ever.
	answer atomic.Pointer[func(command []string, own func() []byte) []byte]

	mu     sync.Mutex
	shut   bool
	conns  map[net.Conn]struct{}
	served sync.WaitGroup
}

// newRelay returns a relay to the Redis and the address at which it poses as it.
func newRelay(t testing.TB, to *devenv.Redis) (*relay, string) {
	t.Helper()
	options, err := redis.ParseURL(to.URL())
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &relay{listener: l, server: options.Addr, conns: map[net.Conn]struct{}{}}
	p.honest()
	p.served.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.served.Wait()
	})
	return p, strings.Replace(to.URL(), options.Addr, l.Addr().String(), 1)
}

func (p *relay) play(answer func(command []string, own func() []byte) []byte) {
	p.answer.Store(&answer)
}

func (p *relay) honest() {
	p.play(func(_ []string, own func() []byte) []byte { return own() })
}

// cut ends all connections and lets none begin; open lets them.
func (p *relay) cut()  { p.set(true) }
func (p *relay) open() { p.set(false) }

func (p *relay) set(shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = shut
	if shut {
		for c := range p.conns {
			c.Close()
		}
	}
}

func (p *relay) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.shut {
			client.Close()
		} else {
			p.conns[client] = struct{}{}
			p.served.Go(func() { p.serve(client) })
		}
		p.mu.Unlock()
	}
}

func (p *relay) serve(client net.Conn) {
	defer func() {
		client.Close()
		p.mu.Lock()
		delete(p.conns, client)
		p.mu.Unlock()
	}()
	server, err := net.Dial("tcp", p.server) //nolint:noctx // it is here
	if err != nil {
		return
	}
	defer server.Close()
	from, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		command, raw, err := readRESP(from)
		if err != nil {
			return
		}
		reply := (*p.answer.Load())(command, func() []byte {
			if _, err := server.Write(raw); err != nil {
				return nil
			}
			_, raw, _ := readRESP(replies)
			return raw
		})
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// readRESP reads one value of Redis' protocol: the strings in it, and its bytes.
func readRESP(from *bufio.Reader) (words []string, raw []byte, err error) {
	line, err := from.ReadBytes('\n')
	if err != nil || len(line) < 3 {
		return nil, nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	switch line[0] {
	case '*':
		for range n {
			more, rest, err := readRESP(from)
			if err != nil {
				return nil, nil, err
			}
			words, line = append(words, more...), append(line, rest...)
		}
	case '$':
		if n >= 0 {
			text := make([]byte, n+2)
			if _, err := io.ReadFull(from, text); err != nil {
				return nil, nil, err
			}
			words, line = []string{string(text[:n])}, append(line, text...)
		}
	}
	return words, line, nil
}

// openRedis connects until the test ends, and waits until Redis has answered.
func openRedis(t testing.TB, url string, log *slog.Logger) *Redis {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r, err := OpenRedis(url, log)
	if err != nil {
		t.Fatal(err)
	}
	run(t, r.Run)
	await(t, "Redis answers", r.usable)
	return r
}

// patientRedis is for what is not about time: a busy machine must not open the gate.
func patientRedis(t testing.TB, url string) *Redis {
	t.Helper()
	r, err := OpenRedis(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.patience = 20 * time.Second
	run(t, r.Run)
	await(t, "Redis answers", r.usable)
	return r
}

// run runs a long-lived part until the test ends.
func run(t testing.TB, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// together runs n calls at once.
func together(n int, call func(i int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	all.Wait()
}

func (r *Redis) ping(ctx context.Context) (string, bool) {
	c := redis.NewCmd(ctx, "echo", r.echo())
	if !r.do(ctx, time.Now().Add(redisPatience), c) {
		return "", false
	}
	text, err := c.Text()
	return text, err == nil && text == c.Args()[1]
}

// Commands that come together travel together, and each gets its own answer.
func TestRedisFlights(t *testing.T) {
	t.Parallel()
	r := openRedis(t, devenv.NewRedis(t).URL(), nil)
	var wrong atomic.Int64
	together(200, func(int) {
		for range 20 {
			if _, ok := r.ping(t.Context()); !ok && r.usable() {
				wrong.Add(1)
			}
		}
	})
	if wrong.Load() > 0 {
		t.Errorf("%d wrong answers", wrong.Load())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.ping(gone)
	await(t, "it answers", func() bool { _, ok := r.ping(t.Context()); return ok })
}

// troubles are what may happen to Redis, and how it ends. Each returns false if it can't be had
// with this server.
var troubles = map[string]func(t *testing.T, p *relay, server *devenv.Redis) (end func()){
	"away": func(_ *testing.T, p *relay, _ *devenv.Redis) func() {
		p.cut()
		return p.open
	},
	"killed": func(t *testing.T, _ *relay, server *devenv.Redis) func() {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	},
	"hung": func(_ *testing.T, p *relay, _ *devenv.Redis) func() {
		p.play(func([]string, func() []byte) []byte { return nil })
		return p.honest
	},
	"slow": func(t *testing.T, p *relay, _ *devenv.Redis) func() {
		p.play(func(_ []string, own func() []byte) []byte {
			sleep(t.Context(), time.Second)
			return own()
		})
		return p.honest
	},
	"loading": func(_ *testing.T, p *relay, _ *devenv.Redis) func() {
		p.play(func([]string, func() []byte) []byte {
			return []byte("-LOADING Redis is loading the dataset in memory\r\n")
		})
		return p.honest
	},
	"read-only": func(t *testing.T, _ *relay, server *devenv.Redis) func() {
		if !server.Real() {
			t.Skip("needs a redis-server")
		}
		client := clientOf(t, server)
		must(t, client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
		return func() { must(t, client.Do(context.WithoutCancel(t.Context()), "replicaof", "no", "one").Err()) }
	},
}

func clientOf(t testing.TB, server *devenv.Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(server.URL())
	must(t, err)
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to Redis costs callers its patience once, and it is used again soon after.
func TestRedisTroubles(t *testing.T) {
	t.Parallel()
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := devenv.NewRedis(t)
			p, url := newRelay(t, server)
			var log lines
			r := openRedis(t, url, slog.New(slog.NewTextHandler(&log, nil)))
			for range 3 {
				await(t, "it is used", func() bool {
					_, ok := r.ping(t.Context())
					return ok
				})
				end := trouble(t, p, server)
				var slowest atomic.Int64
				together(20, func(int) {
					began := time.Now()
					for range 50 {
						r.do(t.Context(), time.Now().Add(redisPatience), redis.NewStatusCmd(t.Context(), "set", "k", "v"))
					}
					slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				})
				// The machine of a test may be busy: what counts is that 50 calls don't cost 50 times.
				if took := time.Duration(slowest.Load()); took > 10*redisPatience {
					t.Errorf("50 calls took %s, of which one alone should wait for %s", took, redisPatience)
				}
				await(t, "the trouble is seen", func() bool { return !r.usable() })
				end()
				began := time.Now()
				await(t, "it is used again", r.usable)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("it took %s until Redis was used again", took)
				}
			}
			if n := log.count("going on without Redis"); n != 1 {
				t.Errorf("%d lines about the trouble in the log", n)
			}
		})
	}
	t.Run("without the breaker every call would wait", func(t *testing.T) {
		t.Parallel()
		p, url := newRelay(t, devenv.NewRedis(t))
		r := openRedis(t, url, nil)
		p.play(func([]string, func() []byte) []byte { return nil })
		began := time.Now()
		for range 5 {
			r.mu.Lock()
			r.sound.Store(true)
			r.mu.Unlock()
			select {
			case <-r.trouble:
			default:
			}
			r.ping(t.Context())
		}
		if took := time.Since(began); took < 3*redisPatience {
			t.Errorf("5 calls took only %s: the test above proves nothing", took)
		}
	})
}

// lines is a log that may be written to and read at once.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func TestRedisAddress(t *testing.T) {
	t.Parallel()
	if _, err := OpenRedis("http://localhost", nil); err == nil {
		t.Error("an address that is none")
	}
	if _, err := OpenRedis("redis://user:pass word@localhost:port", nil); err == nil || strings.Contains(err.Error(), "pass word") {
		t.Errorf("an address with a password that is none: %v", err)
	}
	r, err := OpenRedis("redis://127.0.0.1:1", nil)
	must(t, err)
	if r.usable() || r.send([]redis.Cmder{redis.NewStatusCmd(t.Context(), "ping")}) != nil {
		t.Error("it is used before it has answered")
	}
	var none *Redis
	if none.usable() || none.do(t.Context(), time.Now(), redis.NewStatusCmd(t.Context(), "ping")) {
		t.Error("no Redis answers")
	}
}

func BenchmarkRedisFlight(b *testing.B) {
	r := openRedis(b, devenv.NewRedis(b).URL(), nil)
	for _, callers := range []int{1, 128} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			b.SetParallelism(callers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r.ping(b.Context())
				}
			})
		})
	}
}
