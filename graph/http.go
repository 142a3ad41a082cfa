package graph

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/availability"
)

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
		k := newKept(q, encode(response), trace)
		if r.Method == http.MethodGet {
			k.etag = etag(operation, response.Data)
		}
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
	writeBody(w, media, status, encode(response))
}

func writeBody(w http.ResponseWriter, media string, status int, body []byte) {
	if media == mediaEvents {
		media = mediaJSON // what was refused never became a stream
	}
	header := w.Header()
	header["Content-Type"] = contentTypes[media]
	header["Cache-Control"] = noStore
	header["Vary"] = append(header["Vary"], "Accept")
	header["X-Content-Type-Options"] = nosniff
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
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
