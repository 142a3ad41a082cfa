package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"openslot/internal/booking"
)

func TestMiddleware(t *testing.T) {
	t.Parallel()
	token := good().sign(t)
	staff := booking.Actor{Kind: booking.Staff, Subject: "mina", Organization: 7}
	tests := []struct {
		name   string
		target string
		header []string
		want   booking.Actor
		status int
	}{
		{"Anonymous", "/graphql", nil, booking.Actor{}, 200},
		{"Bearer", "/graphql", []string{"Bearer " + token}, staff, 200},
		{"SchemeLower", "/graphql", []string{"bearer " + token}, staff, 200},
		{"SpacesAround", "/graphql", []string{"Bearer   " + token + " "}, staff, 200},
		{"OtherQuery", "/graphql?tokens=1&x=access_token", nil, booking.Actor{}, 200},
		{"EmptyHeader", "/graphql", []string{""}, booking.Actor{}, 401},
		{"NoToken", "/graphql", []string{"Bearer "}, booking.Actor{}, 401},
		{"SchemeOnly", "/graphql", []string{"Bearer"}, booking.Actor{}, 401},
		{"BareToken", "/graphql", []string{token}, booking.Actor{}, 401},
		{"Basic", "/graphql", []string{"Basic bWluYTpzZWNyZXQ="}, booking.Actor{}, 401},
		{"Undefined", "/graphql", []string{"Bearer undefined"}, booking.Actor{}, 401},
		{"TwoTokens", "/graphql", []string{"Bearer " + token + ", Bearer " + token}, booking.Actor{}, 401},
		{"TwoHeaders", "/graphql", []string{"Bearer " + token, "Bearer " + token}, booking.Actor{}, 401},
		{"InQuery", "/graphql?access_token=" + token, nil, booking.Actor{}, 401},
		{"InQueryAndHeader", "/graphql?a=b&Access_Token=" + token, []string{"Bearer " + token}, booking.Actor{}, 401},
		{"InQueryEscaped", "/graphql?%61ccess_token=" + token, nil, booking.Actor{}, 401},
		{"InQueryMalformed", "/graphql?a=%zz;jwt=" + token, nil, booking.Actor{}, 401},
		{"InQueryEmpty", "/graphql?token", nil, booking.Actor{}, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got booking.Actor
			next := func(w http.ResponseWriter, r *http.Request) { got = ActorFrom(r.Context()) }
			refuse := func(w http.ResponseWriter, r *http.Request, err error) {
				wantCode(t, err, booking.Unauthenticated)
				if seen := r.URL.String() + r.RequestURI + err.Error(); strings.Contains(seen, token) {
					t.Errorf("the token is where a log would find it: %s", seen)
				}
				w.WriteHeader(401)
			}
			r := httptest.NewRequest("POST", tt.target, nil)
			r.Header["Authorization"] = tt.header
			w := httptest.NewRecorder()
			newLocal(t, nil).Middleware(http.HandlerFunc(next), refuse).ServeHTTP(w, r)
			if w.Code != tt.status || got != tt.want {
				t.Errorf("status %d, actor %v, want %d, %v", w.Code, got, tt.status, tt.want)
			}
			if challenge := w.Header().Get("WWW-Authenticate"); (challenge == "Bearer") != (tt.status == 401) {
				t.Errorf("WWW-Authenticate = %q with status %d", challenge, w.Code)
			}
			if strings.Contains(r.URL.String()+r.RequestURI, token) {
				t.Error("the token is left in the request for whoever logs it")
			}
		})
	}
}

// A request that can't be judged is no wrong token: the client shall keep it.
func TestMiddlewareUnavailable(t *testing.T) {
	t.Parallel()
	a := newLocal(t, NewPatients(deadPool(t)))
	d := good()
	d.claims["role"] = "patient"
	r := httptest.NewRequest("POST", "/graphql", nil)
	r.Header.Set("Authorization", "Bearer "+d.sign(t))
	w := httptest.NewRecorder()
	next := func(http.ResponseWriter, *http.Request) { t.Error("the request went on") }
	refuse := func(w http.ResponseWriter, _ *http.Request, err error) {
		wantCode(t, err, booking.Unavailable)
		w.WriteHeader(503)
	}
	a.Middleware(http.HandlerFunc(next), refuse).ServeHTTP(w, r)
	if w.Code != 503 || w.Header().Get("WWW-Authenticate") != "" {
		t.Errorf("status %d with WWW-Authenticate %q, want 503 without", w.Code, w.Header().Get("WWW-Authenticate"))
	}
}

// TestHeaderForm: who forgot the word Bearer hears so, whatever the token; every token that is in its
// place and not good is refused in the same words.
func TestHeaderForm(t *testing.T) {
	t.Parallel()
	a, signed := newLocal(t, nil), good().sign(t)
	for value, hint := range map[string]bool{"": true, signed: true, "x": true, "Bearer": true, "Basic " + signed: true,
		"Bearer x": false, "Bearer " + signed + "x": false} {
		_, err := a.FromHeader(t.Context(), value)
		refusal := wantCode(t, err, booking.Unauthenticated)
		if strings.Contains(refusal.Message, "Authorization: Bearer TOKEN") != hint || strings.Contains(refusal.Message, signed) {
			t.Errorf("FromHeader(%q) says %q; a hint at the form: %v", value, refusal.Message, hint)
		}
	}
}

func FuzzHeader(f *testing.F) {
	a := newLocal(f, nil)
	signed := good().sign(f)
	for _, value := range []string{"", "Bearer", "Bearer ", "Bearer x", "bEARER  x ", "Basic x", "Bearer\tx", "Bearer x y", "Bearer " + signed} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, ok := bearer(value)
		if ok && (token == "" || !strings.EqualFold(value[:7], "Bearer ") || !strings.Contains(value, token)) {
			t.Fatalf("bearer(%q) = %q", value, token)
		}
		_, err := a.FromHeader(t.Context(), value)
		if (err == nil) != (ok && token == signed) {
			t.Fatalf("FromHeader(%q): %v", value, err)
		}
		var refusal *booking.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != booking.Unauthenticated) {
			t.Fatalf("FromHeader(%q): %v, want %s", value, err, booking.Unauthenticated)
		}
	})
}
