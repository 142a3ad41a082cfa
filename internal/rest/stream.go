package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

const (
	streamPulse = 15 * time.Second // from one sign of life to the next, if nothing else is to be said
	streamWrite = 5 * time.Second  // for one event to leave: a client that does not read is cut
)

func goingAway() error {
	refused := booking.Refuse(booking.Unavailable, "This instance is going away. Connect again.")
	refused.RetryAfter = time.Second
	return refused
}

// stream writes what a subscription brings as server-sent events, until the client goes, its token
// expires, its access is blocked or the handler is closed. The client is told to come back after a
// while of its own, so that after a deploy not everybody does at once. Streams are counted with the
// sockets of their caller.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, subscription *live.Subscription) {
	defer subscription.Close()
	place, full := h.Admission.Enter(auth.ActorFrom(r.Context()), r)
	if full != nil {
		h.fail(w, r, full)
		return
	}
	defer h.Admission.Leave(place)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.going, cancel)()
	identity := auth.IdentityFrom(ctx)
	defer h.Auth.OnBlocked(identity, cancel)()
	if !identity.ExpiresAt.IsZero() {
		defer time.AfterFunc(time.Until(identity.ExpiresAt), cancel).Stop()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's limit is for requests, and would end ours
	header := w.Header()
	header["Content-Type"] = []string{mediaEvents}
	header["Cache-Control"] = noStore
	header["X-Content-Type-Options"] = nosniff
	header.Set("X-Accel-Buffering", "no") // nginx would keep the events to itself

	send := func(event []byte) bool {
		if err := control.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return false
		}
		if _, err := w.Write(event); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	event := fmt.Appendf(nil, "retry: %d\n\n", 1000+rand.IntN(2000)) //nolint:gosec // jitter may be guessed
	if r.Method == http.MethodHead {
		return
	}
	for send(event) {
		wait, done := context.WithTimeout(ctx, h.pulse)
		u, err := subscription.Next(wait)
		done()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			event = eventOf(u)
		case errors.Is(err, context.DeadlineExceeded):
			event = []byte(":\n\n")
		default: // the hub is going away
			return
		}
	}
}

// eventOf is an event whose data is an update; JSON has no line breaks.
func eventOf(u live.Update) []byte {
	text, err := json.Marshal(update(u))
	if err != nil {
		panic(err) // nothing in it can fail
	}
	var event bytes.Buffer
	event.WriteString("data: ")
	event.Write(text)
	event.WriteString("\n\n")
	return event.Bytes()
}
