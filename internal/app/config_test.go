package app

import (
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parse parses a command line in an environment that has no settings but env.
func parse(t *testing.T, args []string, env map[string]string) (*commands, error) {
	t.Helper()
	for key := range settings(reflect.TypeFor[commands]()) {
		t.Setenv(key, env[key]) // puts back afterwards what was there
		if _, set := env[key]; !set {
			if err := os.Unsetenv(key); err != nil {
				t.Fatal(err)
			}
		}
	}
	into := &commands{}
	parser, err := newParser(into)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return into, err
}

var secret = strings.Repeat("s", 32)

func TestConfig(t *testing.T) {
	least := map[string]string{"DATABASE_URL": "postgres://db/a", "OPENSLOT_JWT_ISSUER": "us", "OPENSLOT_JWT_SECRET": secret}
	defaults := Config{
		Database: Database{URL: "postgres://db/a", Connections: 16},
		HTTP: HTTP{Listen: ":8080", ResponseCache: true, GracePeriod: 20 * time.Second,
			Sockets: Sockets{Most: 20_000, PerActor: 20, PerPartner: 200, PerPeer: 1000, CloseSpread: 5 * time.Second}},
		JWT: JWT{Issuer: "us", Audience: "openslot", Secret: secret, Leeway: 30 * time.Second},
	}
	with := func(change func(*Config)) Config {
		c := defaults
		change(&c)
		return c
	}
	tests := []struct {
		name string
		args []string
		env  map[string]string
		want Config
	}{
		{"Defaults", nil, nil, defaults},
		{"Environment", nil, map[string]string{
			"OPENSLOT_DATABASE_CONNECTIONS": "4", "OPENSLOT_LISTEN": "127.0.0.1:1", "OPENSLOT_ALLOWED_ORIGINS": "https://a.example,http://b.example:81",
			"OPENSLOT_GRAPHIQL": "true", "OPENSLOT_RESPONSE_CACHE": "false", "REDIS_URL": "redis://cache/1", "OPENSLOT_GRACE_PERIOD": "5s", "OPENSLOT_DRAIN_DELAY": "1s", "OPENSLOT_LOG_LEVEL": "warn",
			"OPENSLOT_SOCKETS": "5", "OPENSLOT_SOCKETS_PER_ACTOR": "4", "OPENSLOT_SOCKETS_PER_PARTNER": "3", "OPENSLOT_SOCKETS_PER_PEER": "2",
			"OPENSLOT_TRUSTED_PROXIES": "10.0.0.0/8,fd00::/8", "OPENSLOT_CLOSE_SPREAD": "0s",
			"OPENSLOT_JWT_AUDIENCE": "them", "OPENSLOT_JWT_LEEWAY": "1s",
		}, Config{
			Database: Database{URL: "postgres://db/a", Connections: 4},
			RedisURL: "redis://cache/1",
			HTTP: HTTP{Listen: "127.0.0.1:1", AllowedOrigins: []string{"https://a.example", "http://b.example:81"}, GraphiQL: true,
				GracePeriod: 5 * time.Second, DrainDelay: time.Second, Sockets: Sockets{Most: 5, PerActor: 4, PerPartner: 3, PerPeer: 2,
					TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}},
			JWT:      JWT{Issuer: "us", Audience: "them", Secret: secret, Leeway: time.Second},
			LogLevel: slog.LevelWarn,
		}},
		{"Flags", []string{"--database-url=postgres://db/b", "--listen=:9", "--graphiql", "--log-level=debug", "--jwt-issuer=them"}, nil, with(func(c *Config) {
			c.Database.URL, c.HTTP.Listen, c.HTTP.GraphiQL, c.LogLevel, c.JWT.Issuer = "postgres://db/b", ":9", true, slog.LevelDebug, "them"
		})},
		{"FlagBeatsEnvironment", []string{"--listen=:2"}, map[string]string{"OPENSLOT_LISTEN": ":1"}, with(func(c *Config) { c.HTTP.Listen = ":2" })},
		{"JWKS", nil, map[string]string{"OPENSLOT_JWT_SECRET": "", "OPENSLOT_JWT_JWKS_URL": "https://id.example/keys"}, with(func(c *Config) {
			c.JWT.Secret, c.JWT.JWKSURL = "", "https://id.example/keys"
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{}
			for _, from := range []map[string]string{least, tt.env} {
				for key, value := range from {
					env[key] = value
				}
			}
			got, err := parse(t, append([]string{"api"}, tt.args...), env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.API.Config, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConfigMissing: what is missing, or empty, or set twice is said with the names of the flag and
// the variable.
func TestConfigMissing(t *testing.T) {
	least := map[string]string{"DATABASE_URL": "postgres://db/a", "OPENSLOT_JWT_ISSUER": "us", "OPENSLOT_JWT_SECRET": secret}
	tests := []struct {
		name   string
		args   []string
		change map[string]string // of the environment
		want   string            // "" = nothing is missing
	}{
		{"Nothing", []string{"api"}, nil, ""},
		{"EmptyDatabase", []string{"api"}, map[string]string{"DATABASE_URL": ""}, "--database-url or DATABASE_URL"},
		{"EmptyDatabaseToMigrate", []string{"migrate", "up"}, map[string]string{"DATABASE_URL": ""}, "--database-url or DATABASE_URL"},
		{"EmptyIssuer", []string{"api"}, map[string]string{"OPENSLOT_JWT_ISSUER": ""}, "--jwt-issuer or OPENSLOT_JWT_ISSUER"},
		{"NoKeys", []string{"api"}, map[string]string{"OPENSLOT_JWT_SECRET": ""}, "set one of OPENSLOT_JWT_SECRET"},
		{"TwoKeys", []string{"api"}, map[string]string{"OPENSLOT_JWT_JWKS_URL": "https://id.example/keys"}, "both are set"},
		{"StaffOfOrganization", []string{"token", "--role=staff", "--subject=a", "--organization=1"}, nil, ""},
		{"StaffOfNowhere", []string{"token", "--role=staff", "--subject=a"}, nil, "--organization is required for staff"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := maps.Clone(least)
			maps.Copy(env, tt.change)
			_, err := parse(t, tt.args, env)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestConfigRefused(t *testing.T) {
	least := []string{"api", "--database-url=postgres://db/a", "--jwt-issuer=us", "--jwt-secret=" + secret}
	if _, err := parse(t, least, nil); err != nil {
		t.Fatalf("without a fault: %v", err) // else every case below would pass for another reason
	}
	tests := []struct{ name, flag, want string }{
		{"NoPort", "--listen=localhost", "--listen"},
		{"OriginWithPath", "--allowed-origins=https://a.example/page", "--allowed-origins"},
		{"OriginStar", "--allowed-origins=*", "--allowed-origins"},
		{"NoGrace", "--grace-period=0s", "--grace-period"},
		{"DelayOverGrace", "--drain-delay=1h", "--drain-delay"},
		{"NoSockets", "--sockets=0", "--sockets"},
		{"SpreadBackwards", "--close-spread=-1s", "--close-spread"},
		{"NoNetwork", "--trusted-proxies=everybody", "--trusted-proxies"},
		{"NoDuration", "--grace-period=soon", "expected duration"},
		{"Level", "--log-level=loud", "--log-level"},
		{"Unknown", "--colour=red", "unknown flag"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(t, append(least[:len(least):len(least)], tt.flag), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error %v, want one with %q", tt.flag, err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}
