package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestHistogram holds quantiles against those of the sorted values.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 20_000_000), 1, 200).Draw(t, "µs")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var a, b histogram
		for i, v := range values {
			if i%2 == 0 {
				a.add(time.Duration(v) * time.Microsecond)
			} else {
				b.add(time.Duration(v) * time.Microsecond)
			}
		}
		a.merge(&b)
		slices.Sort(values)
		exact := float64(values[max(0, int(math.Ceil(q*float64(len(values))))-1)]) / 1000
		if got := a.quantile(q); got < exact || got > exact*1.033+0.0005 {
			t.Errorf("quantile %v of %v is %v ms, want %v or a little more", q, values, got, exact)
		}
	})
	if v := new(histogram).quantile(0.5); !math.IsNaN(v) {
		t.Errorf("the median of nothing is %v", v)
	}
}

func TestZipf(t *testing.T) {
	z := newZipf(100)
	var counts [100]int
	r := random(1)
	for range 100_000 {
		counts[z.draw(&r)]++
	}
	if first, tenth := counts[0], counts[9]; first < 8*tenth || first > 12*tenth {
		t.Errorf("the first is drawn %d times, the tenth %d: want ten to one", first, tenth)
	}
}

// TestTurns: whoever books again books another time, for every patient and as long as a run may last.
func TestTurns(t *testing.T) {
	for _, patients := range []int{little.size.patients, 300_000} {
		g := &ground{size: size{patients: patients}}
		b := g.spread(7, 3)
		c := newCaller("", 0)
		seen := map[int]bool{}
		for turn := range slotsEach {
			at := int(b.slot(c, 5+turn*patients)-1) % slotsEach
			if seen[at] {
				t.Fatalf("with %d patients, a patient has time %d twice", patients, at)
			}
			seen[at] = true
		}
	}
}

// answerer is a server that speaks as much HTTP as the client does.
func answerer(t *testing.T, handler http.HandlerFunc) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket.Addr().String()
}

// TestStall: a server that stands still for a while has everybody who came meanwhile wait. The open
// loop says so; callers who wait for their answers before they ask again would have noticed once.
func TestStall(t *testing.T) {
	const stall = 400 * time.Millisecond
	var calls atomic.Int64
	var standing sync.Mutex
	address := answerer(t, func(w http.ResponseWriter, _ *http.Request) {
		standing.Lock()
		if calls.Add(1) == 100 {
			<-time.After(stall)
		}
		standing.Unlock()
		w.Write([]byte("ok"))
	})
	call := func(ctx context.Context, c *caller, _ int) (kind, error) {
		status, _, err := c.conn.do(ctx, c.request.list(1, "2030-01-01"))
		if err == nil && status != 200 {
			err = errors.New("refused")
		}
		return plain, err
	}
	open := openLoop{address: address, rate: 500, length: 2 * time.Second, callers: 8, call: call}.run(t.Context())
	latency := open.of(plain)
	if open.errors > 0 || latency.count < 800 || latency.count > 1200 {
		t.Fatalf("%d calls and %d errors, want about 1000 and 0: %v", latency.count, open.errors, open.examples)
	}
	if got := latency.quantile(0.85); got < 50 {
		t.Errorf("the 85th percentile is %v ms, though a fifth of all came while nothing moved", got)
	}

	calls.Store(0)
	closed := closedLoop{address: address, callers: 8, window: 2 * time.Second, cpu: func() time.Duration { return 0 }, call: call}.run(t.Context())
	latency = closed.of(plain)
	if got := latency.quantile(0.85); closed.errors > 0 || got >= 50 {
		t.Errorf("the control: the 85th percentile of the closed loop is %v ms, %d errors", got, closed.errors)
	}
}

// TestClosedLoop: calls outside the window do not count, wrong answers do.
func TestClosedLoop(t *testing.T) {
	address := answerer(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) })
	var cpu time.Duration
	r := closedLoop{address: address, callers: 2, warm: 100 * time.Millisecond, window: 300 * time.Millisecond,
		cpu: func() time.Duration { cpu += time.Second; return cpu },
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			if c.index == 1 {
				return plain, errors.New("wrong")
			}
			<-time.After(10 * time.Millisecond)
			return won, nil
		}}.run(t.Context())
	f := r.figures(won)
	if n := r.latency[won].count; n < 3 || n > 30 {
		t.Errorf("%d calls of 10 ms in 300 ms", n)
	}
	if f.Errors < 5 || len(r.examples) != maxExamples {
		t.Errorf("%d errors, examples %q", f.Errors, r.examples)
	}
	if want := 1e6 / float64(r.latency[won].count); math.Abs(f.CPU-want) > 1 {
		t.Errorf("CPU %v µs for each, want %v", f.CPU, want)
	}
}

func TestReadAnswer(t *testing.T) {
	const whole = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
	tests := []struct {
		in     string
		status int
		body   string
		rest   int
		err    bool
	}{
		{whole, 200, "hello", 0, false},
		{whole + "HT", 200, "hello", 2, false},
		{whole[:len(whole)-1], 0, "", -1, false},
		{whole[:20], 0, "", -1, false},
		{"", 0, "", -1, false},
		{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 503, "", 0, false},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, "", 0, true},
		{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 200, "", 0, true},
		{"SMTP\r\n\r\n", 0, "", 0, true},
		{"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n", 0, "", 0, true},
	}
	for _, tt := range tests {
		status, body, rest, err := readAnswer([]byte(tt.in))
		if (err != nil) != tt.err || !tt.err && (status != tt.status || string(body) != tt.body || rest != tt.rest) {
			t.Errorf("readAnswer(%q) = %d, %q, %d, %v", tt.in, status, body, rest, err)
		}
	}
}

// TestRequest: net/http reads what the client writes.
func TestRequest(t *testing.T) {
	var r request
	for name, text := range map[string][]byte{
		"book":   r.book("token", 42, "key"),
		"cancel": new(request).cancel("token", 7),
		"list":   new(request).list(3, "2030-01-01"),
	} {
		got, err := http.ReadRequest(bufio.NewReader(iotest.OneByteReader(strings.NewReader(string(text)))))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, err := io.ReadAll(got.Body)
		if err != nil || int64(len(body)) != got.ContentLength || got.URL.Path != "/graphql" {
			t.Errorf("%s: %d bytes of %d to %s, %v", name, len(body), got.ContentLength, got.URL, err)
		}
		if diff := cmp.Diff(map[bool]string{true: "", false: "Bearer token"}[name == "list"], got.Header.Get("Authorization")); diff != "" {
			t.Errorf("%s: token (-want +got)\n%s", name, diff)
		}
	}
}

// TestReadBooked holds the quick way to read against encoding/json.
func TestReadBooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Int64Range(1, math.MaxInt64).Draw(t, "id")
		status := rapid.SampledFrom([]string{"BOOKED", "CANCELLED"}).Draw(t, "status")
		answers := []string{
			fmt.Sprintf(`{"data":{"bookAppointment":{"appointment":{"id":"%d","status":"%s","startAt":"2026-10-12T06:00:00Z"},"replayed":%v,"errors":[]}}}`, id, status, rapid.Bool().Draw(t, "replayed")),
			`{"data":{"bookAppointment":{"appointment":null,"replayed":false,"errors":[{"code":"SLOT_FULL","message":"No place is left in this slot. Choose another."}]}}}`,
			`{"data":{"bookAppointment":{"appointment":null,"replayed":false,"errors":[{"code":"SLOT_CLOSED","message":"No."}]}}}`,
			`{"data":{"bookAppointment":{"appointment":null,"replayed":false,"errors":[]}}}`,
			`{"errors":[{"message":"Sign in.","extensions":{"code":"UNAUTHENTICATED"}}],"data":null}`,
		}
		text := []byte(rapid.SampledFrom(answers).Draw(t, "answer"))
		if rapid.Bool().Draw(t, "garbled") {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "by")
		}
		code := rapid.SampledFrom([]int{200, 503}).Draw(t, "HTTP")
		got, gotErr := readBooked(code, text)
		want, wantErr := parseBooked(code, text)
		if (gotErr == nil) != (wantErr == nil) || gotErr == nil && got != want {
			t.Errorf("readBooked(%d, %s) = %+v, %v, want %+v, %v", code, text, got, gotErr, want, wantErr)
		}
	})
}

// TestWrongAnswers: what a program must not answer is found out.
func TestWrongAnswers(t *testing.T) {
	day := func(n int, change func(i int, s map[string]any)) []byte {
		slots := make([]string, n)
		for i := range slots {
			at := time.Date(2030, 1, 1, 8, 15*i, 0, 0, time.UTC)
			s := map[string]any{"free": 10, "end": at.Add(15 * time.Minute)}
			if change != nil {
				change(i, s)
			}
			slots[i] = fmt.Sprintf(`{"id":"%d","startAt":"%s","endAt":"%s","capacity":10,"free":%v,"status":"OPEN"}`,
				i+1, at.Format(time.RFC3339), s["end"].(time.Time).Format(time.RFC3339), s["free"])
		}
		return []byte(`{"data":{"slots":{"asOf":"2030-01-01T00:00:00Z","slots":[` + strings.Join(slots, ",") + `]}}}`)
	}
	if err := checkList(200, day(slotsPerDay, nil), true); err != nil {
		t.Errorf("a right list: %v", err)
	}
	for name, err := range map[string]error{
		"a short list":             checkList(200, day(slotsPerDay-1, nil), false),
		"a list with 500":          checkList(500, day(slotsPerDay, nil), false),
		"half a list":              checkList(200, day(slotsPerDay, nil)[:2000], false),
		"too many free":            checkList(200, day(slotsPerDay, func(i int, s map[string]any) { s["free"] = 11 }), true),
		"overlapping slots":        checkList(200, day(slotsPerDay, func(i int, s map[string]any) { s["end"] = s["end"].(time.Time).Add(time.Minute) }), true),
		"a cancel in vain":         checkCancelled(200, []byte(`{"data":{"cancelAppointment":{"appointment":{"status":"CANCELLED"},"changed":false,"errors":[]}}}`)),
		"an error in a 200":        second(readBooked(200, []byte(`{"errors":[{"message":"no"}],"data":null}`))),
		"a booking with 503":       second(readBooked(503, []byte(`{"data":{"bookAppointment":{"appointment":{"id":"1","status":"BOOKED","startAt":"2026-10-12T06:00:00Z"},"replayed":false,"errors":[]}}}`))),
		"REST: a cancel of none":   checkCancelledREST(200, []byte(`{"id":1,"status":"BOOKED","slotId":1}`)),
		"REST: a problem in a 200": second(readBookedREST(200, []byte(`{"type":"/api/#SLOT_FULL","status":409,"code":"SLOT_FULL"}`))),
		"REST: a booking with 503": second(readBookedREST(503, []byte(`{"id":1,"status":"BOOKED","slotId":1}`))),
		"REST: nothing":            second(readBookedREST(201, []byte(`{}`))),
		"REST: half an answer":     second(readBookedREST(201, []byte(`{"id":1,"status":"BOOKED","slotId":`))),
		"neither won nor not":      second(readBooked(200, []byte(`{"data":{"bookAppointment":{"appointment":null,"replayed":false,"errors":[]}}}`))),
	} {
		if err == nil {
			t.Errorf("%s passed", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestReadLog(t *testing.T) {
	begin := time.Unix(1_700_000_000, 500_000_000)
	var h histogram
	log := "0 1 1000 0 1700000000 499999\n0 2 2000 0 1700000000 500000\n1 1 4000 0 1700000001 0 300\n0 3 9000 0 1700000001 500000\n"
	total, err := readLog([]byte(log), begin, begin.Add(time.Second), &h)
	if err != nil {
		t.Fatal(err)
	}
	if total != 4 || h.count != 2 || h.quantile(1) < 4 || h.quantile(1) > 4.2 {
		t.Errorf("%d transactions, the longest %v ms", h.count, h.quantile(1))
	}
	for _, bad := range []string{"0 1 1000\n", "0 1 x 0 1700000000 500000\n"} {
		if _, err := readLog([]byte(bad), begin, begin.Add(time.Second), &h); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestReadBenchmark(t *testing.T) {
	f, err := readBenchmark([]byte("BenchmarkBook/Batched-2   14587   298933 ns/op   3345 bookings/s   75.80 p50-ms   169.9 p99-ms\nPASS\n"))
	if err != nil || f.PerSecond != 3345 || f.P50 != 75.8 || f.P99 != 169.9 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := readBenchmark([]byte("PASS\n")); err == nil {
		t.Error("a benchmark that did not run has figures")
	}
}

func TestRatios(t *testing.T) {
	r := &row{ratio: perSecond}
	for i, ours := range []float64{30, 10, 20} {
		r.add(figures{PerSecond: ours, P50: float64(i), Errors: 1}, figures{PerSecond: 10}, 2)
	}
	if diff := cmp.Diff([]float64{1, 2, 3}, r.ratios()); diff != "" {
		t.Errorf("ratios (-want +got)\n%s", diff)
	}
	if m := median(r.ours); m.PerSecond != 20 || m.P50 != 1 || m.Errors != 3 || r.Violations != 6 {
		t.Errorf("median %+v, %d violations", m, r.Violations)
	}
	if m := middle([]float64{4, 1}); m != 2.5 {
		t.Errorf("the median of two is %v", m)
	}
}
