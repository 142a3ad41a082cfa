package graph

import (
	"bytes"
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
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/availability"
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

// post answers a POST request.
func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	media, ok := h.media(w, r)
	if !ok {
		return
	}
	body, bad := readPost(w, r)
	if bad != nil {
		refuse(w, media, bad)
		return
	}
	if media == mediaEvents {
		h.stream(w, r, body, decode)
		return
	}
	h.answer(w, r, h.responses.question(http.MethodPost, media, body), decode)
}

// get answers a GET request: a query, in the parameters of the URL.
func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	media, ok := h.media(w, r)
	if !ok {
		return
	}
	if len(r.URL.RawQuery) > maxBody {
		refuse(w, media, invalid(http.StatusRequestURITooLong, "The request is larger than 64 KiB."))
		return
	}
	if media == mediaEvents {
		h.stream(w, r, []byte(r.URL.RawQuery), decodeURL)
		return
	}
	h.answer(w, r, h.responses.question(http.MethodGet, media, []byte(r.URL.RawQuery)), decodeURL)
}

// media is in what to answer; a request that takes nothing we have is refused.
func (h *Handler) media(w http.ResponseWriter, r *http.Request) (media string, ok bool) {
	if media, ok = negotiate(r.Header.Values("Accept")); ok {
		return media, true
	}
	if acceptsEvents(r) {
		return mediaEvents, true
	}
	refuse(w, mediaJSON, invalid(http.StatusNotAcceptable, "Accept "+mediaResponse+", "+mediaJSON+" or, for a stream, "+mediaEvents+"."))
	return "", false
}

// answer answers a question with what is kept for it, or else by executing it.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, q question, decode func([]byte) (*graphql.RawParams, *problem)) {
	if k := h.responses.find(q); k != nil {
		k.write(w, r)
		return
	}
	params, bad := decode(q.text)
	if bad != nil {
		refuse(w, q.media, bad)
		return
	}
	if !h.follow(w, r, q, params) {
		h.execute(w, r, q, params)
	}
}

// execute runs an operation and writes its answer.
func (h *Handler) execute(w http.ResponseWriter, r *http.Request, q question, params *graphql.RawParams) {
	ctx, media := graphql.StartOperationTrace(r.Context()), q.media
	params.Headers = r.Header
	operation, errs := h.exec.CreateOperationContext(ctx, params)
	if errs != nil {
		response := h.exec.DispatchError(graphql.WithOperationContext(ctx, operation), errs)
		write(w, media, response)
		return
	}
	switch kind := operation.Operation.Operation; {
	case kind == ast.Subscription && acceptsEvents(r):
		h.events(ctx, w, r, operation, nil)
		return
	case kind == ast.Subscription:
		refuse(w, media, invalid(http.StatusBadRequest, "Subscriptions go over a websocket with the subprotocol graphql-transport-ws, or in an event stream: accept "+mediaEvents+"."))
		return
	case kind == ast.Mutation && r.Method == http.MethodGet:
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, media, invalid(http.StatusMethodNotAllowed, "Mutations go by POST."))
		return
	}
	h.plans.learn(operation)
	public := operation.Operation.Operation == ast.Query && isPublic(operation)
	ctx, trace := availability.WithTrace(ctx)
	responses, ctx := h.exec.DispatchOperation(ctx, operation)
	response := responses(ctx)
	h.responses.executed(operation)
	switch {
	case response == nil: // the client has gone
	case public && len(response.Errors) == 0:
		k := newKept(q, operation, response, trace)
		h.responses.keep(k)
		k.write(w, r)
	default:
		write(w, media, response)
	}
}

// write writes the answer of an operation, with the status that GraphQL over HTTP wants for it.
// The older media type says 200 whenever the request was well-formed; the newer one tells by the
// status whether anything was executed.
func write(w http.ResponseWriter, media string, response *graphql.Response) {
	status := http.StatusOK
	if failure := whole(response.Errors); failure != nil {
		response = &graphql.Response{Errors: gqlerror.List{failure}}
		status = http.StatusServiceUnavailable
		if wait, ok := failure.Extensions["retryAfter"].(int); ok {
			w.Header().Set("Retry-After", strconv.Itoa(wait))
		}
	} else if response.Data == nil && media == mediaResponse {
		status = http.StatusBadRequest
	}
	writeStatus(w, media, status, response)
}

func writeStatus(w http.ResponseWriter, media string, status int, response *graphql.Response) {
	if media == mediaEvents {
		media = mediaJSON // what was refused never became a stream
	}
	header := w.Header()
	header.Set("Content-Type", media+"; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Add("Vary", "Accept")
	header.Set("X-Content-Type-Options", "nosniff")
	body := encode(response)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

// refuse answers a request of which nothing was executed.
func refuse(w http.ResponseWriter, media string, p *problem) {
	writeStatus(w, media, p.status, &graphql.Response{Errors: gqlerror.List{{
		Message: p.message, Extensions: map[string]any{"code": p.code},
	}}})
}

// encode writes a response as JSON. Data is JSON already. A response without data is one of a
// request error, and says so by having no such key.
func encode(response *graphql.Response) []byte {
	var buf bytes.Buffer
	buf.Grow(len(response.Data) + 32)
	buf.WriteByte('{')
	if len(response.Errors) > 0 {
		errs, err := json.Marshal(bounded(response.Errors))
		if err != nil {
			panic(err) // nothing in them can fail
		}
		buf.WriteString(`"errors":`)
		buf.Write(errs)
	}
	if response.Data != nil {
		if len(response.Errors) > 0 {
			buf.WriteByte(',')
		}
		buf.WriteString(`"data":`)
		buf.Write(response.Data)
	}
	buf.WriteByte('}')
	return buf.Bytes()
}

// readPost reads the body of a POST request.
func readPost(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	if kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != mediaJSON ||
		params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return nil, invalid(http.StatusUnsupportedMediaType, "Send "+mediaJSON+" in UTF-8.")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, invalid(http.StatusUnsupportedMediaType, "Send the body uncompressed.")
	}
	tooLarge := invalid(http.StatusRequestEntityTooLarge, "The request is larger than 64 KiB.")
	if r.ContentLength > maxBody {
		return nil, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if limit := new(http.MaxBytesError); errors.As(err, &limit) {
			return nil, tooLarge
		}
		return nil, invalid(http.StatusBadRequest, "The body could not be read.")
	}
	return body, nil
}

// decode reads an operation from JSON. Numbers stay as they were written: a float would round ids.
// Its messages repeat nothing of the body.
func decode(body []byte) (*graphql.RawParams, *problem) {
	var request struct {
		Query         *string                    `json:"query"`
		OperationName *string                    `json:"operationName"`
		Variables     map[string]any             `json:"variables"`
		Extensions    map[string]json.RawMessage `json:"extensions"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	err := decoder.Decode(&request)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return nil, invalid(http.StatusBadRequest, "query and operationName must be strings, variables and extensions objects.")
	case errors.As(err, &wrong):
		return nil, invalid(http.StatusBadRequest, "The body must be one JSON object. Batches are not taken.")
	case err != nil || !utf8.Valid(body):
		return nil, invalid(http.StatusBadRequest, "The body is not JSON in UTF-8.")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid(http.StatusBadRequest, "The body must be one JSON object and nothing after it.")
	}
	if request.Query == nil || *request.Query == "" {
		return nil, invalid(http.StatusBadRequest, "query is missing.")
	}
	params := &graphql.RawParams{Query: *request.Query, Variables: request.Variables}
	if request.OperationName != nil {
		params.OperationName = *request.OperationName
	}
	return params, nil
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
