package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// Config is everything that can be set, by flags or by the environment. Where both say
// something, the flag holds.
type Config struct {
	Database Database   `embed:""`
	RedisURL string     `name:"redis-url" env:"REDIS_URL" placeholder:"URL" help:"Redis, as redis://[user:password@]host[:port][/database], in which instances share limits, full slots and lists. Without it, or while it is away, each does what it can alone."`
	HTTP     HTTP       `embed:""`
	JWT      JWT        `embed:"" prefix:"jwt-"`
	LogLevel slog.Level `env:"OPENSLOT_LOG_LEVEL" default:"info" placeholder:"LEVEL" help:"Least level that is logged: debug, info, warn or error."`

	CPUProfile string `name:"cpu-profile" env:"OPENSLOT_CPU_PROFILE" placeholder:"FILE" help:"Write here, for go tool pprof, where the CPU time goes from start to stop."`
}

// Database says where PostgreSQL is.
type Database struct {
	URL         string `name:"database-url" env:"DATABASE_URL" required:"" placeholder:"URL" help:"PostgreSQL, as postgres://user@host/database. Not through a pooler in transaction mode. A password is better kept in the environment: flags show in the list of processes."`
	Connections int32  `name:"database-connections" env:"OPENSLOT_DATABASE_CONNECTIONS" default:"16" help:"Most connections of one process for queries; two more serve the change feed and readiness."`
}

// Validate takes a URL that is set, but to nothing, for one that is missing. PostgreSQL's own
// variables would be asked otherwise, and lead who knows where.
func (d Database) Validate() error {
	if d.URL == "" {
		return errors.New("set --database-url or DATABASE_URL: the address of PostgreSQL")
	}
	return nil
}

// HTTP says how the API is served.
type HTTP struct {
	Listen         string        `env:"OPENSLOT_LISTEN" default:":8080" placeholder:"ADDRESS" help:"Where the API listens: host:port, or :port for all interfaces."`
	AllowedOrigins []string      `env:"OPENSLOT_ALLOWED_ORIGINS" placeholder:"ORIGIN" help:"Web pages of these origins (https://host[:port], separated by commas) may use the API, besides its own."`
	GraphiQL       bool          `name:"graphiql" env:"OPENSLOT_GRAPHIQL" help:"Serve the GraphiQL page at / and answer introspection."`
	ResponseCache  bool          `env:"OPENSLOT_RESPONSE_CACHE" default:"true" negatable:"" help:"Keep whole answers to public queries in memory, for as long as nothing in them has changed."`
	Sockets        Sockets       `embed:""`
	GracePeriod    time.Duration `env:"OPENSLOT_GRACE_PERIOD" default:"20s" help:"How long requests in flight may take to finish once the process is told to stop."`
	DrainDelay     time.Duration `env:"OPENSLOT_DRAIN_DELAY" default:"0s" help:"How long to go on serving after that, with /readyz already saying no, so that load balancers notice. Counts into the grace period."`
}

// Sockets says how many websockets one instance takes, and how it lets go of them.
type Sockets struct {
	Most           int            `name:"sockets" env:"OPENSLOT_SOCKETS" default:"20000" placeholder:"N" help:"Most websockets and event streams at once. Each takes a file descriptor."`
	PerActor       int            `name:"sockets-per-actor" env:"OPENSLOT_SOCKETS_PER_ACTOR" default:"20" placeholder:"N" help:"Most of them at once of one patient or staff member."`
	PerPartner     int            `name:"sockets-per-partner" env:"OPENSLOT_SOCKETS_PER_PARTNER" default:"200" placeholder:"N" help:"Most of them at once of one partner."`
	PerPeer        int            `name:"sockets-per-peer" env:"OPENSLOT_SOCKETS_PER_PEER" default:"1000" placeholder:"N" help:"Most of them at once, without a token, from one network address."`
	TrustedProxies []netip.Prefix `env:"OPENSLOT_TRUSTED_PROXIES" placeholder:"NETWORK" help:"Networks of your load balancers (10.0.0.0/8, separated by commas): from these X-Forwarded-For says which address that is."`
	CloseSpread    time.Duration  `env:"OPENSLOT_CLOSE_SPREAD" default:"5s" help:"Over how long websockets are closed once the process is told to stop, so that their clients come back in a trickle. Counts into the grace period."`
}

// Validate says in one line which number makes no sense.
func (s Sockets) Validate() error {
	if min(s.Most, s.PerActor, s.PerPartner, s.PerPeer) < 1 {
		return errors.New("--sockets and --sockets-per-… must be 1 or more")
	}
	if s.CloseSpread < 0 {
		return errors.New("--close-spread must not be negative")
	}
	return nil
}

// limits is what the transport wants to know.
func (s Sockets) limits() live.Limits {
	return live.Limits{Total: s.Most, PerActor: s.PerActor, PerPartner: s.PerPartner, PerPeer: s.PerPeer}
}

// JWT says whose tokens are trusted: signed with a secret of ours (development), or by a key
// of an identity provider. Exactly one of Secret and JWKSURL is set.
type JWT struct {
	Issuer   string        `env:"OPENSLOT_JWT_ISSUER" required:"" placeholder:"ISSUER" help:"The only issuer (iss) whose tokens are accepted."`
	Audience string        `env:"OPENSLOT_JWT_AUDIENCE" default:"openslot" placeholder:"AUDIENCE" help:"What a token's audience (aud) must contain."`
	Secret   string        `env:"OPENSLOT_JWT_SECRET" placeholder:"SECRET" help:"Key of tokens signed with HS256, at least 32 bytes: for development. Better kept in the environment."`
	JWKSURL  string        `name:"jwks-url" env:"OPENSLOT_JWT_JWKS_URL" placeholder:"URL" help:"Where the identity provider publishes its keys."`
	Leeway   time.Duration `env:"OPENSLOT_JWT_LEEWAY" default:"30s" help:"How far clocks may be apart, at most 1m."`
}

// Validate says in one line what is wrong with the address or the time limits.
func (h HTTP) Validate() error {
	if _, _, err := net.SplitHostPort(h.Listen); err != nil {
		return fmt.Errorf("--listen %q: want host:port", h.Listen)
	}
	for _, origin := range h.AllowedOrigins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin {
			return fmt.Errorf("--allowed-origins %q: want scheme://host or scheme://host:port", origin)
		}
	}
	if h.GracePeriod <= 0 || h.DrainDelay < 0 || h.DrainDelay >= h.GracePeriod {
		return errors.New("--grace-period must be positive, and longer than --drain-delay")
	}
	return nil
}

// Validate says in one line what is missing, or set twice.
func (j JWT) Validate() error {
	switch {
	case j.Issuer == "":
		return errors.New("set --jwt-issuer or OPENSLOT_JWT_ISSUER: whose tokens are accepted")
	case j.Secret == "" && j.JWKSURL == "":
		return errors.New("set one of OPENSLOT_JWT_SECRET (--jwt-secret, for development) and OPENSLOT_JWT_JWKS_URL (--jwt-jwks-url): tokens are checked with it")
	case j.Secret != "" && j.JWKSURL != "":
		return errors.New("set only one of OPENSLOT_JWT_SECRET (--jwt-secret) and OPENSLOT_JWT_JWKS_URL (--jwt-jwks-url): both are set")
	}
	return nil
}

// authentication is what the parts that check tokens want to know.
func (j JWT) authentication(log *slog.Logger) auth.Config {
	return auth.Config{Issuer: j.Issuer, Audience: j.Audience, Secret: []byte(j.Secret), JWKSURL: j.JWKSURL, Leeway: j.Leeway, Log: log}
}

// Token is what a token signed here says of its holder.
type Token struct {
	Role         string        `required:"" enum:"patient,staff,partner,system" help:"What its holder is: ${enum}."`
	Subject      string        `required:"" help:"Stable id of its holder."`
	Organization int64         `placeholder:"ID" help:"For staff: the organization they work for."`
	Name         string        `help:"For patients: their name."`
	TTL          time.Duration `name:"ttl" default:"1h" help:"How long it is good."`
}

// Validate says in one line what is missing for the role.
func (t Token) Validate() error {
	if t.Role == string(booking.Staff) && t.Organization == 0 {
		return errors.New("--organization is required for staff")
	}
	return nil
}

// Sign makes a token that an API with the same settings accepts. It needs the secret: for
// development.
func (j JWT) Sign(t Token) (string, error) {
	return j.authentication(nil).Sign(auth.Grant{
		Role: booking.ActorKind(t.Role), Subject: t.Subject, Organization: booking.OrganizationID(t.Organization), Name: t.Name, TTL: t.TTL,
	})
}
