package app

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// TestCompose loads docker-compose.yml as Docker would and checks what Docker would not: that
// the program knows the variables it is given, and that nothing moves under our feet.
func TestCompose(t *testing.T) {
	for _, fault := range composeFaults(t, "../../docker-compose.yml", "../../Dockerfile") {
		t.Error(fault)
	}
}

// TestComposeFaults breaks copies of the file, one fault each.
func TestComposeFaults(t *testing.T) {
	tests := []struct{ name, file, old, new, want string }{
		{"UnknownVariable", "docker-compose.yml", "OPENSLOT_GRACE_PERIOD: 20s", "OPENSLOT_GRACE: 20s", "OPENSLOT_GRACE is no setting"},
		{"BadValue", "docker-compose.yml", "OPENSLOT_GRACE_PERIOD: 20s", "OPENSLOT_GRACE_PERIOD: soon", "expected duration"},
		{"MissingVariable", "docker-compose.yml", "OPENSLOT_JWT_ISSUER: ${OPENSLOT_JWT_ISSUER:-openslot}\n", "\n", "--jwt-issuer"},
		{"UnknownCommand", "docker-compose.yml", "[migrate, up]", "[migrate, sideways]", "sideways"},
		{"Latest", "docker-compose.yml", "postgres:17.6", "postgres:latest", "postgres:latest is not pinned"},
		{"NoTag", "docker-compose.yml", "postgres:17.6", "postgres", "postgres is not pinned"},
		{"MajorOnly", "docker-compose.yml", "postgres:17.6", "postgres:17", "postgres:17 is not pinned"},
		{"BaseImage", "Dockerfile", "alpine:3.22.1", "alpine:edge", "alpine:edge is not pinned"},
		{"Root", "Dockerfile", "USER 65534:65534", "", "runs as root"},
		{"TooEarly", "docker-compose.yml", "service_completed_successfully", "service_started", "api does not wait for migrate"},
		{"NoHealthcheck", "docker-compose.yml", `test: [CMD, pg_isready, --username=openslot, --dbname=openslot, --host=127.0.0.1]`, "disable: true", "postgres has no health check"},
		{"CutShort", "docker-compose.yml", "stop_grace_period: 30s", "stop_grace_period: 10s", "stop_grace_period"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"docker-compose.yml", "Dockerfile"} {
				text, err := os.ReadFile(filepath.Join("../..", name))
				if err != nil {
					t.Fatal(err)
				}
				if name == tt.file {
					broken := strings.ReplaceAll(string(text), tt.old, tt.new)
					if broken == string(text) {
						t.Fatalf("%s has no %q to break", name, tt.old)
					}
					text = []byte(broken)
				}
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := composeFaults(t, filepath.Join(dir, "docker-compose.yml"), filepath.Join(dir, "Dockerfile"))
			if !slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, tt.want) }) {
				t.Errorf("faults = %q, want one with %q", got, tt.want)
			}
		})
	}
}

// composeFaults returns what is wrong with the files.
func composeFaults(t *testing.T, compose, docker string) (faults []string) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{compose}, cli.WithEnv([]string{
		"POSTGRES_PASSWORD=secret", "OPENSLOT_JWT_SECRET=" + secret}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range slices.Sorted(maps.Keys(project.Services)) {
		service := project.Services[name]
		if service.Build != nil {
			faults = append(faults, commandFaults(t, name, service)...)
		} else if !pinned(service.Image) {
			faults = append(faults, service.Image+" is not pinned to a version")
		}
		for _, other := range slices.Sorted(maps.Keys(service.DependsOn)) {
			// A service that ends must have ended well, one that stays must be healthy.
			want := types.ServiceConditionHealthy
			if project.Services[other].Restart != "unless-stopped" {
				want = types.ServiceConditionCompletedSuccessfully
			}
			if service.DependsOn[other].Condition != want {
				faults = append(faults, name+" does not wait for "+other+": want "+want)
			}
		}
		check := service.HealthCheck
		if service.Restart == "unless-stopped" && (check == nil || check.Disable || len(check.Test) == 0) {
			faults = append(faults, name+" has no health check")
		}
	}
	return append(faults, dockerFaults(t, docker)...)
}

// commandFaults runs a service's command line and environment through our parser.
func commandFaults(t *testing.T, name string, service types.ServiceConfig) (faults []string) {
	t.Helper()
	known := settings(reflect.TypeFor[commands]())
	env := map[string]string{}
	for key, value := range service.Environment {
		if !known[key] {
			faults = append(faults, name+": "+key+" is no setting")
		}
		env[key] = *value
	}
	parsed, err := parse(t, service.Command, env)
	if err != nil {
		return append(faults, name+": "+err.Error())
	}
	if grace := parsed.API.HTTP.GracePeriod; service.Command[0] == "api" {
		if stop := service.StopGracePeriod; stop == nil || int64(*stop) <= int64(grace) {
			faults = append(faults, name+": stop_grace_period must be longer than the grace period of "+grace.String())
		}
	}
	return faults
}

// settings are the environment variables in a struct of commands.
func settings(of reflect.Type) map[string]bool {
	found := map[string]bool{}
	for field := range of.Fields() {
		if env := field.Tag.Get("env"); env != "" {
			found[env] = true
		}
		if field.Type.Kind() == reflect.Struct {
			maps.Copy(found, settings(field.Type))
		}
	}
	return found
}

// exactTag is a tag that names one version: at least two numbers.
var exactTag = regexp.MustCompile(`^[^:]+:[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?$`)

func pinned(image string) bool { return exactTag.MatchString(image) }

func dockerFaults(t *testing.T, name string) (faults []string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	user := "root"
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "FROM":
			if !pinned(words[1]) {
				faults = append(faults, words[1]+" is not pinned to a version")
			}
			user = "root"
		case words[0] == "USER":
			user = words[1]
		}
	}
	if user == "root" || strings.HasPrefix(user, "0") {
		faults = append(faults, "the image runs as root")
	}
	return faults
}
