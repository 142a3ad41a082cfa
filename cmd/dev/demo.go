package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"openslot/internal/app"
)

// demo fills the API with data to try it on. It may be run again: it adds what is missing.
type demo struct {
	api     string // http://host:port
	config  app.Config
	doctors int
	stderr  io.Writer
	token   string // of the practice's staff, once there is a practice
}

// practice is the name of the demo organization.
const (
	practice = "Demo Practice"
	zone     = "Europe/Berlin"
)

// doctor is a doctor as the API tells.
type doctor struct {
	ID, Name string
}

// fill makes the practice, its doctors, their templates and slots, and returns what to begin with.
func (d *demo) fill(ctx context.Context) (start, error) {
	organization, err := d.organization(ctx)
	if err != nil {
		return start{}, fmt.Errorf("demo practice: %w", err)
	}
	if d.token, err = d.sign(app.Token{Role: "staff", Subject: "staff-1", Organization: organization}); err != nil {
		return start{}, err
	}
	doctors, err := d.staff(ctx, organization)
	if err != nil {
		return start{}, fmt.Errorf("demo doctors: %w", err)
	}
	// The 15th day is today plus 14: the newest that is open, once it is 07:00.
	if _, err := app.GenerateAll(ctx, d.config.Database, 15, d.stderr); err != nil {
		return start{}, fmt.Errorf("demo slots: %w", err)
	}
	return d.begin(ctx, organization, doctors[0])
}

// tokenTTL is how long printed tokens are good.
const tokenTTL = 7 * 24 * time.Hour

func (d *demo) sign(token app.Token) (string, error) {
	token.TTL = tokenTTL
	return d.config.JWT.Sign(token)
}

// organization finds the demo practice or makes it, and returns its id.
func (d *demo) organization(ctx context.Context) (int64, error) {
	system, err := d.sign(app.Token{Role: "system", Subject: "operator-1"})
	if err != nil {
		return 0, err
	}
	var made struct {
		CreateOrganization struct{ Organization struct{ ID string } }
	}
	err = d.ask(ctx, system, `mutation($in: CreateOrganizationInput!) { createOrganization(input: $in) { organization { id } } }`,
		map[string]any{"in": map[string]any{"name": practice, "timeZone": zone}}, &made)
	if err == nil {
		return strconv.ParseInt(made.CreateOrganization.Organization.ID, 10, 64)
	}
	// The name is taken, by an earlier run. Staff tokens are ours to sign, and those of the
	// practice tell its name.
	for id := int64(1); id <= 1000; id++ {
		staff, serr := d.sign(app.Token{Role: "staff", Subject: "staff-1", Organization: id})
		if serr != nil {
			return 0, serr
		}
		var found struct {
			Me struct{ Organization *struct{ Name string } }
		}
		if qerr := d.ask(ctx, staff, `{ me { organization { name } } }`, nil, &found); qerr != nil {
			return 0, errors.Join(err, qerr)
		}
		if o := found.Me.Organization; o != nil && o.Name == practice {
			return id, nil
		}
	}
	return 0, err
}

// staff returns the practice's doctors, by name, after adding those that are missing.
func (d *demo) staff(ctx context.Context, organization int64) ([]doctor, error) {
	have, err := d.list(ctx, organization)
	if err != nil {
		return nil, err
	}
	known := map[string]string{} // name → id
	for _, doctor := range have {
		known[doctor.Name] = doctor.ID
	}
	bar := app.ProgressBar(d.stderr, "Adding doctors")
	bar.ChangeMax(d.doctors)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range d.doctors {
		group.Go(func() error {
			defer func() { _ = bar.Add(1) }()
			return d.hire(gctx, i, known[doctorName(i)])
		})
	}
	err = group.Wait()
	_ = bar.Finish()
	if err != nil {
		return nil, err
	}
	return d.list(ctx, organization)
}

// list reads all doctors of the practice.
func (d *demo) list(ctx context.Context, organization int64) (all []doctor, err error) {
	var after *string
	for {
		var page struct {
			Doctors struct {
				Nodes    []doctor
				PageInfo struct {
					HasNextPage bool
					EndCursor   *string
				}
			}
		}
		err := d.ask(ctx, d.token, `query($o: ID!, $after: String) { doctors(organizationId: $o, first: 100, after: $after) {
			nodes { id name } pageInfo { hasNextPage endCursor } } }`,
			map[string]any{"o": strconv.FormatInt(organization, 10), "after": after}, &page)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Doctors.Nodes...)
		if !page.Doctors.PageInfo.HasNextPage {
			return all, nil
		}
		after = page.Doctors.PageInfo.EndCursor
	}
}

// hire adds doctor i, unless they are there under id, with a template of 40 slots a day, every
// day of the week: whenever somebody tries it, there is something to book.
func (d *demo) hire(ctx context.Context, i int, id string) error {
	specialty := specialties[i%len(specialties)]
	if id == "" {
		var made struct {
			CreateDoctor struct{ Doctor doctor }
		}
		err := d.ask(ctx, d.token, `mutation($in: CreateDoctorInput!) { createDoctor(input: $in) { doctor { id } } }`,
			map[string]any{"in": map[string]any{"name": doctorName(i), "specialty": specialty.name}}, &made)
		if err != nil {
			return err
		}
		id = made.CreateDoctor.Doctor.ID
	}
	var shifts []map[string]any
	for _, day := range []string{"MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"} {
		for _, hours := range [][2]string{{"08:00", "13:00"}, {"14:00", "19:00"}} {
			shifts = append(shifts, map[string]any{"weekday": day, "start": hours[0], "end": hours[1],
				"slotMinutes": 15, "capacity": specialty.capacity})
		}
	}
	var answer struct {
		CreateSchedule struct {
			Errors []struct{ Code, Message string }
		}
	}
	err := d.ask(ctx, d.token, `mutation($in: CreateScheduleInput!) { createSchedule(input: $in) { errors { code message } } }`,
		map[string]any{"in": map[string]any{"doctorId": id, "validFrom": "2020-01-01", "shifts": shifts}}, &answer)
	if err != nil {
		return err
	}
	for _, refusal := range answer.CreateSchedule.Errors {
		if refusal.Code != "SCHEDULE_IN_USE" { // by an earlier run
			return errors.New(refusal.Message)
		}
	}
	return nil
}

// ask sends one GraphQL request and reads the data of its answer.
func (d *demo) ask(ctx context.Context, token, query string, variables map[string]any, data any) error {
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.api+"/graphql", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Data   any
		Errors []struct{ Message string }
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("the API answered %s: %w", response.Status, err)
	}
	if len(answer.Errors) > 0 {
		return errors.New(answer.Errors[0].Message)
	}
	return nil
}
