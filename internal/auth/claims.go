package auth

import (
	"encoding/base64"
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
	// The library refuses a name that comes twice (which one counts would depend on who reads it) and
	// what is not UTF-8, and takes names exactly as written.
	var raw struct {
		Issuer    jsontext.Value `json:"iss"`
		Subject   jsontext.Value `json:"sub"`
		Audience  jsontext.Value `json:"aud"`
		Role      jsontext.Value `json:"role"`
		ExpiresAt jsontext.Value `json:"exp"`
		NotBefore jsontext.Value `json:"nbf"`
		IssuedAt  jsontext.Value `json:"iat"`
		Org       jsontext.Value `json:"org"`
		Name      jsontext.Value `json:"name"`
		Email     jsontext.Value `json:"email"`
		Locale    jsontext.Value `json:"locale"`
	}
	if json.Unmarshal(payload, &raw) != nil {
		return errors.New("not an object in UTF-8 with each name once")
	}
	for _, text := range [...]struct {
		name string
		raw  jsontext.Value
		into *string
	}{{"iss", raw.Issuer, &c.Issuer}, {"sub", raw.Subject, &c.Subject}, {"role", raw.Role, &c.role}} {
		if text.raw != nil && json.Unmarshal(text.raw, text.into) != nil {
			return fmt.Errorf("claim %s has the wrong type", text.name)
		}
	}
	if raw.Audience != nil && json.Unmarshal(raw.Audience, &c.Audience) != nil {
		return errors.New("claim aud has the wrong type")
	}
	var err error
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
	var header struct {
		Crit jsontext.Value `json:"crit"`
	}
	switch err := json.Unmarshal(raw, &header); {
	case err != nil:
		return errors.New("header is not an object in UTF-8 with each name once")
	case header.Crit != nil:
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
