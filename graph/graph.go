// Package graph is the GraphQL transport: the contract of schema.graphqls over HTTP and websockets.
//
//	POST, GET ──▶ http.go, cache.go ▶ gqlgen's executor ──▶ resolvers ──▶ the core's packages
//	websocket ──▶ websocket.go ──▶   (limits.go before it)   │
//	              socket.go, operation.go                    └─▶ errors.go: codes → answers
//	              watch.go ◀── share.go ◀── live.Hub
//	event stream ──▶ sse.go ──▶
//
// Updates of live slots don't pass the executor one by one: the selection of a subscription becomes
// a shape once (share.go), an update is encoded once for all who have the same shape, and written to
// each of them with its own operation's id in front (watch.go, wire.go).
//
// Resolvers hold no rules and no SQL: they turn arguments into calls of the core and its answers
// into the types of the contract, most of which are the core's own. generated.go and models_gen.go
// come from gqlgen; see gqlgen.yml.
//
// A [Handler] serves any number of requests and sockets at once. Every goroutine it starts belongs
// to one request or one socket and ends with it; those that carry updates to sockets live for as
// long as there are any to carry.
package graph

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/99designs/gqlgen/graphql/handler/lru"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

// Parts is what a [Handler] works with. Services are required, options are not.
type Parts struct {
	Booking      *booking.Service
	Schedule     *schedule.Service
	Availability *availability.Service
	Hub          *live.Hub
	Auth         *auth.Authenticator
	Patients     *auth.Patients

	// AllowedOrigins are those of web pages, besides the API's own, that may use it: scheme://host[:port].
	AllowedOrigins []string
	// KeepResponses keeps whole answers to public queries for as long as the lists in them are good;
	// it takes lists that come through a cache.
	KeepResponses bool
	// Introspection lets clients read the contract, as GraphiQL does: for development.
	Introspection bool
	// Admission counts sockets and streams; nil = one of its own, with the default limits.
	Admission *live.Admission
	// CloseSpread is how long Close takes to end all sockets, so that their clients come back in a
	// trickle; it is shortened to what Close has. 0 = all at once.
	CloseSpread time.Duration
	Log         *slog.Logger // nil = the default

	patience time.Duration // 0 = operationPatience
}

// cachedDocuments is how many parsed documents are kept. Apps send a handful.
const cachedDocuments = 1000

// Handler answers GraphQL at one address: POST for operations, GET for queries, websockets and event
// streams for these and subscriptions. It finds out who asks by itself: no other authentication belongs in
// front of it.
type Handler struct {
	exec      *executor.Executor
	plans     plans
	responses *responses
	origins   []string
	sockets   *sockets
	streams   *streams
	auth      *auth.Authenticator
	entry     http.Handler
}

// New makes a handler.
func New(parts Parts) *Handler {
	parts.patience = cmp.Or(parts.patience, operationPatience)
	if parts.Admission == nil {
		parts.Admission = live.NewAdmission(live.Limits{}, nil)
	}
	r := &resolver{parts, presenter{cmp.Or(parts.Log, slog.Default())}}
	exec := executor.New(NewExecutableSchema(Config{Resolvers: r}))
	exec.SetErrorPresenter(r.presenter.present)
	exec.SetRecoverFunc(recovered)
	exec.SetParserTokenLimit(maxTokens)
	exec.SetDisableSuggestion(true)
	documents := lru.New[*ast.QueryDocument](cachedDocuments)
	exec.SetQueryCache(documents)
	exec.Use(limits{introspection: parts.Introspection, known: documents})
	if parts.Introspection {
		exec.Use(extension.Introspection{})
	}
	exec.AroundOperations(func(ctx context.Context, next graphql.OperationHandler) graphql.ResponseHandler {
		return withinTime(withLoaders(ctx, parts), parts.patience, next)
	})
	h := &Handler{exec: exec, plans: newPlans(r), origins: parts.AllowedOrigins, auth: parts.Auth}
	if parts.KeepResponses {
		h.responses = newResponses()
	}
	h.sockets = newSockets(exec, parts, h.responses)
	h.streams = newStreams(h.sockets.admission, parts.CloseSpread)
	h.entry = parts.Auth.Middleware(http.HandlerFunc(h.route), h.refuseToken)
	return h
}

// operationPatience is how long a query or mutation may take. What the database is slow to answer
// or has no connection for ends earlier, as a rule; nobody waits for longer in any case.
const operationPatience = 10 * time.Second

// withinTime runs an operation that is expected to end within the given time.
func withinTime(ctx context.Context, patience time.Duration, next graphql.OperationHandler) graphql.ResponseHandler {
	if graphql.GetOperationContext(ctx).Operation.Operation == ast.Subscription {
		return next(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	responses := next(ctx)
	return func(ctx context.Context) *graphql.Response {
		defer cancel()
		return responses(ctx)
	}
}

// Close ends all sockets with 1001, going away, and all event streams, and lets no more begin. It
// takes its time: see CloseSpread. What is being executed on a socket is answered first. It returns
// when the sockets are gone, or with an error when ctx is over. Requests over HTTP, streams included,
// are the server's to wait for.
func (h *Handler) Close(ctx context.Context) error {
	h.streams.close(ctx)
	return h.sockets.close(ctx)
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if problem := recover(); problem != nil {
			if problem == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
				panic(problem)
			}
			ctx := graphql.WithOperationContext(r.Context(), &graphql.OperationContext{Headers: r.Header})
			response := h.exec.DispatchError(ctx, asList(recovered(ctx, problem)))
			writeStatus(w, mediaJSON, http.StatusInternalServerError, response)
		}
	}()
	if h.crossOrigin(w, r) {
		return
	}
	h.entry.ServeHTTP(w, r)
}

// crossOrigin lets pages of other origins that are allowed read our answers, and answers the
// question that browsers ask beforehand; it then reports true. The API knows no cookies, so a
// page can do nothing here in its visitor's name that it does not hold a token for.
func (h *Handler) crossOrigin(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := r.Header.Get("Origin")
	header := w.Header()
	if len(h.origins) > 0 {
		header.Add("Vary", "Origin")
	}
	allowed := origin != "" && slices.ContainsFunc(h.origins, func(o string) bool { return strings.EqualFold(o, origin) })
	if allowed {
		header.Set("Access-Control-Allow-Origin", origin)
		header.Set("Access-Control-Expose-Headers", "ETag, Retry-After, "+requestIDHeader)
	}
	if r.Method != http.MethodOptions {
		return false
	}
	header.Set("Allow", allow)
	if allowed && r.Header.Get("Access-Control-Request-Method") != "" {
		header.Set("Access-Control-Allow-Methods", "GET, POST")
		header.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, If-None-Match, "+requestIDHeader)
		header.Set("Access-Control-Max-Age", "600")
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

const allow = "GET, POST, OPTIONS"

func (h *Handler) route(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"): // others (h2c) may be ignored
		h.sockets.ServeHTTP(w, r)
	case r.Method == http.MethodGet:
		h.get(w, r)
	case r.Method == http.MethodPost:
		h.post(w, r)
	default:
		w.Header().Set("Allow", allow)
		refuse(w, mediaJSON, invalid(http.StatusMethodNotAllowed, "Only "+allow+" are answered here."))
	}
}

// refuseToken answers a request whose token is not good.
func (h *Handler) refuseToken(w http.ResponseWriter, r *http.Request, err error) {
	ctx := graphql.WithOperationContext(r.Context(), &graphql.OperationContext{Headers: r.Header})
	response := h.exec.DispatchError(ctx, asList(err))
	media, ok := negotiate(r.Header.Values("Accept"))
	if !ok {
		media = mediaJSON
	}
	if whole(response.Errors) != nil {
		write(w, media, response)
		return
	}
	writeStatus(w, media, statusOf(code(response.Errors[0])), response)
}
