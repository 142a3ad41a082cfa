package graph

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// Status and media type of answers, as GraphQL over HTTP has them.
func TestHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.AllowedOrigins = []string{"https://app.example"} })
	const (
		contentJSON = "Content-Type: application/json"
		newer       = "Accept: application/graphql-response+json"
		older       = "Accept: application/json"
		isJSON      = "application/json; charset=utf-8"
		isResponse  = "application/graphql-response+json; charset=utf-8"
		good        = `{"query":"{__typename}"}`
	)
	query := func(params ...string) string {
		v := url.Values{}
		for i := 0; i < len(params); i += 2 {
			v.Set(params[i], params[i+1])
		}
		return "?" + v.Encode()
	}
	for name, c := range map[string]struct {
		method, query, body string
		headers             []string
		status              int
		media               string
		code                string // "" = data
	}{
		"post":                      {"POST", "", good, []string{contentJSON}, 200, isJSON, ""},
		"post accepting anything":   {"POST", "", good, []string{contentJSON, "Accept: */*"}, 200, isJSON, ""},
		"post accepting the newer":  {"POST", "", good, []string{contentJSON, newer}, 200, isResponse, ""},
		"post accepting the older":  {"POST", "", good, []string{contentJSON, older}, 200, isJSON, ""},
		"post accepting neither":    {"POST", "", good, []string{contentJSON, "Accept: text/html"}, 406, isJSON, "INVALID"},
		"post with charset":         {"POST", "", good, []string{contentJSON + "; charset=UTF-8"}, 200, isJSON, ""},
		"post in latin-1":           {"POST", "", good, []string{contentJSON + "; charset=iso-8859-1"}, 415, isJSON, "INVALID"},
		"post of no type":           {"POST", "", good, nil, 415, isJSON, "INVALID"},
		"post of text":              {"POST", "", good, []string{"Content-Type: text/plain"}, 415, isJSON, "INVALID"},
		"post of a form":            {"POST", "", "query={__typename}", []string{"Content-Type: application/x-www-form-urlencoded"}, 415, isJSON, "INVALID"},
		"post of parts":             {"POST", "", good, []string{"Content-Type: multipart/form-data; boundary=x"}, 415, isJSON, "INVALID"},
		"post of a document":        {"POST", "", "{__typename}", []string{"Content-Type: application/graphql"}, 415, isJSON, "INVALID"},
		"post compressed":           {"POST", "", good, []string{contentJSON, "Content-Encoding: gzip"}, 415, isJSON, "INVALID"},
		"post too large":            {"POST", "", `{"query":"{__typename} #` + strings.Repeat("x", maxBody) + `"}`, []string{contentJSON}, 413, isJSON, "INVALID"},
		"post not JSON":             {"POST", "", `{"query":"secret-in-the-body`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"post not JSON, newer":      {"POST", "", `{`, []string{contentJSON, newer}, 400, isResponse, "INVALID"},
		"post not UTF-8":            {"POST", "", "{\"query\":\"{__typename} #\xff\"}", []string{contentJSON}, 400, isJSON, "INVALID"},
		"post of nothing":           {"POST", "", "", []string{contentJSON}, 400, isJSON, "INVALID"},
		"post of null":              {"POST", "", "null", []string{contentJSON}, 400, isJSON, "INVALID"},
		"post of a string":          {"POST", "", `"{__typename}"`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"post and more":             {"POST", "", good + good, []string{contentJSON}, 400, isJSON, "INVALID"},
		"G4 batch":                  {"POST", "", "[" + good + "," + good + "]", []string{contentJSON}, 400, isJSON, "INVALID"},
		"no query":                  {"POST", "", `{"variables":{}}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"query is a number":         {"POST", "", `{"query":1}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"operationName is a number": {"POST", "", `{"query":"{__typename}","operationName":1}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"operationName is null":     {"POST", "", `{"query":"{__typename}","operationName":null}`, []string{contentJSON}, 200, isJSON, ""},
		"variables is a string":     {"POST", "", `{"query":"{__typename}","variables":"x"}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"variables is a list":       {"POST", "", `{"query":"{__typename}","variables":[]}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"extensions is a number":    {"POST", "", `{"query":"{__typename}","extensions":1}`, []string{contentJSON}, 400, isJSON, "INVALID"},
		"fault of syntax":           {"POST", "", `{"query":"{"}`, []string{contentJSON}, 200, isJSON, "INVALID"},
		"fault of syntax, newer":    {"POST", "", `{"query":"{"}`, []string{contentJSON, newer}, 400, isResponse, "INVALID"},
		"unknown field":             {"POST", "", `{"query":"{nope}"}`, []string{contentJSON}, 200, isJSON, "INVALID"},
		"unknown field, newer":      {"POST", "", `{"query":"{nope}"}`, []string{contentJSON, newer}, 400, isResponse, "INVALID"},
		"missing variable, newer":   {"POST", "", `{"query":"query($id:ID!){doctor(id:$id){id}}"}`, []string{contentJSON, newer}, 400, isResponse, "INVALID"},
		"unknown operation, newer":  {"POST", "", `{"query":"query A{__typename}","operationName":"B"}`, []string{contentJSON, newer}, 400, isResponse, "INVALID"},
		"subscription over HTTP":    {"POST", "", `{"query":"subscription{availability(doctorIds:[1],from:\"2026-01-01\"){kind}}"}`, []string{contentJSON}, 400, isJSON, "INVALID"},

		"get":                       {"GET", query("query", "{__typename}"), "", nil, 200, isJSON, ""},
		"get newer":                 {"GET", query("query", "{__typename}"), "", []string{newer}, 200, isResponse, ""},
		"get with variables":        {"GET", query("query", "query Q($id:ID!){doctor(id:$id){id}}", "variables", `{"id":"1"}`, "operationName", "Q"), "", nil, 200, isJSON, ""},
		"get without query":         {"GET", "", "", nil, 400, isJSON, "INVALID"},
		"get with bad variables":    {"GET", query("query", "{__typename}", "variables", "{"), "", nil, 400, isJSON, "INVALID"},
		"get with listed variables": {"GET", query("query", "{__typename}", "variables", "[1]"), "", nil, 400, isJSON, "INVALID"},
		"get with bad escapes":      {"GET", "?query=%zz", "", nil, 400, isJSON, "INVALID"},
		"get of a mutation":         {"GET", query("query", `mutation{cancelAppointment(input:{appointmentId:"1"}){changed}}`), "", nil, 405, isJSON, "INVALID"},
		"W10 token in the URL":      {"GET", query("query", "{__typename}", "access_token", w.patient("p")), "", nil, 401, isJSON, "UNAUTHENTICATED"},

		"bad token":        {"POST", "", good, []string{contentJSON, "Authorization: Bearer nonsense"}, 401, isJSON, "UNAUTHENTICATED"},
		"bad token, newer": {"POST", "", good, []string{contentJSON, newer, "Authorization: Bearer nonsense"}, 401, isResponse, "UNAUTHENTICATED"},
		"put":              {"PUT", "", good, []string{contentJSON}, 405, isJSON, "INVALID"},
		"delete":           {"DELETE", "", "", nil, 405, isJSON, "INVALID"},
		"another upgrade":  {"POST", "", good, []string{contentJSON, "Connection: Upgrade", "Upgrade: h2c"}, 200, isJSON, ""},
		"upgrade to what":  {"GET", "", "", []string{"Connection: Upgrade", "Upgrade: h2c"}, 400, isJSON, "INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.send(c.method, w.url+c.query, c.body, c.headers...)
			if a.Status != c.status || a.Header.Get("Content-Type") != c.media || a.code() != c.code {
				t.Errorf("%d %s %s: %s\nwant %d %s %s", a.Status, a.Header.Get("Content-Type"), a.code(), a.Body, c.status, c.media, c.code)
			}
			if hasData := strings.Contains(a.Body, `"data"`); hasData != (c.code == "") {
				t.Errorf("data: %t: %s", hasData, a.Body)
			}
			if strings.Contains(a.Body, "secret-in-the-body") || len(a.Body) > 600 {
				t.Errorf("the answer repeats the request: %s", a.Body)
			}
			if want := map[int]string{405: "Allow", 401: "WWW-Authenticate"}[c.status]; want != "" && a.Header.Get(want) == "" {
				t.Errorf("no header %s", want)
			}
		})
	}
	t.Run("options", func(t *testing.T) {
		for origin, allowed := range map[string]string{"": "", "https://app.example": "https://app.example", "https://other.example": ""} {
			a := w.send("OPTIONS", w.url, "", "Origin: "+origin, "Access-Control-Request-Method: POST")
			if a.Status != 204 || a.Header.Get("Allow") != allow || a.Header.Get("Access-Control-Allow-Origin") != allowed {
				t.Errorf("%q: %d %v", origin, a.Status, a.Header)
			}
		}
	})
}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	const none = ""
	for accept, want := range map[string]string{
		"":                                       mediaJSON,
		"*/*":                                    mediaJSON,
		"application/*":                          mediaJSON,
		"application/json":                       mediaJSON,
		"application/json; charset=utf-8":        mediaJSON,
		"application/json; charset=utf-16":       none,
		"application/graphql-response+json":      mediaResponse,
		"APPLICATION/GraphQL-Response+JSON":      mediaResponse,
		"application/graphql-response+json, */*": mediaResponse,
		"application/json, application/graphql-response+json":       mediaJSON,
		"application/graphql-response+json, application/json":       mediaResponse,
		"application/json;q=0.5, application/graphql-response+json": mediaResponse,
		"application/json, application/graphql-response+json;q=0.9": mediaJSON,
		"application/json;q=0, */*":                                 mediaResponse,
		"*/*;q=0.1, application/graphql-response+json;q=0.2":        mediaResponse,
		"application/*;q=0, */*":                                    none,
		"text/html":                                                 none,
		"text/html, */*;q=0.8":                                      mediaJSON,
		"application/json;q=2":                                      none,
		"application/json;q=x":                                      none,
		";;;":                                                       none,
		"garbage, application/json":                                 mediaJSON,
		"multipart/mixed;deferSpec=20220824, application/json":      mediaJSON,
	} {
		got, ok := negotiate([]string{accept})
		if got != want || ok != (want != none) {
			t.Errorf("Accept: %s: %q %t, want %q", accept, got, ok, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"query":"{__typename}","variables":{"id":12345678901234567890},"operationName":null}`))
	f.Add([]byte(`[{"query":""}]`))
	f.Add([]byte(`{"query":"q","variables":{"a":[1,{"b":null,"c":[]},true,1e5,-0.0],"d":"\u00e9\n","e":{}}}`))
	f.Add([]byte(`{"query":"q","variables":{"a":{"b":1},"a":{"c":2}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		params, bad := decode(body)
		if (params == nil) == (bad == nil) || params != nil && params.Query == "" {
			t.Errorf("%q: %v %v", body, params, bad)
		}
		if bad != nil {
			return
		}
		// Variables are as encoding/json has them.
		text, err := json.Marshal(params.Variables)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&want); err != nil || !reflect.DeepEqual(params.Variables, want) {
			t.Errorf("%q: variables %#v, want %#v (%v)", body, params.Variables, want, err)
		}
	})
}

// A booking's request, as a crowd sends it.
func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"query":"mutation Book($input: BookAppointmentInput!) { bookAppointment(input: $input) { appointment { id status } replayed errors { code } } }","variables":{"input":{"slotId":"123456","idempotencyKey":"0d8b3b1e-6f0c-4b0e-9f53-0a5d7e2b6a11"}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, bad := decode(body); bad != nil {
			b.Fatal(bad)
		}
	}
}

// Nothing that is sent is our fault.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"query":"{me{role}}"}`,
		`{"query":"query($d:ID!,$n:Int){doctors(first:$n){nodes{id}} doctor(id:$d){name organization{name}}}","variables":{"d":"1","n":null}}`,
		`{"query":"mutation($i:CreateScheduleInput!){createSchedule(input:$i){scheduleId errors{code}}}","variables":{"i":{"doctorId":1,"validFrom":"2026-01-01","shifts":{"weekday":"MONDAY","start":"09:00","end":"10:00","slotMinutes":30}}}}`,
		`{"query":"mutation{bookAppointment(input:{slotId:1,idempotencyKey:\"k\"}){replayed}}","operationName":null}`,
		`{"query":"{slots(doctorId:1,date:\"2026-01-01\",includeFull:null){slots{...s @include(if:true)}}} fragment s on Slot{id __typename}"}`,
		`{"query":"subscription S($d:[ID!]!){availability(doctorIds:$d,from:\"2026-01-01\"){kind}}","variables":{"d":[1,"2",null,1.5]}}`,
	} {
		f.Add(body)
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, body string) {
		for _, r := range []*http.Request{
			httptest.NewRequestWithContext(t.Context(), "POST", "/graphql", strings.NewReader(body)),
			httptest.NewRequestWithContext(t.Context(), "GET", "/graphql?"+url.Values{"query": {body}, "variables": {body}}.Encode(), nil),
		} {
			r.Header.Set("Content-Type", "application/json")
			answer := httptest.NewRecorder()
			w.handler.ServeHTTP(answer, r)
			if answer.Code >= 500 || strings.Contains(answer.Body.String(), `"INTERNAL"`) {
				t.Errorf("%d %s", answer.Code, answer.Body)
			}
		}
	})
}
