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

// operation is one running on a socket. A goroutine runs it; one whose updates have a shape goes
// on without any, as a watch.
type operation struct {
	socket *socket
	id     string
	cancel context.CancelFunc
	watch  *watch // guarded by socket.mu; nil before, and for all others
}

// stop ends the operation without a word. It must have been taken out of the socket's.
func (o *operation) stop() {
	o.cancel()
	if o.watch != nil {
		o.watch.stop()
	}
}

// run executes the operation and says how it ended: with complete or with error, never both, and
// with neither where the client has completed it or the socket has ended.
func (o *operation) run(ctx context.Context, params *graphql.RawParams) {
	feed := &feed{}
	handedOn := false
	ctx = context.WithValue(graphql.StartOperationTrace(ctx), feedKey{}, feed)
	defer func() {
		o.cancel()
		feed.running.Wait()
		if feed.watched != nil && !handedOn {
			feed.watched.Close()
		}
	}()
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
	if operation.Operation.Operation == ast.Subscription {
		feed.shape = o.socket.shapes.find(operation)
	} else {
		defer o.socket.execute()()
	}
	responses, ctx := exec.DispatchOperation(ctx, operation)
	for response := responses(ctx); response != nil; response = responses(ctx) {
		o.socket.responses.executed(operation)
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
	case feed.watched != nil:
		handedOn = o.socket.watch(o, feed)
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
// why that has ended; or, where the updates have a shape, the subscription itself, with a
// channel that has ended already. So all that comes before the first update is the executor's.
type feed struct {
	followed bool // there is one
	shape    *shape
	watched  *live.Subscription

	running sync.WaitGroup
	mu      sync.Mutex
	err     error
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
	if slots, ok := any(s).(*live.Subscription); ok && f.shape != nil {
		f.watched = slots
		close(updates)
		return updates
	}
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
