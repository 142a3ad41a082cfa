package auth

import (
	"fmt"
	"net/mail"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"openslot/internal/booking"
)

// Bounds in characters, the same as the table's.
const (
	maxIdentity = 255 // of an issuer, of a subject
	maxName     = 200
	maxEmail    = 254
	maxPhone    = 32
	maxLocale   = 35
)

// contact is how to reach a patient; nil = not known, or not to be changed.
type contact struct {
	Name   *string
	Email  *string
	Phone  *string
	Locale *string // BCP 47
}

// field is one of a contact's, with its rule: fault says what is wrong, "" nothing.
type field struct {
	name  string
	value **string
	fault func(string) string
}

func (c *contact) fields() []field {
	return []field{
		{"name", &c.Name, nameFault},
		{"email", &c.Email, emailFault},
		{"phone", &c.Phone, phoneFault},
		{"locale", &c.Locale, localeFault},
	}
}

// check refuses what could not be stored as it is. Nothing is ever cut or cleaned: a name comes
// out as it went in.
func (c *contact) check() error {
	for _, f := range c.fields() {
		if *f.value == nil {
			continue
		}
		if fault := f.fault(**f.value); fault != "" {
			return booking.Refuse(booking.Invalid, "%s: %s.", f.name, fault)
		}
	}
	return nil
}

func subjectFault(s string) string { return textFault(s, 1, maxIdentity) }

func nameFault(s string) string {
	if fault := textFault(s, 1, maxName); fault != "" {
		return fault
	}
	if strings.TrimSpace(s) == "" {
		return "must not be blank"
	}
	return ""
}

func emailFault(s string) string {
	if fault := textFault(s, 3, maxEmail); fault != "" {
		return fault
	}
	// Only a bare address comes back as it went in: no display name, no comment, no second one.
	if parsed, err := mail.ParseAddress(s); err != nil || parsed.Address != s {
		return "must be an e-mail address, such as name@example.org"
	}
	return ""
}

func phoneFault(s string) string {
	if fault := textFault(s, 3, maxPhone); fault != "" {
		return fault
	}
	digits := 0
	for _, c := range s {
		switch {
		case '0' <= c && c <= '9':
			digits++
		case !strings.ContainsRune("+-()./ ", c):
			return "may have digits, spaces and + - ( ) . / only"
		}
	}
	if digits < 3 {
		return "must have 3 digits at least"
	}
	return ""
}

// languageTag is the shape of BCP 47: a language, then subtags.
var languageTag = regexp.MustCompile(`^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$`)

func localeFault(s string) string {
	if fault := textFault(s, 2, maxLocale); fault != "" {
		return fault
	}
	if !languageTag.MatchString(s) {
		return "must be a language tag, such as de or pt-BR"
	}
	return ""
}

// textFault holds one line of text to its length, in characters. Line breaks in all their forms are
// control characters here: such a text ends up in a header some day.
func textFault(s string, least, most int) string {
	if !utf8.ValidString(s) {
		return "must be valid UTF-8"
	}
	if n := utf8.RuneCountInString(s); n < least || n > most {
		return fmt.Sprintf("must have %d to %d characters, it has %d", least, most, n)
	}
	for _, c := range s {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' {
			return "must not have control characters"
		}
	}
	return ""
}
