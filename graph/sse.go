package graph

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// Event streams are for networks that don't let websockets through: the "distinct connections mode"
// of graphql-sse, one operation for each request. What they carry is what a socket carries.
//
//	event: next        event: complete       :
//	data: {"data":…}   data:                 (now and then: still here)
//
// A client that accepts JSON as well gets a stream for subscriptions only.
const mediaEvents = "text/event-stream"

// Why a stream ends before its operation does.
var (
	errExpired = booking.Refuse(booking.Unauthenticated, "The access token has expired. Sign in again.")
	errGoing   = errors.New("graph: going away")
	errUnread  = errors.New("graph: the peer does not read")
)

// acceptsEvents reports whether a client names event streams among what it takes.
func acceptsEvents(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(header, ",") {
			kind, params, err := mime.ParseMediaType(part)
			if err != nil || kind != mediaEvents {
				continue
			}
			if quality, err := strconv.ParseFloat(params["q"], 64); params["q"] == "" || err == nil && quality > 0 {
				return true
			}
		}
	}
	return false
}

// streams are all that are open. They count as sockets do, and together with them.
type streams struct {
	admission *live.Admission
	spread    time.Duration // over which close ends them

	mu      sync.Mutex
	open    map[*stream]struct{}
	closing bool
}

func newStreams(a *live.Admission, spread time.Duration) *streams {
	return &streams{admission: a, spread: spread, open: make(map[*stream]struct{})}
}

// enter counts a stream in, or says why there can't be one.
func (s *streams) enter(st *stream, r *http.Request) (full *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return &problem{http.StatusServiceUnavailable, booking.Unavailable, "This instance is going away. Connect again."}
	}
	place, none := s.admission.Enter(auth.ActorFrom(r.Context()), r)
	if none != nil {
		return noRoom(none)
	}
	st.place = place
	s.open[st] = struct{}{}
	return nil
}

func (s *streams) leave(st *stream) {
	s.admission.Leave(st.place)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, st)
}

// close lets no more begin and ends all, a few at a time, so that their clients come back in a
// trickle. It does not wait.
func (s *streams) close(ctx context.Context) {
	spread := s.spread
	if end, ok := ctx.Deadline(); ok {
		spread = min(spread, time.Until(end)/2)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for st := range s.open {
		if !st.lasting {
			continue // soon over, and perhaps a booking
		}
		time.AfterFunc(rand.N(max(1, spread)), func() { st.end(errGoing) }) //nolint:gosec // it may be guessed
	}
}

// stream is one answer in events. The goroutine that serves the request writes them; another one
// shows that it is still here. Each write is bounded: whoever does not read is cut off. Meanwhile
// updates gather in the subscription, which keeps the latest of each slot.
type stream struct {
	lasting bool       // a subscription's
	place   live.Place // as whose it is counted
	pace    pace
	ctx     context.Context
	end     context.CancelCauseFunc // with one of the reasons above

	writing sync.Mutex // held by whoever writes
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

// stream answers a request that takes nothing but events.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, text []byte, decode func([]byte) (*graphql.RawParams, *problem)) {
	params, bad := decode(text)
	if bad != nil {
		refuse(w, mediaJSON, bad)
		return
	}
	ctx := graphql.StartOperationTrace(r.Context())
	params.Headers = r.Header
	operation, errs := h.exec.CreateOperationContext(ctx, params)
	if errs == nil && operation.Operation.Operation == ast.Mutation && r.Method == http.MethodGet {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, mediaJSON, invalid(http.StatusMethodNotAllowed, "Mutations go by POST."))
		return
	}
	h.events(ctx, w, r, operation, errs)
}

// events executes an operation, or tells what is wrong with it, in events.
func (h *Handler) events(ctx context.Context, w http.ResponseWriter, r *http.Request, operation *graphql.OperationContext, errs gqlerror.List) {
	st := &stream{w: w, control: http.NewResponseController(w), pace: h.sockets.pace,
		lasting: errs == nil && operation.Operation.Operation == ast.Subscription}
	if full := h.streams.enter(st, r); full != nil {
		w.Header().Set("Retry-After", strconv.Itoa(seconds(live.ComeBack)))
		refuse(w, mediaJSON, full)
		return
	}
	defer h.streams.leave(st)
	f := &feed{}
	st.ctx, st.end = context.WithCancelCause(context.WithValue(ctx, feedKey{}, f))
	defer f.running.Wait()
	defer st.end(nil)
	if st.lasting {
		identity := auth.IdentityFrom(ctx)
		if !identity.ExpiresAt.IsZero() {
			defer time.AfterFunc(time.Until(identity.ExpiresAt), func() { st.end(errExpired) }).Stop()
		}
		defer h.auth.OnBlocked(identity, func() { st.end(auth.ErrBlocked) })()
	}
	ctx = graphql.WithOperationContext(st.ctx, operation)
	defer func() {
		if problem := recover(); problem != nil {
			st.fail(h.exec.DispatchError(ctx, asList(recovered(ctx, problem))))
		}
	}()
	if errs != nil {
		st.fail(h.exec.DispatchError(ctx, errs))
		return
	}
	h.run(ctx, st, f, operation)
}

// run executes the operation and writes what it answers.
func (h *Handler) run(ctx context.Context, st *stream, f *feed, operation *graphql.OperationContext) {
	responses, ctx := h.exec.DispatchOperation(ctx, operation)
	if f.followed { // it may be long until there is something to tell
		defer st.stayAwake()()
	}
	for response := responses(ctx); response != nil; response = responses(ctx) {
		if !st.lasting {
			h.responses.executed(operation)
		}
		if failure := whole(response.Errors); failure != nil {
			if !st.begun {
				write(st.w, mediaJSON, response) // with the status that balancers understand
				return
			}
			response = &graphql.Response{Errors: gqlerror.List{failure}}
		}
		st.send("next", encode(response))
		if !st.lasting {
			break
		}
	}
	switch cause := context.Cause(st.ctx); {
	case errors.Is(cause, errExpired), errors.Is(cause, auth.ErrBlocked):
		st.fail(h.exec.DispatchError(context.WithoutCancel(ctx), asList(cause)))
	case cause != nil: // we go away, or the peer has: a stream without its end is asked for again
	default:
		if err := f.failure(); errors.Is(err, live.ErrGoingAway) {
			return
		} else if err != nil {
			st.fail(h.exec.DispatchError(ctx, asList(err)))
			return
		}
		st.send("complete", nil)
	}
}

// fail is the end of an operation that failed.
func (st *stream) fail(response *graphql.Response) {
	st.send("next", encode(&graphql.Response{Errors: response.Errors}))
	st.send("complete", nil)
}

// send writes an event.
func (st *stream) send(event string, data []byte) {
	st.write("event: "+event+"\ndata: ", data, "\n\n")
}

// stayAwake begins the stream and shows that it is still here, now and then, until stop is called.
// A line that begins with a colon means nothing to clients; to the network between us it is a sign
// of life.
func (st *stream) stayAwake() (stop func()) {
	st.write(":\n", nil, "")
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(st.pace.ping)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				st.write(":\n", nil, "")
			}
		}
	})
	return func() {
		close(ended)
		running.Wait()
	}
}

// write writes some of the stream. What can't be written in time ends it.
func (st *stream) write(before string, data []byte, after string) {
	st.writing.Lock()
	defer st.writing.Unlock()
	if errors.Is(context.Cause(st.ctx), errUnread) {
		return
	}
	if !st.begun {
		st.begun = true
		header := st.w.Header()
		header.Set("Content-Type", mediaEvents)
		header.Set("Cache-Control", "no-store")
		header.Set("X-Accel-Buffering", "no") // or nginx would keep events to itself
		header.Add("Vary", "Accept")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Connection", "close")       // its deadlines are not those of another request
		st.control.SetReadDeadline(time.Time{}) //nolint:errcheck // the server's would end the stream
		st.w.WriteHeader(http.StatusOK)
	}
	st.control.SetWriteDeadline(time.Now().Add(st.pace.write)) //nolint:errcheck // the write finds out
	_, err := io.WriteString(st.w, before)
	if err == nil && data != nil {
		_, err = st.w.Write(data)
	}
	if err == nil {
		_, err = io.WriteString(st.w, after)
	}
	if err == nil {
		err = st.control.Flush()
	}
	if err != nil {
		st.end(errUnread)
	}
}
