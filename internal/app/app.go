// Package app is the configuration and the wiring: it makes every part, starts them, and stops
// them in the right order. The operators' commands are here as well.
//
//	New   pool ─ schema right? ─ listen on the port
//	Run   feed ─ hub ─ keys ─ Redis ─ holds ─ HTTP  until its ctx ends
//	stop  /readyz says no ─ (drain delay) ─ no new connections, sockets closed with 1001, spread ─
//	      requests in flight finish ─ feed, hub and Redis end ─ pools close
//
// One grace period covers the stop; what has not finished by then is cut. An [App] runs once.
// Any number of them, in one process or many, work on one database.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"openslot/graph"
	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/http1"
	"openslot/internal/live"
	"openslot/internal/postgres"
	"openslot/internal/rest"
	"openslot/internal/schedule"
	"openslot/internal/web"
)

// Limits of a connection. A client that takes longer is holding on to us, not talking to us.
// Websockets leave these behind once they are open.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// App is one instance of the API.
type App struct {
	config   Config
	log      *slog.Logger
	pool     *pgxpool.Pool
	health   *health
	hub      *live.Hub
	listener *live.Listener
	redis    *availability.Redis // nil: none is configured
	gate     *availability.Gate
	lists    *availability.Cache
	patients *auth.Patients
	auth     *auth.Authenticator
	booking  *booking.Service
	graph    *graph.Handler
	rest     *rest.Handler
	server   *http1.Server
	socket   net.Listener
}

// New makes an instance and takes its port; requests wait there until Run. It fails if the
// database is away or its schema is older than the program, and if config makes no sense.
func New(ctx context.Context, config Config, log *slog.Logger) (_ *App, err error) {
	a := &App{config: config, log: log}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.pool, err = config.Database.open(ctx); err != nil {
		return nil, err
	}
	if err := postgres.CheckSchema(ctx, a.pool); err != nil {
		return nil, err
	}
	if config.RedisURL != "" {
		if a.redis, err = availability.OpenRedis(config.RedisURL, log); err != nil {
			return nil, err
		}
	}
	a.feed()
	a.health = &health{listens: a.listener.Alive, log: log}
	a.health.pool, err = postgres.Open(ctx, postgres.Config{URL: config.Database.URL, MaxConns: 1, ApplicationName: "openslot-ready"})
	if err != nil {
		return nil, err
	}
	handler, err := a.handler(ctx)
	if err != nil {
		return nil, err
	}
	a.server = &http1.Server{HTTP: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	var lc net.ListenConfig
	if a.socket, err = lc.Listen(ctx, "tcp", config.HTTP.Listen); err != nil {
		return nil, fmt.Errorf("app: %w (--listen or OPENSLOT_LISTEN says where the API listens)", err)
	}
	return a, nil
}

// feed joins the change feed to those who live by it. A screen is told last: whoever acts on what
// it shows meets a gate and lists that know as much.
func (a *App) feed() {
	a.listener = &live.Listener{URL: a.config.Database.URL, Log: a.log}
	a.gate = availability.NewGate(a.redis, a.listener.Alive)
	a.lists = availability.NewCache(a.redis, a.listener.CaughtUp)
	a.hub = live.NewHub(a.pool, a.log)
	a.patients = auth.NewPatients(a.pool)
	a.listener.Consumers = []live.Consumer{
		{
			Resync: func(int64, time.Time) { a.patients.Recheck() },
			Access: func([]booking.PatientID) { a.patients.Recheck() },
		},
		{Resync: a.gate.Resync, Changed: a.gate.Changed, Stale: a.gate.Stale},
		{Resync: a.lists.Resync, Changed: a.lists.Changed, Stale: a.lists.Stale},
		a.hub.Consumer(),
	}
}

// handler makes the parts that answer requests, and the way a request takes to them.
func (a *App) handler(ctx context.Context) (http.Handler, error) {
	var err error
	a.auth, err = auth.New(ctx, a.config.JWT.authentication(a.log), a.patients)
	if err != nil {
		return nil, fmt.Errorf("tokens (--jwt-…, OPENSLOT_JWT_…): %w", err)
	}
	a.booking = booking.New(a.pool, booking.Config{Gate: a.gate})
	schedules := schedule.New(a.pool, schedule.Config{})
	lists := availability.New(a.pool, availability.Config{Cache: a.lists})
	admission := live.NewAdmission(a.config.HTTP.Sockets.limits(), a.config.HTTP.Sockets.TrustedProxies)
	a.graph = graph.New(graph.Parts{
		Booking:        a.booking,
		Schedule:       schedules,
		Availability:   lists,
		Hub:            a.hub,
		Auth:           a.auth,
		Patients:       a.patients,
		AllowedOrigins: a.config.HTTP.AllowedOrigins,
		KeepResponses:  a.config.HTTP.ResponseCache,
		Introspection:  a.config.HTTP.GraphiQL,
		Admission:      admission,
		CloseSpread:    a.config.HTTP.Sockets.CloseSpread,
		Log:            a.log,
	})
	a.rest = rest.New(rest.Parts{
		Booking:        a.booking,
		Schedule:       schedules,
		Availability:   lists,
		Gate:           a.gate,
		Hub:            a.hub,
		Auth:           a.auth,
		Patients:       a.patients,
		Admission:      admission,
		AllowedOrigins: a.config.HTTP.AllowedOrigins,
		Log:            a.log,
	})
	sameSite, err := a.sameSite()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", livez)
	mux.HandleFunc("GET /readyz", a.health.readyz)
	mux.Handle("/graphql", sameSite.Handler(a.graph))
	mux.Handle("/api/", sameSite.Handler(a.rest))
	if a.config.HTTP.GraphiQL {
		page := web.Handler("/graphql")
		mux.Handle("GET /{$}", page)
		mux.Handle("GET /assets/", page)
	}
	return withRequestID(withLog(a.log, mux)), nil
}

// sameSite refuses what pages of foreign origins send. There are no cookies here that such a page
// could ride on; this is for the day when somebody puts one in front of us.
func (a *App) sameSite() (*http.CrossOriginProtection, error) {
	protection := http.NewCrossOriginProtection()
	for _, origin := range a.config.HTTP.AllowedOrigins {
		if err := protection.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("--allowed-origins: %w", err)
		}
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusForbidden, booking.Forbidden, "Pages of this origin may not use the API.")
	}))
	return protection, nil
}

// Addr is where the instance listens.
func (a *App) Addr() net.Addr { return a.socket.Addr() }

// Run serves until ctx ends, then stops in an orderly way and returns nil. It returns early, with
// the reason, if a part fails for good.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	// The parts outlive ctx by as long as requests need them.
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	group, parts := errgroup.WithContext(parts)
	group.Go(func() error { return a.listener.Run(parts) })
	group.Go(func() error { return a.hub.Run(parts) })
	group.Go(func() error { return a.auth.Run(parts) })
	group.Go(func() error { return a.expire(parts) })
	if a.redis != nil {
		group.Go(func() error { return a.redis.Run(parts) })
	}
	group.Go(func() error {
		if err := a.server.Serve(a.socket); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	a.log.Info("serving", "address", a.Addr().String())

	select {
	case <-ctx.Done():
	case <-parts.Done():
	}
	a.drain(context.WithoutCancel(ctx))
	stopParts()
	if err := group.Wait(); err != nil {
		return fmt.Errorf("app: %w", err)
	}
	a.log.Info("stopped")
	return nil
}

// expireEvery is how often an instance looks for holds that have lapsed on somebody's screen.
const expireEvery = 500 * time.Millisecond

// expire has the holds of doctors whom somebody watches here written down as soon as they lapse, so
// that screens hear of it within a second, worker or not.
func (a *App) expire(ctx context.Context) error {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		doctors := a.hub.Watched()
		if len(doctors) == 0 {
			continue
		}
		if _, err := a.booking.Expire(ctx, doctors...); err != nil && ctx.Err() == nil {
			a.log.Debug("lapsed holds on screens", "error", err)
		}
	}
}

// drain stops the intake and waits for requests in flight, at most for the grace period.
func (a *App) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, a.config.HTTP.GracePeriod)
	defer cancel()
	a.health.draining.Store(true)
	a.log.Info("stopping", "gracePeriod", a.config.HTTP.GracePeriod.String())
	if a.config.HTTP.DrainDelay > 0 {
		select {
		case <-time.After(a.config.HTTP.DrainDelay):
		case <-ctx.Done():
		}
	}
	var both errgroup.Group
	a.rest.Close()                                      // Shutdown would wait for streams that never end
	both.Go(func() error { return a.graph.Close(ctx) }) // and does not know of websockets
	both.Go(func() error { return a.server.Shutdown(ctx) })
	if err := both.Wait(); err != nil {
		a.log.Warn("requests were cut at the end of the grace period", "error", err)
		_ = a.server.Close()
	}
}

// closeWait is how long to wait for connections that are still in use. What uses them has been
// cut by then, or ends with the process.
const closeWait = 2 * time.Second

// close frees what New took.
func (a *App) close() {
	if a.socket != nil {
		_ = a.socket.Close() // closed already if it was served
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if a.health != nil && a.health.pool != nil {
			a.health.pool.Close()
		}
		if a.pool != nil {
			a.pool.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeWait):
		a.log.Warn("database connections were still in use at the end")
	}
}
