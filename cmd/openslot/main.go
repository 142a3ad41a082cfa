// Command openslot is the production binary: the API and the operators' commands. What each
// does is in internal/app.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"openslot/internal/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal begins an orderly stop; with the handler gone, a second one ends the
	// process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(app.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
