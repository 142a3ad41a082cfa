# What there is to run. Everything needs Go 1.26 and nothing else: what a target needs beyond
# that (PostgreSQL, the linter) it finds or fetches itself.

.DEFAULT_GOAL := help
.PHONY: help run test test-long bench check lint generate build

# Its cache holds paths of files: one for each checkout.
LINT := GOLANGCI_LINT_CACHE=$(CURDIR)/bin/lint-cache go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
# A PostgreSQL for the command that follows, shared by all test binaries of the run.
WITH := go run ./internal/devenv/with --
# Arguments for the program that `make run` or `make bench` starts: make run ARGS='--doctors 2000'
ARGS ?=

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: go ## Start everything on this machine, with demo data (ARGS='--help' lists the options)
	@[ -x bin/dev ] || echo 'building (the first time takes some minutes)' >&2
	@go build -o bin/dev ./cmd/dev
	@exec ./bin/dev --follow-parent $(ARGS)

test: go ## Run all tests; PostgreSQL is found or fetched
	$(WITH) go test -race -shuffle=on -timeout 15m ./...

test-long: go ## Run the long campaigns at full length
	OPENSLOT_LONG=1 $(WITH) go test -race -shuffle=on -timeout 120m ./...

bench: go ## Measure everything, against what the machine does without it (ARGS='--help' lists the options)
	@go build -o bin/loadgen ./cmd/loadgen
	@exec ./bin/loadgen all --svg bin/bench.svg $(ARGS)

check: go ## Check what CI checks: format, vet, lint, generated code, modules
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'not gofmt-ed: see above' >&2; exit 1; }
	go vet ./...
	go tool gqlgen generate
	@git diff --exit-code -- graph || { echo 'generated code differs: commit what `make generate` writes' >&2; exit 1; }
	go mod tidy -diff
	go mod verify
	$(LINT) run

lint: go ## Run the linters of .golangci.yml
	$(LINT) run

generate: go ## Write the code that comes from schema.graphqls
	go tool gqlgen generate

build: go ## Build bin/openslot
	CGO_ENABLED=0 go build -trimpath -o bin/openslot ./cmd/openslot

.PHONY: go
go:
	@command -v go >/dev/null || { echo 'Go is not installed (or not in PATH): get Go 1.26 or newer from https://go.dev/dl' >&2; exit 1; }
	@v=$$(go env GOVERSION); v=$${v#go1.}; v=$${v%%[!0-9]*}; \
	 [ "$${v:-0}" -ge 26 ] || { echo "This is $$(go env GOVERSION): get Go 1.26 or newer from https://go.dev/dl" >&2; exit 1; }
