// Command with runs another command with one PostgreSQL for all test binaries
// of the run, and stops it afterwards:
//
//	go run ./internal/devenv/with -- go test -race ./...
//
// The server is temporary and tuned for tests (devenv.TestSettings); its
// address is in the command's environment. Where the environment already names
// a server, the command runs with that. With CI=true a missing PostgreSQL or
// Redis is installed from Debian's packages first. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"openslot/internal/devenv"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
	}
	os.Exit(code)
}

// run starts the server, runs the command and returns its exit code.
func run(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("name the command to run: with -- go test ./...")
	}
	// Ctrl-C reaches the command by itself: wait for it, so that the server
	// outlives its last query.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	if os.Getenv(devenv.TestURLVariable) == "" {
		server, err := start()
		if err != nil {
			return 1, err
		}
		defer func() {
			if err := server.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, "with:", err)
			}
		}()
		if err := os.Setenv(devenv.TestURLVariable, server.URL("")); err != nil {
			return 1, err
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM { // sent to us alone
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err := cmd.Wait()
	if cmd.ProcessState.Exited() {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 1, err
}

func start() (*devenv.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	log := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "with: "+format+"\n", args...)
	}
	if os.Getenv("CI") == "true" {
		if err := devenv.InstallPostgres(ctx, log); err != nil {
			return nil, err
		}
		if err := devenv.InstallRedis(ctx, log); err != nil {
			return nil, err
		}
	}
	return devenv.Start(ctx, devenv.PostgresOptions{Settings: devenv.TestSettings, Log: log})
}
