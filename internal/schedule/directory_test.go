package schedule

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"openslot/internal/booking"
)

func TestCreateOrganization(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	got, err := p.Organization(t.Context(), p.organization.ID)
	want := Organization{ID: p.organization.ID, Name: "Practice", TimeZone: "Europe/Berlin",
		BookingRules: BookingRules{HoldMinutes: 10, OfferMinutes: 30, CancelledPlacesReturn: AtOnce}}
	if err != nil || got != want || p.organization != want {
		t.Fatalf("read back: %+v, %v", got, err)
	}
	for _, tt := range []struct{ name, zone string }{
		{"Practice", "Europe/Berlin"}, // taken
		{"  Practice ", "Europe/Berlin"},
		{"", "Europe/Berlin"}, {" \t", "Europe/Berlin"}, {strings.Repeat("é", 201), "Europe/Berlin"},
		{"a\x00b", "Europe/Berlin"}, {"a\nb", "Europe/Berlin"}, {"a\xff", "Europe/Berlin"},
		{"New", ""}, {"New", "Local"}, {"New", "Mars/Olympus"}, {"New", "+02:00"}, {"New", "Europe/Berlin\x00"},
	} {
		if _, err := p.CreateOrganization(t.Context(), booking.SystemActor, tt.name, tt.zone); code(err) != booking.Invalid {
			t.Errorf("%q in %q: %v, want INVALID", tt.name, tt.zone, err)
		}
	}
	_, err = p.CreateOrganization(t.Context(), booking.Actor{}, "New", "UTC")
	wantCode(t, err, booking.Unauthenticated)
	_, err = p.CreateOrganization(t.Context(), staff(p.organization), "New", "UTC")
	wantCode(t, err, booking.Forbidden)
	_, err = p.Organization(t.Context(), -1)
	wantCode(t, err, booking.NotFound)
	if n := one[int](p, `SELECT count(*) FROM organization`); n != 1 {
		t.Errorf("%d organizations, want 1", n)
	}
}

func TestCreateDoctor(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	create := func(actor booking.Actor, name, specialty string) (Doctor, error) {
		return p.CreateDoctor(t.Context(), actor, p.organization.ID, name, specialty)
	}
	for _, actor := range []booking.Actor{staff(p.organization), booking.SystemActor} {
		made, err := create(actor, strings.Repeat("ß", 200), "Skin & more")
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Doctor(t.Context(), made.ID)
		if err != nil || got != made || got.TimeZone != "Europe/Berlin" || got.Specialty != "Skin & more" {
			t.Fatalf("read back: %+v, %v; made: %+v", got, err, made)
		}
	}
	for _, tt := range [][2]string{{"", ""}, {strings.Repeat("x", 201), ""}, {"x", strings.Repeat("x", 201)}, {"x\x00", ""}, {"x", "\xc3"}} {
		if _, err := create(staff(p.organization), tt[0], tt[1]); code(err) != booking.Invalid {
			t.Errorf("%q, %q: %v, want INVALID", tt[0], tt[1], err)
		}
	}
	p.refuses(func(actor booking.Actor) error {
		_, err := create(actor, "Dr. No", "")
		return err
	})
	_, err := p.CreateDoctor(t.Context(), booking.SystemActor, 1<<40, "Dr. No", "")
	wantCode(t, err, booking.NotFound)
	_, err = p.Doctor(t.Context(), 0)
	wantCode(t, err, booking.NotFound)
	if n := one[int](p, `SELECT count(*) FROM doctor`); n != 3 {
		t.Errorf("%d doctors, want 3", n)
	}
}

func TestByID(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	second := p.newDoctor(p.organization, "Dr. Bo")
	doctors, err := p.DoctorsByID(t.Context(), []booking.DoctorID{second.ID, p.doctor.ID, second.ID, -5})
	if diff := cmp.Diff(map[booking.DoctorID]Doctor{p.doctor.ID: p.doctor, second.ID: second}, doctors); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	organizations, err := p.OrganizationsByID(t.Context(), []booking.OrganizationID{7777, p.organization.ID})
	if diff := cmp.Diff(map[booking.OrganizationID]Organization{p.organization.ID: p.organization}, organizations); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if none, err := p.DoctorsByID(t.Context(), nil); err != nil || len(none) != 0 {
		t.Errorf("no ids: %v, %v", none, err)
	}
}

// names pages through the list and returns all names, running between after every page.
func (p *practice) names(q DoctorQuery, between func()) (names []string) {
	p.t.Helper()
	for range 100 {
		page, err := p.Doctors(p.t.Context(), q)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(page.Doctors) > q.First {
			p.t.Fatalf("%d doctors in a page of %d", len(page.Doctors), q.First)
		}
		for _, d := range page.Doctors {
			names = append(names, d.Name)
			q.After = d.Cursor()
		}
		if !page.HasNext {
			return names
		}
		between()
	}
	p.t.Fatal("the list has no end")
	return nil
}

func TestDoctors(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	tokyo := p.newOrganization("Tokyo", "Asia/Tokyo")
	for _, d := range [][2]string{{"Dr. Özil", "Skin"}, {"100 % Teeth", ""}, {`Back\slash`, ""}, {"under_score", "teeth"}} {
		if _, err := p.CreateDoctor(t.Context(), booking.SystemActor, tokyo.ID, d[0], d[1]); err != nil {
			t.Fatal(err)
		}
	}
	for search, want := range map[string]int{
		"": 5, "   ": 5, "dr.": 2, "özil": 1, "ÖZIL": 1, "SKIN": 1, "TEETH": 2, "%": 1, "_": 1, `\`: 1, `\s`: 1, "0 %": 1, "nobody": 0, "'": 0,
	} {
		page, err := p.Doctors(t.Context(), DoctorQuery{Search: search, First: 10})
		if err != nil || len(page.Doctors) != want || page.HasNext {
			t.Errorf("search %q: %v, %v, want %d", search, page, err, want)
		}
	}
	for id, want := range map[booking.OrganizationID]int{tokyo.ID: 4, p.organization.ID: 1, 12345: 0} {
		if got := p.names(DoctorQuery{OrganizationID: &id, First: 3}, func() {}); len(got) != want {
			t.Errorf("organization %d: %v, want %d", id, got, want)
		}
	}
}

// Pages neither repeat nor skip whoever is there throughout, whoever else comes and goes before
// and behind the page, and however many have one name.
func TestDoctorsPaging(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.exec(`INSERT INTO doctor (organization_id, name) SELECT $1, 'Same' FROM generate_series(1, 25)`, p.organization.ID)
	p.exec(`INSERT INTO doctor (organization_id, name) SELECT $1, chr(i) || ' "quoted"' FROM generate_series(97, 122) AS i`, p.organization.ID)
	stable := p.names(DoctorQuery{First: 100}, func() {})
	got := p.names(DoctorQuery{First: 4}, func() {
		p.exec(`DELETE FROM doctor WHERE specialty = 'guest'`)
		p.exec(`INSERT INTO doctor (organization_id, name, specialty)
			SELECT $1, name, 'guest' FROM unnest('{0 guest,b guest,R guest,zz guest}'::text[]) AS name`, p.organization.ID)
	})
	got = slices.DeleteFunc(got, func(name string) bool { return strings.HasSuffix(name, "guest") })
	if diff := cmp.Diff(stable, got); diff != "" || len(stable) != 52 {
		t.Errorf("%d doctors: %s", len(stable), diff)
	}
}

func TestDoctorsInvalid(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	encode := base64.RawURLEncoding.EncodeToString
	for name, q := range map[string]DoctorQuery{
		"first 0":        {First: 0},
		"first -1":       {First: -1},
		"first 101":      {First: 101},
		"NUL":            {First: 1, Search: "a\x00"},
		"not UTF-8":      {First: 1, Search: "\xff"},
		"long":           {First: 1, Search: strings.Repeat("x", 201)},
		"no base64":      {First: 1, After: "%%%"},
		"no JSON":        {First: 1, After: encode([]byte("hello"))},
		"NUL in cursor":  {First: 1, After: Doctor{Name: "a\x00", ID: 1}.Cursor()},
		"other JSON":     {First: 1, After: encode([]byte(`{"Name":"a","ID":1,"x":2}`))},
		"huge id":        {First: 1, After: encode([]byte(`{"Name":"a","ID":99999999999999999999}`))},
		"padded":         {First: 1, After: p.doctor.Cursor() + "="},
		"trailing space": {First: 1, After: p.doctor.Cursor() + " "},
	} {
		if _, err := p.Doctors(context.Background(), q); code(err) != booking.Invalid {
			t.Errorf("%s: %v, want INVALID", name, err)
		}
	}
}
