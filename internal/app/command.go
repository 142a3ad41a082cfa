package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/schollz/progressbar/v3"

	"openslot/internal/booking"
	"openslot/internal/postgres"
	"openslot/internal/schedule"
)

// commands is the command line of openslot.
type commands struct {
	API     apiCommand    `cmd:"" help:"Serve the API, over GraphQL and plain HTTP."`
	Worker  workerCommand `cmd:"" help:"Do what nobody waits for: end holds that have lapsed, give withheld places back, tidy waiting lists. Any number may run; they share the work."`
	Migrate struct {
		Up      migrateUp      `cmd:"" help:"Bring the schema up to what this program needs. Safe to run from many places at once."`
		Down    migrateDown    `cmd:"" help:"Take the whole schema away, with all data in it."`
		Version migrateVersion `cmd:"" help:"Say whether the schema is what this program needs."`
	} `cmd:"" help:"Change the database's schema."`
	Organization struct {
		Create createOrganization `cmd:"" help:"Create an organization."`
		Rules  bookingRules       `cmd:"" help:"Show what an organization asks of its patients, and change it: give what is to change. 0 is no such rule."`
	} `cmd:"" help:"Practices and clinics."`
	Doctor struct {
		Create createDoctor `cmd:"" help:"Add a doctor to an organization."`
	} `cmd:"" help:"Doctors."`
	Schedule struct {
		Generate generateSlots `cmd:"" help:"Make slots from the doctors' weekly templates. Running it again adds only what is missing."`
	} `cmd:"" help:"Templates and slots."`
	Token   signToken      `cmd:"" help:"Sign a token with the secret: for development."`
	Version versionCommand `cmd:"" help:"Print the version."`
}

// console is where a command runs.
type console struct {
	ctx            context.Context
	stdout, stderr io.Writer
}

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// Main runs one command line and returns the exit code: 0, 1 for a failure, 2 for a command
// line that makes no sense. Errors are one line on stderr. The end of ctx stops the command in
// an orderly way.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	exited := -1
	parser, err := newParser(&commands{},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }))
	if err != nil {
		panic(err) // the structs above make no sense
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		fmt.Fprintf(stderr, "openslot: %s (openslot --help tells more)\n", oneLine(err))
		return exitUsage
	}
	if err := parsed.Run(console{ctx, stdout, stderr}); err != nil {
		fmt.Fprintln(stderr, "openslot:", oneLine(err))
		return exitFailure
	}
	return 0
}

func newParser(into *commands, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(into, append(options,
		kong.Name("openslot"),
		kong.Description("Books medical appointments. Every flag can also be set by the environment variable beside it."))...)
}

// oneLine is an error in one line, for people. Of a refusal of their input that is the message,
// of anything else also the cause.
func oneLine(err error) string {
	text := err.Error()
	var refused *booking.Error
	if errors.As(err, &refused) {
		switch refused.Code {
		case booking.Overloaded, booking.Unavailable, booking.OutcomeUnknown, booking.Internal:
		default:
			text = refused.Message
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

type apiCommand struct {
	Config
}

// gcPercent is GOGC where the environment does not say: requests leave little behind, so that memory
// is cheaper here than collecting it (a sixth of the server's time). It ends where a container's memory
// does (limitMemory).
const gcPercent = 400

func (c *apiCommand) Run(at console) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, flush := newLog(at.stderr, c.LogLevel)
	defer flush()
	limitMemory(log)
	stop, err := profile(c.CPUProfile)
	if err != nil {
		return err
	}
	instance, err := New(at.ctx, c.Config, log)
	if err == nil {
		err = instance.Run(at.ctx)
	}
	return errors.Join(err, stop())
}

// limitMemory makes garbage be collected in time where a container's memory has a limit and GOMEMLIMIT
// does not say: who fills it is killed.
func limitMemory(log *slog.Logger) {
	limit, err := memlimit.Set()
	if err != nil { // there are no containers here, or none that we understand
		log.Debug("no limit of memory was found", "error", err)
		return
	}
	if limit < math.MaxInt64 {
		log.Info("the container's memory is limited", "collectAt", limit)
	}
}

// profile writes a profile of this process to a file, if one is named, until stop is called.
func profile(name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

type workerCommand struct {
	Database
	LogLevel slog.Level `env:"OPENSLOT_LOG_LEVEL" default:"info" placeholder:"LEVEL" help:"Least level that is logged: debug, info, warn or error."`
}

func (c *workerCommand) Run(at console) error {
	return Work(at.ctx, c.Database, slog.New(slog.NewJSONHandler(at.stderr, &slog.HandlerOptions{Level: c.LogLevel})))
}

// Work does what nobody waits for, until ctx ends, and then returns nil. Any number of workers share
// the work. It fails if the database is away at first, or its schema is older than the program.
func Work(ctx context.Context, database Database, log *slog.Logger) error {
	err := database.withPool(ctx, func(pool *pgxpool.Pool) error {
		log.Info("working")
		err := booking.New(pool, booking.Config{}).Sweep(ctx, func(err error) { log.Warn("holds could not be ended", "error", err) })
		log.Info("stopped")
		return err
	})
	if ctx.Err() != nil {
		return nil // it was told to stop, perhaps before it had begun
	}
	return err
}

type migrateUp struct{ Database }

func (c *migrateUp) Run(at console) error {
	if err := Migrate(at.ctx, c.Database); err != nil {
		return err
	}
	fmt.Fprintln(at.stdout, "The schema is up to date.")
	return nil
}

type migrateDown struct {
	Database
	Yes bool `help:"Yes, delete all data." required:""`
}

func (c *migrateDown) Run(at console) error {
	if err := MigrateDown(at.ctx, c.Database); err != nil {
		return err
	}
	fmt.Fprintln(at.stdout, "The schema is gone.")
	return nil
}

type migrateVersion struct{ Database }

func (c *migrateVersion) Run(at console) error {
	return c.withPool(at.ctx, func(*pgxpool.Pool) error {
		fmt.Fprintln(at.stdout, "The schema is up to date.")
		return nil
	})
}

type createOrganization struct {
	Database
	Name     string `required:"" help:"Unique name."`
	TimeZone string `required:"" placeholder:"ZONE" help:"IANA time zone, such as Europe/Berlin."`
}

func (c *createOrganization) Run(at console) error {
	return c.withPool(at.ctx, func(pool *pgxpool.Pool) error {
		made, err := schedule.New(pool, schedule.Config{}).CreateOrganization(at.ctx, booking.SystemActor, c.Name, c.TimeZone)
		if err != nil {
			return err
		}
		fmt.Fprintln(at.stdout, made.ID)
		return nil
	})
}

type bookingRules struct {
	Database
	Organization  booking.OrganizationID `required:"" placeholder:"ID" help:"The organization's id."`
	HoldMinutes   *int                   `placeholder:"N" help:"How long a hold lasts: 1 to 1440."`
	NoticeMinutes *int                   `placeholder:"N" help:"Patients book at least so long before the start: up to 525600."`
	HorizonDays   *int                   `placeholder:"N" help:"Patients book so many days ahead at most: up to 3650."`
	CutoffMinutes *int                   `placeholder:"N" help:"Patients cancel and move at least so long before the start: up to 525600."`
	MaxActive     *int                   `placeholder:"N" help:"Appointments of a patient that are not over: up to 10000."`
	MaxHolds      *int                   `placeholder:"N" help:"Live holds of a patient: up to 10000."`
	MaxPerDay     *int                   `placeholder:"N" help:"Appointments of a patient a day: up to 10000."`
	OfferMinutes  *int                   `placeholder:"N" help:"How long somebody who waits may think an offer over: 1 to 1440."`

	CancelledPlacesReturn *schedule.PlacesReturn `placeholder:"WHEN" help:"When cancelled places come back: AT_ONCE or NEXT_RELEASE."`
}

func (c *bookingRules) Run(at console) error {
	change := schedule.RulesChange{Organization: c.Organization, HoldMinutes: c.HoldMinutes, NoticeMinutes: c.NoticeMinutes,
		HorizonDays: c.HorizonDays, CutoffMinutes: c.CutoffMinutes, MaxActive: c.MaxActive, MaxHolds: c.MaxHolds, MaxPerDay: c.MaxPerDay,
		OfferMinutes: c.OfferMinutes, CancelledPlacesReturn: c.CancelledPlacesReturn}
	return c.withPool(at.ctx, func(pool *pgxpool.Pool) (err error) {
		var o schedule.Organization
		if service := schedule.New(pool, schedule.Config{}); change.IsEmpty() {
			o, err = service.Organization(at.ctx, c.Organization)
		} else {
			o, err = service.UpdateRules(at.ctx, booking.SystemActor, change)
		}
		if err != nil {
			return err
		}
		for _, rule := range []struct {
			name  string
			value *int
		}{
			{"hold-minutes", &o.HoldMinutes}, {"notice-minutes", o.NoticeMinutes}, {"horizon-days", o.HorizonDays}, {"cutoff-minutes", o.CutoffMinutes},
			{"max-active", o.MaxActive}, {"max-holds", o.MaxHolds}, {"max-per-day", o.MaxPerDay},
			{"offer-minutes", &o.OfferMinutes},
		} {
			value := "none"
			if rule.value != nil {
				value = strconv.Itoa(*rule.value)
			}
			fmt.Fprintf(at.stdout, "%-15s%s\n", rule.name, value)
		}
		fmt.Fprintf(at.stdout, "cancelled-places-return %s\n", o.CancelledPlacesReturn)
		return nil
	})
}

type createDoctor struct {
	Database
	Organization booking.OrganizationID `required:"" placeholder:"ID" help:"The organization's id."`
	Name         string                 `required:"" help:"Name."`
	Specialty    string                 `help:"Field of medicine."`
}

func (c *createDoctor) Run(at console) error {
	return c.withPool(at.ctx, func(pool *pgxpool.Pool) error {
		made, err := schedule.New(pool, schedule.Config{}).CreateDoctor(at.ctx, booking.SystemActor, c.Organization, c.Name, c.Specialty)
		if err != nil {
			return err
		}
		fmt.Fprintln(at.stdout, made.ID)
		return nil
	})
}

type generateSlots struct {
	Database
	All    bool             `required:"" xor:"whose" help:"For all doctors."`
	Doctor booking.DoctorID `required:"" xor:"whose" placeholder:"ID" help:"For this doctor."`
	Days   int              `default:"14" help:"How many days, today included: 1 to 15. A day's slots can be booked from 07:00 fourteen days before it, so the 15th is the day that opens at 07:00 today; after 07:00 it is open already."`
}

func (c *generateSlots) Run(at console) error {
	if c.All {
		added, err := GenerateAll(at.ctx, c.Database, c.Days, at.stderr)
		if err != nil {
			return err
		}
		fmt.Fprintf(at.stdout, "%d slots added.\n", added)
		return nil
	}
	return c.withPool(at.ctx, func(pool *pgxpool.Pool) error {
		added, err := schedule.New(pool, schedule.Config{}).Generate(at.ctx, booking.SystemActor, c.Doctor, c.Days)
		if err != nil {
			return err
		}
		fmt.Fprintf(at.stdout, "%d slots added.\n", added)
		return nil
	})
}

type signToken struct {
	JWT   JWT   `embed:"" prefix:"jwt-"`
	Grant Token `embed:""`
}

func (c *signToken) Run(at console) error {
	token, err := c.JWT.Sign(c.Grant)
	if err != nil {
		return err
	}
	fmt.Fprintln(at.stdout, token)
	return nil
}

type versionCommand struct{}

func (versionCommand) Run(at console) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	_, err := fmt.Fprintf(at.stdout, "openslot %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// withPool lends a pool for as long as do runs, once the schema is found to be what this program
// needs.
func (d Database) withPool(ctx context.Context, do func(*pgxpool.Pool) error) error {
	pool, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return err
	}
	return do(pool)
}

func (d Database) open(ctx context.Context) (*pgxpool.Pool, error) {
	return postgres.Open(ctx, postgres.Config{URL: d.URL, MaxConns: d.Connections})
}

// Migrate brings the schema up to what this program needs.
func Migrate(ctx context.Context, database Database) error {
	return postgres.Migrate(ctx, database.URL)
}

// MigrateDown takes the whole schema away, with all data in it.
func MigrateDown(ctx context.Context, database Database) error {
	return postgres.MigrateDown(ctx, database.URL)
}

// GenerateAll makes the slots of all doctors for days days, today included, and returns how
// many were missing. A bar on stderr shows how far it is, if that is a terminal.
func GenerateAll(ctx context.Context, database Database, days int, stderr io.Writer) (added int64, err error) {
	bar := ProgressBar(stderr, "Generating slots")
	err = database.withPool(ctx, func(pool *pgxpool.Pool) error {
		added, err = schedule.New(pool, schedule.Config{}).GenerateAll(ctx, days, func(done, total int) {
			bar.ChangeMax(total)
			_ = bar.Set(done)
		})
		return err
	})
	_ = bar.Finish()
	return added, err
}

// ProgressBar draws on w if w is a terminal, else nothing.
func ProgressBar(w io.Writer, what string) *progressbar.ProgressBar {
	visible := false
	if file, ok := w.(*os.File); ok {
		info, err := file.Stat()
		visible = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return progressbar.NewOptions(1,
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetVisibility(visible),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish())
}
