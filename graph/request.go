package graph

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/99designs/gqlgen/graphql"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"openslot/internal/booking"
)

// maxBody is the size of a request, in bytes: the biggest sensible one has a tenth of it.
const maxBody = 64 << 10

// problem is a request that is answered before anything of GraphQL is done with it.
type problem struct {
	status  int
	code    booking.Code
	message string
}

func invalid(status int, message string) *problem { return &problem{status, booking.Invalid, message} }

// noRoom is a refusal of the admission.
func noRoom(full *booking.Error) *problem {
	status := http.StatusServiceUnavailable
	if full.Code == booking.RateLimited {
		status = http.StatusTooManyRequests
	}
	return &problem{status, full.Code, full.Message}
}

// readPost reads the body of a POST request.
func readPost(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	if !isJSON(r.Header.Get("Content-Type")) {
		return nil, invalid(http.StatusUnsupportedMediaType, "Send "+mediaJSON+" in UTF-8.")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, invalid(http.StatusUnsupportedMediaType, "Send the body uncompressed.")
	}
	tooLarge := invalid(http.StatusRequestEntityTooLarge, "The request is larger than 64 KiB.")
	if r.ContentLength > maxBody {
		return nil, tooLarge
	}
	var body []byte
	var err error
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	}
	if err != nil {
		if limit := new(http.MaxBytesError); errors.As(err, &limit) {
			return nil, tooLarge
		}
		return nil, invalid(http.StatusBadRequest, "The body could not be read.")
	}
	return body, nil
}

// isJSON reports whether a Content-Type is that of JSON in UTF-8.
func isJSON(header string) bool {
	if header == mediaJSON { // what nearly everybody writes
		return true
	}
	kind, params, err := mime.ParseMediaType(header)
	charset := params["charset"]
	return err == nil && kind == mediaJSON && (charset == "" || strings.EqualFold(charset, "utf-8"))
}

// decode reads an operation from JSON. Its messages repeat nothing of the body.
func decode(body []byte) (*graphql.RawParams, *problem) {
	var request struct {
		Query         string                    `json:"query"`
		OperationName string                    `json:"operationName"`
		Variables     values                    `json:"variables"`
		Extensions    map[string]jsontext.Value `json:"extensions"`
	}
	err := jsonv2.Unmarshal(body, &request, jsontext.AllowDuplicateNames(true)) // of which the last counts
	var wrong *jsonv2.SemanticError
	switch {
	case errors.As(err, &wrong) && wrong.JSONPointer != "":
		return nil, invalid(http.StatusBadRequest, "query and operationName must be strings, variables and extensions objects.")
	case errors.As(err, &wrong):
		return nil, invalid(http.StatusBadRequest, "The body must be one JSON object. Batches are not taken.")
	case err != nil:
		return nil, invalid(http.StatusBadRequest, "The body must be one JSON object in UTF-8 and nothing after it.")
	case request.Query == "":
		return nil, invalid(http.StatusBadRequest, "query is missing.")
	}
	return &graphql.RawParams{Query: request.Query, OperationName: request.OperationName, Variables: request.Variables}, nil
}

// values are variables by name. Numbers stay as they were written: a float would round ids.
type values map[string]any

// UnmarshalJSONFrom reads an object or null.
func (v *values) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	read, err := readValue(d)
	object, ok := read.(map[string]any)
	if err == nil && !ok && read != nil {
		err = errors.New("not an object")
	}
	*v = object
	return err
}

// readValue reads whatever comes next, as encoding/json has it.
func readValue(d *jsontext.Decoder) (any, error) {
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		object := map[string]any{}
		for d.PeekKind() != '}' {
			name, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String() // the token goes with the next one
			if object[key], err = readValue(d); err != nil {
				return nil, err
			}
		}
		_, err = d.ReadToken()
		return object, err
	case '[':
		list := []any{}
		for d.PeekKind() != ']' {
			item, err := readValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		_, err = d.ReadToken()
		return list, err
	case '"':
		return token.String(), nil
	case '0':
		return json.Number(token.String()), nil
	case 't', 'f':
		return token.Bool(), nil
	}
	return nil, nil
}

// decodeURL reads an operation from the query of a URL.
func decodeURL(query []byte) (*graphql.RawParams, *problem) {
	values, err := url.ParseQuery(string(query))
	if err != nil {
		return nil, invalid(http.StatusBadRequest, "The parameters of the URL are malformed.")
	}
	// The rules for the parameters are those for a body.
	fields := map[string]json.RawMessage{}
	for _, name := range []string{"query", "operationName"} {
		if values.Has(name) {
			if !utf8.ValidString(values.Get(name)) {
				return nil, invalid(http.StatusBadRequest, "The parameters of the URL are not UTF-8.")
			}
			fields[name], _ = json.Marshal(values.Get(name))
		}
	}
	for _, name := range []string{"variables", "extensions"} {
		if text := values.Get(name); text != "" {
			if !json.Valid([]byte(text)) {
				return nil, invalid(http.StatusBadRequest, name+" is not JSON.")
			}
			fields[name] = json.RawMessage(text)
		}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, invalid(http.StatusBadRequest, "The parameters of the URL are malformed.")
	}
	return decode(body)
}

// The media types of answers.
const (
	mediaJSON     = "application/json"
	mediaResponse = "application/graphql-response+json"
)

// negotiate picks the media type that the client prefers. Whoever does not say, or takes anything,
// gets the older one, which every client knows. Of equally good ones the first named wins.
func negotiate(accept []string) (media string, ok bool) {
	header := strings.TrimSpace(strings.Join(accept, ","))
	if header == "" {
		return mediaJSON, true
	}
	type choice struct {
		media    string
		quality  float64
		specific int // a range that names the type overrides one that includes it
	}
	var choices []choice
	add := func(media string, quality float64, specific int) {
		i := slices.IndexFunc(choices, func(c choice) bool { return c.media == media })
		switch {
		case i < 0:
			choices = append(choices, choice{media, quality, specific})
		case specific > choices[i].specific:
			choices = append(slices.Delete(choices, i, i+1), choice{media, quality, specific})
		}
	}
	for part := range strings.SplitSeq(header, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, given := params["q"]; given {
			if quality, err = strconv.ParseFloat(q, 64); err != nil || quality < 0 || quality > 1 {
				continue
			}
		}
		if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
			continue
		}
		switch kind {
		case mediaJSON, mediaResponse:
			add(kind, quality, 2)
		case "application/*":
			add(mediaJSON, quality, 1)
			add(mediaResponse, quality, 1)
		case "*/*":
			add(mediaJSON, quality, 0)
			add(mediaResponse, quality, 0)
		}
	}
	best := choice{}
	for _, c := range choices {
		if c.quality > best.quality {
			best = c
		}
	}
	return best.media, best.quality > 0
}
