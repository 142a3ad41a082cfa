// Package migrations holds the database schema as numbered SQL files.
//
// NNN_noun.up.sql takes the schema one version up, NNN_noun.down.sql takes
// exactly that back. Each file runs in one transaction together with the row
// that records its version, so a file must not begin or end a transaction
// itself, nor contain a statement that refuses to run inside one
// (CREATE INDEX CONCURRENTLY, VACUUM). A file that was ever released is never
// edited again: a change is a new number.
//
// The package only carries the files; internal/postgres runs them.
package migrations

import "embed"

// FS is the migration files, at its root.
//
//go:embed *.sql
var FS embed.FS
