package auth

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"openslot/internal/booking"
)

// claims is what a token says. Names are taken exactly as written and once each, dates as
// whole seconds. What it says is true once verify returns it.
type claims struct {
	jwt.RegisteredClaims
	role   string
	org    booking.OrganizationID // 0 = none
	name   string
	email  string
	locale string
}

// read reads the payload of a token. Errors name the claim, never its value.
func (c *claims) read(payload []byte) error {
	// The library refuses a name that comes twice (which one counts would depend on who reads it) and
	// what is not UTF-8, and takes names exactly as written.
	var raw struct {
		Issuer    string         `json:"iss"`
		Subject   string         `json:"sub"`
		Audience  jsontext.Value `json:"aud"`
		Role      string         `json:"role"`
		ExpiresAt jsontext.Value `json:"exp"`
		NotBefore jsontext.Value `json:"nbf"`
		IssuedAt  jsontext.Value `json:"iat"`
		Org       jsontext.Value `json:"org"`
		Name      jsontext.Value `json:"name"`
		Email     jsontext.Value `json:"email"`
		Locale    jsontext.Value `json:"locale"`
	}
	err := json.Unmarshal(payload, &raw)
	var wrong *json.SemanticError
	switch {
	case errors.As(err, &wrong) && wrong.JSONPointer != "":
		return fmt.Errorf("claim %s has the wrong type", wrong.JSONPointer.LastToken()) // one of the above
	case err != nil:
		return errors.New("claims are not an object in UTF-8 with each name once")
	}
	c.Issuer, c.Subject, c.role = raw.Issuer, raw.Subject, raw.Role
	if c.Audience, err = audience(raw.Audience); err != nil {
		return errors.New("claim aud has the wrong type")
	}
	for _, moment := range [...]struct {
		name string
		raw  jsontext.Value
		into **jwt.NumericDate
	}{{"exp", raw.ExpiresAt, &c.ExpiresAt}, {"nbf", raw.NotBefore, &c.NotBefore}, {"iat", raw.IssuedAt, &c.IssuedAt}} {
		if moment.raw == nil {
			continue
		}
		if *moment.into, err = date(moment.raw); err != nil {
			return fmt.Errorf("claim %s: %w", moment.name, err)
		}
	}
	if raw.Org != nil {
		if c.org, err = organization(raw.Org); err != nil {
			return fmt.Errorf("claim org: %w", err)
		}
	}
	c.name, c.email, c.locale = courtesy(raw.Name), courtesy(raw.Email), courtesy(raw.Locale)
	return nil
}

// audience is one name or a list of them.
func audience(raw jsontext.Value) (names jwt.ClaimStrings, err error) {
	switch raw.Kind() {
	case 0: // left out
		return nil, nil
	case '"':
		names = make(jwt.ClaimStrings, 1)
		return names, json.Unmarshal(raw, &names[0])
	}
	return names, json.Unmarshal(raw, (*[]string)(&names))
}

// courtesy is a claim that counts as left out if it is of the wrong type.
func courtesy(raw jsontext.Value) (text string) {
	if raw == nil || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
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
		if *f.value != nil && (**f.value == "" || f.fault(**f.value) != "") { // most tell nothing
			*f.value = nil
		}
	}
	return given
}

// date reads whole seconds since 1970, up to the year 9999.
func date(raw jsontext.Value) (*jwt.NumericDate, error) {
	seconds, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || seconds < 0 || seconds > 253_402_300_799 {
		return nil, errors.New("not a date in whole seconds")
	}
	return jwt.NewNumericDate(time.Unix(seconds, 0)), nil
}

// organization reads an id, as a number or a string.
func organization(raw jsontext.Value) (booking.OrganizationID, error) {
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
