package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"openslot/internal/booking"
)

// maxBody is the size of a body, in bytes: the biggest sensible one has a tenth of it.
const maxBody = 64 << 10

// request is a request that is being read. Its methods return what they read, or a zero value after
// the first fault, which [request.fault] has: an operation reads everything and then asks for it.
type request struct {
	*http.Request
	w     http.ResponseWriter // for headers that come with every answer of an operation
	actor booking.Actor

	err   error
	query url.Values
	known []string // parameters of the query that were asked for
}

// wrong notes a fault; the first one counts.
func (in *request) wrong(err error) {
	if in.err == nil {
		in.err = err
	}
}

func (in *request) invalid(format string, args ...any) {
	in.wrong(booking.Refuse(booking.Invalid, format, args...))
}

// fault is what is wrong with what was read, or with what nobody asked for.
func (in *request) fault() error {
	if in.URL.RawQuery != "" {
		in.parse()
		for name := range in.query {
			if !slices.Contains(in.known, name) {
				in.invalid("There is no parameter %.50q here.", name)
			}
		}
	}
	return in.err
}

func (in *request) parse() {
	if in.query != nil {
		return
	}
	var err error
	if in.query, err = url.ParseQuery(in.URL.RawQuery); err != nil {
		in.invalid("The parameters of the URL are malformed.")
	}
}

// values are those of a parameter.
func (in *request) values(name string) []string {
	in.parse()
	in.known = append(in.known, name)
	for _, v := range in.query[name] {
		if !utf8.ValidString(v) {
			in.invalid("%s is not UTF-8.", name)
			return nil
		}
	}
	return in.query[name]
}

// text is a parameter that may be given once.
func (in *request) text(name string) (value string, given bool) {
	values := in.values(name)
	if len(values) > 1 {
		in.invalid("%s is given more than once.", name)
	}
	if len(values) == 0 {
		return "", false
	}
	return values[0], true
}

// optional is a parameter that may be left out, which is the same as an empty one.
func (in *request) optional(name string) string {
	value, _ := in.text(name)
	return value
}

// number is a whole number of a parameter, or what it is without it.
func (in *request) number(name string, otherwise int) int {
	value, given := in.text(name)
	if !given {
		return otherwise
	}
	n, err := strconv.Atoi(value)
	if err != nil || strconv.Itoa(n) != value || n > math.MaxInt32 {
		in.invalid("%s must be a whole number.", name)
	}
	return n
}

// flag is a parameter that is true or false, which it is if left out.
func (in *request) flag(name string) bool {
	value, given := in.text(name)
	if given && value != "true" && value != "false" {
		in.invalid("%s must be true or false.", name)
	}
	return value == "true"
}

// date is a parameter that must be given.
func (in *request) date(name string) booking.Date {
	value, given := in.text(name)
	if !given {
		in.invalid("%s is missing: a day, such as 2026-10-12.", name)
		return booking.Date{}
	}
	date, err := booking.ParseDate(value)
	if err != nil {
		in.invalid("%s must be a day, such as 2026-10-12.", name)
	}
	return date
}

// id is an id in the path.
func (in *request) id(name string) int64 { return in.parseID(name, in.PathValue(name)) }

func (in *request) parseID(name, text string) int64 {
	n, ok := wholeID(text)
	if !ok {
		in.invalid("%s must be an id as it was given out, such as 42.", name)
	}
	return n
}

// wholeID reads decimal digits without a leading zero: 1 to 2^63-1.
func wholeID(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n > 0 && text[0] != '+' && text[0] != '0'
}

// key is the idempotency key: a string as structured fields have it (RFC 9651), or a bare one.
func (in *request) key() string {
	values := in.Header.Values("Idempotency-Key")
	switch {
	case len(values) == 0:
		in.invalid("The header Idempotency-Key is missing: send a new key, such as a UUID, with every new request, and the same with a retry.")
		return ""
	case len(values) > 1:
		in.invalid("Idempotency-Key is given more than once.")
		return ""
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		var ok bool
		if key, ok = unquote(key); !ok {
			in.invalid("Idempotency-Key is not a quoted string: only \\\" and \\\\ are escaped, and nothing follows it.")
		}
	}
	return key
}

func unquote(quoted string) (string, bool) {
	if len(quoted) < 2 || !strings.HasSuffix(quoted, `"`) {
		return "", false
	}
	inner := quoted[1 : len(quoted)-1]
	if !strings.ContainsAny(inner, `"\`) {
		return inner, true
	}
	var plain strings.Builder
	for i := 0; i < len(inner); i++ {
		if inner[i] == '\\' && i+1 < len(inner) && (inner[i+1] == '"' || inner[i+1] == '\\') {
			i++
		} else if inner[i] == '"' || inner[i] == '\\' {
			return "", false
		}
		plain.WriteByte(inner[i])
	}
	return plain.String(), true
}

// member is one of the members that a body may have.
type member struct {
	name     string
	into     any    // what [json.Unmarshal] takes
	want     string // what it must be
	required bool
}

// object reads the body: one JSON object with these members, each once, and no others.
func (in *request) object(members ...member) {
	body, err := in.body()
	if err == nil {
		err = decodeObject(body, members)
	}
	if err != nil {
		in.wrong(err)
	}
}

func decodeObject(body []byte, members []member) error {
	noJSON := booking.Refuse(booking.Invalid, "The body must be one JSON object in UTF-8 and nothing after it.")
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)) // refused below, by their names
	if start, err := d.ReadToken(); err != nil || start.Kind() != '{' {
		return noJSON
	}
	var seen uint
	for d.PeekKind() != '}' {
		key, err := d.ReadToken()
		if err != nil {
			return noJSON
		}
		name := key.String()
		at := slices.IndexFunc(members, func(m member) bool { return m.name == name })
		switch value, err := d.ReadValue(); {
		case err != nil:
			return noJSON
		case at < 0:
			return booking.Refuse(booking.Invalid, "There is no member %.50q here.", name)
		case seen&(1<<at) != 0:
			return booking.Refuse(booking.Invalid, "%s is given more than once.", name)
		case value.Kind() == 'n' || decodeValue(value, members[at].into) != nil:
			return booking.Refuse(booking.Invalid, "%s must be %s.", name, members[at].want)
		}
		seen |= 1 << at
	}
	if _, err := d.ReadToken(); err != nil { // the closing brace
		return noJSON
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return noJSON
	}
	for i, m := range members {
		if m.required && seen&(1<<i) == 0 {
			return booking.Refuse(booking.Invalid, "%s is missing: %s.", m.name, m.want)
		}
	}
	return nil
}

// decodeValue reads a value. Types of our own do that without being looked at.
func decodeValue(value []byte, into any) error {
	if own, ok := into.(json.Unmarshaler); ok {
		return own.UnmarshalJSON(value)
	}
	return json.Unmarshal(value, into)
}

// idNumber is an id in a body.
type idNumber int64

// UnmarshalJSON takes a whole number from 1 on.
func (n *idNumber) UnmarshalJSON(text []byte) error {
	id, ok := wholeID(string(text))
	if !ok {
		return errors.New("no id")
	}
	*n = idNumber(id)
	return nil
}

// shortText is text in a body that the core would shorten before it looks at its length: we say what
// the document says, of the text as it was sent.
type shortText struct {
	into *string
	most int // characters
}

// UnmarshalJSON takes a string that is not too long.
func (s *shortText) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, s.into); err != nil {
		return err
	}
	if utf8.RuneCountInString(*s.into) > s.most {
		return errors.New("too long")
	}
	return nil
}

const wantID = "a whole number from 1 on, as it was given out"

// body reads the body, which must be JSON by what the headers say.
func (in *request) body() ([]byte, error) {
	if declared := in.Header.Get("Content-Type"); declared != mediaJSON {
		kind, params, err := mime.ParseMediaType(declared)
		if err != nil || kind != mediaJSON || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
			return nil, fault(http.StatusUnsupportedMediaType, "Send "+mediaJSON+" in UTF-8.")
		}
	}
	if encoding := in.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, fault(http.StatusUnsupportedMediaType, "Send the body uncompressed.")
	}
	tooLarge := fault(http.StatusRequestEntityTooLarge, "The body is larger than 64 KiB.")
	if in.ContentLength > maxBody {
		return nil, tooLarge
	}
	var body []byte
	var err error
	if in.ContentLength >= 0 {
		body = make([]byte, in.ContentLength)
		_, err = io.ReadFull(in.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(in.w, in.Body, maxBody))
	}
	if err != nil {
		if limit := new(http.MaxBytesError); errors.As(err, &limit) {
			return nil, tooLarge
		}
		return nil, booking.Refuse(booking.Invalid, "The body could not be read.")
	}
	return body, nil
}

// accepts says whether the client takes answers of the media type. A range that names the type
// overrides one that includes it; without the header anything will do.
func (in *request) accepts(media string) {
	header := strings.TrimSpace(strings.Join(in.Header.Values("Accept"), ","))
	if header == "" || header == "*/*" || header == media {
		return
	}
	quality, specific := 0.0, -1
	major, _, _ := strings.Cut(media, "/")
	for part := range strings.SplitSeq(header, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
			continue
		}
		q := 1.0
		if text, given := params["q"]; given {
			if q, err = strconv.ParseFloat(text, 64); err != nil || !(0 <= q && q <= 1) {
				continue
			}
		}
		rank := map[string]int{"*/*": 0, major + "/*": 1, media: 2}
		if n, ok := rank[kind]; ok && n > specific {
			quality, specific = q, n
		}
	}
	if quality == 0 {
		in.wrong(fault(http.StatusNotAcceptable, "The answer is %s: accept it.", media))
	}
}
