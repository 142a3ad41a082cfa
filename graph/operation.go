package graph

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/live"
)

// operation is one running on a socket.
type operation struct {
	socket *socket
	id     string
	cancel context.CancelFunc
}

// run executes the operation and says how it ended: with complete or with error, never both, and
// with neither where the client has completed it or the socket has ended.
func (o *operation) run(ctx context.Context, params *graphql.RawParams) {
	feed := &feed{}
	ctx = context.WithValue(graphql.StartOperationTrace(ctx), feedKey{}, feed)
	defer feed.running.Wait()
	defer o.cancel()
	defer func() {
		if problem := recover(); problem != nil {
			o.fail(ctx, asList(recovered(ctx, problem)))
		}
	}()
	exec := o.socket.exec
	operation, errs := exec.CreateOperationContext(ctx, params)
	ctx = graphql.WithOperationContext(ctx, operation)
	if errs != nil {
		o.fail(ctx, errs)
		return
	}
	responses, ctx := exec.DispatchOperation(ctx, operation)
	for response := responses(ctx); response != nil; response = responses(ctx) {
		if response.Data == nil || whole(response.Errors) != nil {
			if failure := whole(response.Errors); failure != nil {
				response.Errors = gqlerror.List{failure}
			}
			o.finish(errorMessage(o.id, response.Errors))
			return
		}
		o.socket.send(message{ID: o.id, Type: "next", Payload: encode(response)})
		if operation.Operation.Operation != ast.Subscription {
			break
		}
	}
	switch err := feed.failure(); {
	case errors.Is(err, live.ErrGoingAway):
		o.socket.end(closeGoingAway, goingAway)
	case err != nil:
		o.fail(ctx, asList(err))
	default:
		o.finish(message{ID: o.id, Type: "complete"})
	}
}

// fail ends the operation with errors that nobody has worded yet.
func (o *operation) fail(ctx context.Context, errs gqlerror.List) {
	o.finish(errorMessage(o.id, o.socket.exec.DispatchError(ctx, errs).Errors))
}

// finish sends the last message of the operation, whose id is then free again.
func (o *operation) finish(m message) {
	s := o.socket
	s.mu.Lock()
	current := s.operations[o.id] == o && !s.ended
	if current {
		delete(s.operations, o.id)
	}
	s.mu.Unlock()
	if current {
		s.send(m)
	}
}

// errorMessage is what ends an operation that failed.
func errorMessage(id string, errs gqlerror.List) message {
	payload, err := json.Marshal(bounded(errs))
	if err != nil {
		panic(err) // nothing in them can fail
	}
	return message{ID: id, Type: "error", Payload: payload}
}

func asList(err error) gqlerror.List { return gqlerror.List{gqlerror.Wrap(err)} }

type feedKey struct{}

// feed is what a subscription's resolver leaves behind: a goroutine that fills its channel, and
// why that has ended.
type feed struct {
	followed bool // there is one
	running  sync.WaitGroup
	mu       sync.Mutex
	err      error
}

func (f *feed) failure() error {
	f.running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// subscription is one of the hub's.
type subscription[T any] interface {
	Next(ctx context.Context) (T, error)
	Close()
}

// follow passes a subscription's updates on until it ends or ctx does.
func follow[T any](ctx context.Context, s subscription[T]) <-chan *T {
	f := ctx.Value(feedKey{}).(*feed) // only operations on a socket or a stream come here
	f.followed = true
	updates := make(chan *T)
	f.running.Go(func() {
		err := pass(ctx, s, updates)
		if ctx.Err() == nil {
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
		}
		close(updates)
	})
	return updates
}

// pass returns why it has ended. A panic here would take the whole process with it.
func pass[T any](ctx context.Context, s subscription[T], updates chan<- *T) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = recovered(ctx, problem)
		}
	}()
	defer s.Close()
	for {
		update, err := s.Next(ctx)
		if err != nil {
			return err
		}
		select {
		case updates <- &update:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
