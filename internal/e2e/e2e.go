// Package e2e has tests only: the whole program, as its users meet it. Every test runs real
// instances on a real PostgreSQL and talks HTTP and websockets to them; what it expects of the
// database it reads with SQL of its own.
package e2e
