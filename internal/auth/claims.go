package auth

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"openslot/internal/booking"
)

// claims is what a token says. It is read more strictly than the library would: names exactly as
// written and once each, dates as whole seconds. What it says is true once the parser returns.
type claims struct {
	jwt.RegisteredClaims
	role   string
	org    booking.OrganizationID // 0 = none
	name   string
	email  string
	locale string
}

// UnmarshalJSON reads the payload of a token. Errors name the claim, never its value.
func (c *claims) UnmarshalJSON(payload []byte) error {
	fields, err := members(payload)
	if err != nil {
		return err
	}
	for name, into := range map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "aud": &c.Audience, "role": &c.role,
	} {
		if raw, ok := fields[name]; ok && json.Unmarshal(raw, into) != nil {
			return fmt.Errorf("claim %s has the wrong type", name)
		}
	}
	for name, into := range map[string]**jwt.NumericDate{
		"exp": &c.ExpiresAt, "nbf": &c.NotBefore, "iat": &c.IssuedAt,
	} {
		if raw, ok := fields[name]; ok {
			if *into, err = date(raw); err != nil {
				return fmt.Errorf("claim %s: %w", name, err)
			}
		}
	}
	if raw, ok := fields["org"]; ok {
		if c.org, err = organization(raw); err != nil {
			return fmt.Errorf("claim org: %w", err)
		}
	}
	// Courtesies: of the wrong type they count as left out.
	for name, into := range map[string]*string{"name": &c.name, "email": &c.email, "locale": &c.locale} {
		if raw, ok := fields[name]; ok && json.Unmarshal(raw, into) != nil {
			*into = ""
		}
	}
	return nil
}

// actor is whom the claims stand for; the patient's row is not known yet.
func (c *claims) actor() (booking.Actor, error) {
	a := booking.Actor{Kind: booking.ActorKind(c.role), Subject: c.Subject}
	if fault := subjectFault(c.Subject); fault != "" {
		return booking.Actor{}, errors.New("claim sub: " + fault)
	}
	// The decoder puts it wherever it couldn't read: two broken subjects would be one person.
	if strings.ContainsRune(c.Subject, utf8.RuneError) {
		return booking.Actor{}, errors.New("claim sub: unreadable characters")
	}
	switch a.Kind {
	case booking.Patient, booking.System:
	case booking.Partner:
		if utf8.RuneCountInString(a.Registrar()) > maxIdentity {
			return booking.Actor{}, errors.New("claim sub: too long for a partner")
		}
	case booking.Staff:
		if c.org == 0 {
			return booking.Actor{}, errors.New("claim org is missing")
		}
		a.Organization = c.org
	default:
		return booking.Actor{}, errors.New("claim role: not a role")
	}
	return a, nil
}

// contact is what the claims tell of the patient, without what could not be stored.
func (c *claims) contact() contact {
	given := contact{Name: &c.name, Email: &c.email, Locale: &c.locale}
	for _, f := range given.fields() {
		if *f.value != nil && f.fault(**f.value) != "" {
			*f.value = nil
		}
	}
	return given
}

// checkHeader refuses headers that change what the token means: another type of token, or
// extensions that we would have to understand. Keys that a header brings or points to (jwk, jku,
// x5c, x5u) are not looked at.
func checkHeader(token *jwt.Token) error {
	encoded, _, _ := strings.Cut(token.Raw, ".")
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return err
	}
	fields, err := members(raw)
	if err != nil {
		return err
	}
	if _, ok := fields["crit"]; ok {
		return errors.New("header has critical extensions")
	}
	if typ, ok := token.Header["typ"]; ok {
		s, _ := typ.(string)
		switch strings.TrimPrefix(strings.ToLower(s), "application/") {
		case "jwt", "at+jwt":
		default:
			return errors.New("header typ: not an access token")
		}
	}
	return nil
}

// members splits a JSON object. A name that comes twice is refused: which one counts would depend
// on who reads it.
func members(object []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(object) {
		return nil, errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	fields := make(map[string]json.RawMessage)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, errors.New("not an object")
		}
		name, _ := t.(string)
		if _, twice := fields[name]; twice {
			return nil, errors.New("a name comes twice")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, errors.New("not an object")
		}
		fields[name] = value
	}
	return fields, nil
}

// date reads whole seconds since 1970, up to the year 9999.
func date(raw json.RawMessage) (*jwt.NumericDate, error) {
	seconds, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || seconds < 0 || seconds > 253_402_300_799 {
		return nil, errors.New("not a date in whole seconds")
	}
	return jwt.NewNumericDate(time.Unix(seconds, 0)), nil
}

// organization reads an id, as a number or a string.
func organization(raw json.RawMessage) (booking.OrganizationID, error) {
	text := string(raw)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(raw, &text); err != nil {
			return 0, errors.New("not an id")
		}
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != text {
		return 0, errors.New("not an id")
	}
	return booking.OrganizationID(id), nil
}
