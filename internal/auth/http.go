package auth

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"openslot/internal/booking"
)

// tokenParameters are query parameters in which clients send tokens by mistake.
var tokenParameters = []string{"access_token", "token", "id_token", "auth_token", "jwt", "authorization", "bearer"}

// Middleware puts the Identity of a request into its context and calls next. A request without a
// token is anonymous. One whose token is not good goes to refuse instead, which writes the answer
// in the shape of its transport; the error is mostly a [booking.Error]. With UNAUTHENTICATED the
// header WWW-Authenticate is set already.
//
// A token in the query string is refused, good or bad, because URLs end up in logs; the query is
// removed from the request, so that whoever logs it after us has nothing to log.
func (a *Authenticator) Middleware(next http.Handler, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identity, err := a.fromRequest(r)
		if err != nil {
			var known *booking.Error
			if errors.As(err, &known) && known.Code == booking.Unauthenticated {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithIdentity(r.Context(), identity)))
	})
}

func (a *Authenticator) fromRequest(r *http.Request) (Identity, error) {
	if hasToken(r.URL.RawQuery) {
		r.URL.RawQuery = ""
		r.RequestURI = r.URL.EscapedPath()
		return Identity{}, refused(errors.New("token in the query string"))
	}
	switch values := r.Header.Values("Authorization"); len(values) {
	case 0:
		return Identity{}, nil
	case 1:
		return a.FromHeader(r.Context(), values[0])
	default:
		return Identity{}, refused(errors.New("more than one Authorization header"))
	}
}

// FromHeader is Authenticate for the value of an Authorization header, "Bearer " and the token. Any
// other value, the empty one included, is UNAUTHENTICATED, and hears of the form: that says nothing
// of any token.
func (a *Authenticator) FromHeader(ctx context.Context, value string) (Identity, error) {
	token, ok := bearer(value)
	if !ok {
		return Identity{}, &booking.Error{Code: booking.Unauthenticated, Cause: errors.New("the Authorization header has no bearer token"),
			Message: "There is no token where one should be. Send it as: Authorization: Bearer TOKEN"}
	}
	return a.Authenticate(ctx, token)
}

// bearer takes the token out of an Authorization header. The scheme's case doesn't matter.
func bearer(value string) (token string, ok bool) {
	scheme, token, found := strings.Cut(value, " ")
	token = strings.Trim(token, " ")
	return token, found && strings.EqualFold(scheme, "Bearer") && token != ""
}

// hasToken reports whether a parameter of the query is named like a token. It looks at the raw
// text: a query that is malformed elsewhere may carry one all the same.
func hasToken(query string) bool {
	for part := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		for _, parameter := range tokenParameters {
			if strings.EqualFold(name, parameter) {
				return true
			}
		}
	}
	return false
}
