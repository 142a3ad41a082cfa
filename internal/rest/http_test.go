package rest

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"openslot/internal/booking"
)

// The operations are those of the document, method by method.
func TestOperations(t *testing.T) {
	t.Parallel()
	var parsed struct {
		Paths map[string]map[string]struct {
			OperationID string `yaml:"operationId"`
			Responses   map[string]any
		}
	}
	if err := yaml.Unmarshal(document, &parsed); err != nil {
		t.Fatal(err)
	}
	var documented, answered []string
	for path, methods := range parsed.Paths {
		for method := range methods {
			documented = append(documented, strings.ToUpper(method)+" "+path)
		}
	}
	for path, methods := range operations {
		for method := range methods {
			answered = append(answered, method+" "+path)
		}
	}
	slices.Sort(documented)
	slices.Sort(answered)
	if diff := cmp.Diff(documented, answered); diff != "" {
		t.Errorf("operations (-document +program):\n%s", diff)
	}
}

// Booking tells where the appointment is, and how many keys are left.
func TestBookHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	patient, slot := w.token(booking.Patient, "p"), w.slot(0, 1)
	for n, want := range []string{`"keys";r=4;t=10`, `"keys";r=4;t=`, `"keys";r=3;t=`} {
		key := []string{"a", "a", "b"}[n]
		a := w.book(patient, slot, key)
		if got := a.header.Get("RateLimit"); !strings.HasPrefix(got, want) {
			t.Errorf("answer %d: RateLimit %s, want %s", n, got, want)
		}
		if got := a.header.Get("RateLimit-Policy"); got != `"keys";q=5;w=10` {
			t.Errorf("answer %d: RateLimit-Policy %s", n, got)
		}
		location := a.header.Get("Location")
		if (location != "") != (a.status < 300) {
			t.Errorf("answer %d: Location %q of %d", n, location, a.status)
		}
		if location != "" && w.get(location, patient).id() != a.id() {
			t.Errorf("%s is not the appointment", location)
		}
	}
	full := w.book(w.token(booking.Patient, "q"), slot, "a")
	w.slot(3, 1)
	where, _ := full.member("alternatives").(string)
	if others := w.get(where, ""); others.status != 200 || !strings.Contains(others.body, `"free":1`) {
		t.Errorf("%s has %s", where, others.body)
	}
	again := w.book(patient, slot, "c")
	if again.code() != "ALREADY_BOOKED" || again.member("appointmentId") != float64(w.book(patient, slot, "a").id()) {
		t.Errorf("%s", again.body)
	}
}

// 304 to who has it, another tag once something has changed, and asOf is no change.
func TestETag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(0, 2)
	path := fmt.Sprintf("/api/doctors/%d/slots?date=%s", w.doctor, w.day())
	first := w.get(path, "")
	tag := first.header.Get("ETag")
	if cc := first.header.Get("Cache-Control"); cc != "no-cache" || tag == "" {
		t.Errorf("Cache-Control %q, ETag %q", cc, tag)
	}
	if cc := w.get(path, w.token(booking.Patient, "p")).header.Get("Cache-Control"); cc != "private, no-cache" {
		t.Errorf("with a token: Cache-Control %q", cc)
	}
	with := func(tag string) answer {
		return w.ask(ask{method: "GET", path: path, header: map[string]string{"If-None-Match": tag}})
	}
	for _, have := range []string{tag, `"other", ` + tag, "*", strings.TrimPrefix(tag, "W/")} {
		if a := with(have); a.status != 304 || a.body != "" || a.header.Get("ETag") != tag {
			t.Errorf("If-None-Match %s: %d %s", have, a.status, a.body)
		}
	}
	if second := w.get(path, ""); second.member("asOf") == first.member("asOf") || second.header.Get("ETag") != tag {
		t.Errorf("read again: asOf %v, tag %s, were %v, %s", second.member("asOf"), second.header.Get("ETag"), first.member("asOf"), tag)
	}
	w.book(w.token(booking.Patient, "p"), slot, "k")
	if a := with(tag); a.status != 200 || a.header.Get("ETag") == tag || !strings.Contains(a.body, `"free":1`) {
		t.Errorf("after a booking: %d %s", a.status, a.body)
	}
}

// HEAD says what GET does, OPTIONS what there is, and a page of another origin is let in or not.
func TestMethodsAndOrigins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := fmt.Sprintf("/api/doctors/%d", w.doctor)
	get, head := w.get(path, ""), w.ask(ask{method: "HEAD", path: path})
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(get.body)) || head.header.Get("ETag") != get.header.Get("ETag") {
		t.Errorf("HEAD: %d %v", head.status, head.header)
	}
	if a := w.ask(ask{method: "OPTIONS", path: "/api/appointments"}); a.status != 204 || a.header.Get("Allow") != "GET, POST, HEAD, OPTIONS" {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
	preflight := func(origin string) http.Header {
		return w.ask(ask{method: "OPTIONS", path: "/api/appointments", header: map[string]string{"Origin": origin, "Access-Control-Request-Method": "POST"}}).header
	}
	allowed := preflight("https://app.example")
	if allowed.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(allowed.Get("Access-Control-Allow-Headers"), "Idempotency-Key") ||
		!strings.Contains(allowed.Get("Access-Control-Allow-Methods"), "DELETE") || allowed.Get("Vary") != "Origin" {
		t.Errorf("a page that is allowed: %v", allowed)
	}
	if foreign := preflight("https://evil.example"); foreign.Get("Access-Control-Allow-Origin") != "" || foreign.Get("Access-Control-Allow-Methods") != "" {
		t.Errorf("a foreign page: %v", foreign)
	}
	a := w.ask(ask{method: "GET", path: path, header: map[string]string{"Origin": "https://app.example"}})
	if !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "RateLimit") {
		t.Errorf("exposed: %v", a.header)
	}
}

// The contract is served as it is written, as JSON, and to read; the page has every operation, type
// and code, and loads nothing.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if a := w.get("/api/openapi.yaml", ""); a.status != 200 || a.body != string(document) {
		t.Errorf("openapi.yaml: %d", a.status)
	}
	var fromYAML, fromJSON any
	a := w.get("/api/openapi.json", "")
	if err := json.Unmarshal([]byte(a.body), &fromJSON); err != nil {
		t.Fatalf("openapi.json: %v", err)
	}
	if err := yaml.Unmarshal(document, &fromYAML); err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(fromYAML)
	_ = json.Unmarshal(again, &fromYAML)
	if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
		t.Errorf("openapi.json (-yaml +json):\n%s", diff)
	}
	page := w.get("/api/", "")
	if page.status != 200 || !strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page: %d %v", page.status, page.header)
	}
	for path, methods := range operations {
		for method := range methods {
			if !strings.Contains(page.body, `<span class="method">`+method+`</span> `+path+`</div>`) {
				t.Errorf("the page has no %s %s", method, path)
			}
		}
	}
	for code, k := range kinds {
		if !strings.Contains(page.body, fmt.Sprintf(`<tr id="%s"><td><code>%s</code></td><td>%d`, code, code, k.status)) {
			t.Errorf("the page has no %s", code)
		}
	}
	for _, link := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page.body, -1) {
		if !strings.Contains(page.body, `id="`+link[1]+`"`) {
			t.Errorf("#%s leads nowhere", link[1])
		}
	}
	if regexp.MustCompile(`(src|href)="(https?:)?//`).MatchString(page.body) || strings.Contains(page.body, "<script") || strings.Contains(page.body, "&lt;nil&gt;") {
		t.Error("the page loads something, or shows what is not there")
	}
	tag := w.get("/api/", "").header.Get("ETag")
	if a := w.ask(ask{method: "GET", path: "/api/", header: map[string]string{"If-None-Match": tag}}); a.status != 304 {
		t.Errorf("the page again: %d", a.status)
	}
}

// Bodies with random damage: what we read and what the library says of it by the document are the
// same, but for what it can't see.
func TestBodiesLikeDocument(t *testing.T) {
	t.Parallel()
	v, err := ourValidator()
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	parts := []string{`{`, `}`, `"slotId"`, `"patientId"`, `:`, `:`, `,`, `1`, `77`, `0`, `-1`, `"x"`, `null`, `1.5`, `[`, `]`, `"SlotId"`, ` `, "\n", `true`, `9007199254740991`, `9223372036854775808`,
		`"referralId"`, `"overlapReason"`, `""`, `" "`, `"` + strings.Repeat("ü", 64) + `"`, `"` + strings.Repeat("r", 64) + ` "`, `"` + strings.Repeat("o", 501) + `"`,
		`"time"`, `{"doctorId":1,"startAt":"2026-10-12T07:15:00Z","minutes":30}`, `{"doctorId":1,"startAt":"2026-10-12T07:15:00.5Z","minutes":30}`,
		`{"doctorId":1,"startAt":"2026-10-12T09:15:00+02:00","minutes":1440}`, `{"doctorId":1,"startAt":"2026-02-30T07:15:00Z","minutes":30}`,
		`{"doctorId":"1","startAt":"2026-10-12T07:15:00Z","minutes":30}`, `{"doctorId":1,"startAt":"2026-10-12T07:15:00Z","minutes":0}`, `{"doctorId":1}`}
	taken := 0
	for range 20_000 {
		var text strings.Builder
		switch random.IntN(3) {
		case 0:
			for range 1 + random.IntN(9) {
				text.WriteString(parts[random.IntN(len(parts))])
			}
		default:
			value := func() string { return parts[random.IntN(len(parts))] }
			text.WriteString(`{` + []string{`"slotId"`, `"time"`}[random.IntN(2)] + `:` + value())
			if random.IntN(2) == 0 {
				text.WriteString(`,` + []string{`"patientId"`, `"referralId"`, `"overlapReason"`, `"slotId"`, `"time"`, `"x"`}[random.IntN(6)] + `:` + value())
			}
			text.WriteString(`}`)
		}
		body := text.String()
		r := httptest.NewRequest(http.MethodPost, "/api/appointments", strings.NewReader(body))
		r.Header.Set("Content-Type", mediaJSON)
		r.Header.Set("Idempotency-Key", "k")
		var asked booking.BookRequest
		ours := decodeObject([]byte(body), bookMembers(&asked)) == nil && either("slotId", asked.Slot, "time", asked.Time) == nil
		if body == "" {
			continue
		}
		r.Body = io.NopCloser(strings.NewReader(body))
		theirs, faults := v.ValidateHttpRequestSync(r)
		for _, name := range []string{`"slotId"`, `"time"`, `"patientId"`, `"referralId"`, `"overlapReason"`, `"doctorId"`} {
			if strings.Count(body, name) > 1 {
				theirs = theirs && ours // it does not see that a member is there twice
			}
		}
		if ours != theirs {
			t.Fatalf("%q: we say %v, by the document %v: %s", body, ours, theirs, words(faults))
		}
		if ours {
			taken++
		}
	}
	if taken < 100 {
		t.Errorf("only %d bodies were good ones", taken)
	}
}

// The key in the header is the key of the core, quoted or not.
func TestKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		header string
		want   string
		ok     bool
	}{
		{`abc`, `abc`, true}, {`"abc"`, `abc`, true}, {`a"b`, `a"b`, true}, {`"a\"b"`, `a"b`, true}, {`"a\\b"`, `a\b`, true},
		{`"`, "", false}, {`"abc`, "", false}, {`"abc";p=1`, "", false}, {`"a\b"`, "", false}, {`"a"b"`, "", false}, {`"abc\"`, "", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", tt.header)
		in := &request{Request: r}
		if got := in.key(); (in.fault() == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("%s: %q, %v", tt.header, got, in.fault())
		}
	}
}
