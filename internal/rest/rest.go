// Package rest is the core over plain HTTP: the contract of openapi.yaml, which is written first and
// which everything here follows.
//
//	request ──▶ Handler: origins, token ──▶ resource: method, path ──▶ an operation ──▶ the core's packages
//	                                                                    │
//	              request.go: strict reading              reply.go: JSON, ETag · errors.go: codes → problems
//	                                                      stream.go: server-sent events
//
// Operations hold no rules and no SQL: they turn a request into a call of the core and its answer into
// the types of the contract.
//
// Requests are read by hand, member by member, and not by a library that checks them against the
// document: the one that knows OpenAPI 3.1 takes 80 µs and 190 allocations for a booking, more than all
// the rest of a refused call, and lets pass what the document forbids (a parameter given twice, a
// boolean 1). It is the tests' judge instead: every request and answer in them is held against the
// document by it, and what is taken or refused here must be what the document says.
//
// A [Handler] serves any number of requests at once. A stream lasts until its client goes, its token
// expires or [Handler.Close] is called; it has no goroutine but its request's.
package rest

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

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
	Gate         *availability.Gate // nil = none: answers tell nothing of the limit of keys
	Hub          *live.Hub
	Auth         *auth.Authenticator
	Patients     *auth.Patients
	Admission    *live.Admission // counts streams; nil = one of its own, with the default limits

	// AllowedOrigins are those of web pages, besides the API's own, that may use it: scheme://host[:port].
	AllowedOrigins []string
	Log            *slog.Logger // nil = the default

	pulse time.Duration // 0 = streamPulse
}

// operation answers one method of one path.
type operation func(*Handler, *request) (reply, error)

// operations are those of the document: path → method → operation.
var operations = map[string]map[string]operation{
	"/api/doctors":                                 {http.MethodGet: listDoctors},
	"/api/doctors/{doctorId}":                      {http.MethodGet: getDoctor},
	"/api/doctors/{doctorId}/slots":                {http.MethodGet: listSlots},
	"/api/doctors/{doctorId}/days":                 {http.MethodGet: listDays},
	"/api/doctors/{doctorId}/starts":               {http.MethodGet: listStarts},
	"/api/doctors/{doctorId}/appointments":         {http.MethodGet: listDoctorAppointments},
	"/api/doctors/{doctorId}/waiting":              {http.MethodGet: listDoctorWaiting},
	"/api/slots/{slotId}/alternatives":             {http.MethodGet: listAlternatives},
	"/api/availability":                            {http.MethodGet: watchAvailability},
	"/api/appointments":                            {http.MethodGet: listAppointments, http.MethodPost: bookAppointment},
	"/api/appointments/{appointmentId}":            {http.MethodGet: getAppointment, http.MethodDelete: deleteAppointment},
	"/api/appointments/{appointmentId}/cancel":     {http.MethodPost: cancelAppointment},
	"/api/appointments/{appointmentId}/reschedule": {http.MethodPost: rescheduleAppointment},
	"/api/appointments/reschedule":                 {http.MethodPost: rescheduleByReferral},
	"/api/appointments/{appointmentId}/attendance": {http.MethodPut: markAppointment},
	"/api/holds":                         {http.MethodPost: holdSlot},
	"/api/holds/{appointmentId}":         {http.MethodDelete: releaseHold},
	"/api/holds/{appointmentId}/confirm": {http.MethodPost: confirmHold},
	"/api/waiting":                       {http.MethodGet: listWaiting, http.MethodPost: joinWaitingList},
	"/api/waiting/{entryId}":             {http.MethodGet: getWaitingEntry, http.MethodDelete: leaveWaitingList},
	"/api/patients/{subject}":            {http.MethodPut: registerPatient},
}

// patience is how long an operation may take. What the database is slow to answer or has no
// connection for ends earlier, as a rule; nobody waits for longer in any case.
const patience = 10 * time.Second

// Handler answers everything below /api/. It finds out who asks by itself: no other authentication
// belongs in front of it.
type Handler struct {
	Parts
	mux   *http.ServeMux
	entry http.Handler
	going context.Context // over when streams are to end
	close context.CancelFunc
}

// New makes a handler.
func New(parts Parts) *Handler {
	parts.Log = cmp.Or(parts.Log, slog.Default())
	parts.pulse = cmp.Or(parts.pulse, streamPulse)
	if parts.Admission == nil {
		parts.Admission = live.NewAdmission(live.Limits{}, nil)
	}
	h := &Handler{Parts: parts}
	h.going, h.close = context.WithCancel(context.Background())
	h.mux = http.NewServeMux()
	for path, methods := range operations {
		h.mux.Handle(path, h.resource(methods))
	}
	for path, page := range pages() {
		h.mux.Handle(path, h.resource(map[string]operation{http.MethodGet: page}))
	}
	h.mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, booking.Refuse(booking.NotFound, "There is no such address: see "+referencePath+"."))
	})
	h.entry = h.Auth.Middleware(h.mux, h.fail)
	return h
}

// Close ends all streams and lets no more begin. Requests are the server's to wait for, those of the
// streams that end included.
func (h *Handler) Close() { h.close() }

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if problem := recover(); problem != nil {
			if problem == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
				panic(problem)
			}
			h.fail(w, r, &panicError{problem, debug.Stack()})
		}
	}()
	_, r.Pattern = h.mux.Handler(r) // for whoever logs it: the path may name a patient
	if !h.crossOrigin(w, r) {
		h.entry.ServeHTTP(w, r)
	}
}

// resource answers the methods of one path. HEAD is GET, of which the server leaves out the body.
func (h *Handler) resource(methods map[string]operation) http.Handler {
	allowed := slices.Sorted(maps.Keys(methods))
	if methods[http.MethodGet] != nil {
		allowed = append(allowed, http.MethodHead)
	}
	allow := strings.Join(append(allowed, http.MethodOptions), ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		answer := methods[method]
		switch {
		case answer != nil:
			h.serve(w, r, answer)
		case method == http.MethodOptions:
			w.Header().Set("Allow", allow)
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Allow", allow)
			h.fail(w, r, fault(http.StatusMethodNotAllowed, "Only %s are answered here.", allow))
		}
	})
}

// serve runs an operation and writes what came of it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, answer operation) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	in := &request{Request: r.WithContext(ctx), w: w, actor: auth.ActorFrom(ctx)}
	out, err := answer(h, in)
	switch {
	case err != nil:
		h.fail(w, r, err)
	case out.stream != nil:
		h.stream(w, r, out.stream)
	default:
		out.write(w, r, in.actor)
	}
}

// Headers of cross-origin requests and answers.
const (
	corsMethods = "GET, HEAD, POST, PUT, DELETE"
	corsHeaders = "Authorization, Content-Type, Idempotency-Key, If-None-Match, " + requestIDHeader
	corsExposed = "ETag, Location, RateLimit, RateLimit-Policy, Retry-After, " + requestIDHeader
)

// crossOrigin lets pages of other origins that are allowed read our answers, and answers the
// question that browsers ask beforehand; it then reports true. The API knows no cookies, so a page
// can do nothing here in its visitor's name that it does not hold a token for.
func (h *Handler) crossOrigin(w http.ResponseWriter, r *http.Request) (answered bool) {
	header, origin := w.Header(), r.Header.Get("Origin")
	if len(h.AllowedOrigins) > 0 {
		header.Add("Vary", "Origin")
	}
	if origin == "" || !slices.ContainsFunc(h.AllowedOrigins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		return false
	}
	header.Set("Access-Control-Allow-Origin", origin)
	header.Set("Access-Control-Expose-Headers", corsExposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	header.Set("Access-Control-Allow-Methods", corsMethods)
	header.Set("Access-Control-Allow-Headers", corsHeaders)
	header.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
