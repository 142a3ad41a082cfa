package schedule

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"openslot/internal/booking"
)

func TestUpdateRules(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	other := p.newOrganization("Other", "Asia/Tokyo")
	update := func(actor booking.Actor, c RulesChange) Organization {
		t.Helper()
		o, err := p.UpdateRules(t.Context(), actor, c)
		if err != nil {
			t.Fatal(err)
		}
		if read, err := p.Organization(t.Context(), o.ID); err != nil || cmp.Diff(o, read) != "" {
			t.Fatalf("told %+v, read back %+v, %v", o, read, err)
		}
		return o
	}
	want := p.organization
	want.BookingRules = BookingRules{5, new(60), new(30), new(1440), new(3), new(2), new(1), 45, NextRelease}
	got := update(staff(p.organization), RulesChange{0, new(5), new(60), new(30), new(1440), new(3), new(2), new(1), new(45), new(NextRelease)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all of them: %s", diff)
	}
	want.HorizonDays, want.MaxActive = new(60), nil // the others are left
	got = update(staff(p.organization), RulesChange{Organization: p.organization.ID, HorizonDays: new(60), MaxActive: new(0)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("two of them: %s", diff)
	}
	want.BookingRules = BookingRules{HoldMinutes: 1440, OfferMinutes: 45, CancelledPlacesReturn: AtOnce}
	got = update(booking.SystemActor, RulesChange{p.organization.ID, new(1440), new(0), new(0), new(0), new(0), new(0), new(0), nil, new(AtOnce)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("none: %s", diff)
	}
	update(staff(p.organization), RulesChange{0, nil, new(525600), new(3650), new(525600), new(10000), new(10000), new(10000), new(1440), nil})
	if o, err := p.Organization(t.Context(), other.ID); err != nil || cmp.Diff(other, o) != "" {
		t.Errorf("another organization: %+v, %v", o, err)
	}

	p.refuses(func(actor booking.Actor) error {
		_, err := p.UpdateRules(t.Context(), actor, RulesChange{Organization: p.organization.ID, MaxActive: new(1)})
		return err
	})
	for _, id := range []booking.OrganizationID{0, 1 << 40} {
		_, err := p.UpdateRules(t.Context(), booking.SystemActor, RulesChange{Organization: id, MaxActive: new(1)})
		wantCode(t, err, booking.NotFound)
	}
	for _, c := range []RulesChange{{}, {Organization: p.organization.ID}, {HoldMinutes: new(0)}, {HoldMinutes: new(1441)},
		{OfferMinutes: new(0)}, {OfferMinutes: new(1441)}, {CancelledPlacesReturn: new(PlacesReturn("LATER"))}} {
		_, err := p.UpdateRules(t.Context(), staff(p.organization), c)
		wantCode(t, err, booking.Invalid)
	}
	// Of every other rule: none below 0, none above its most; and the database agrees with the program.
	fields := reflect.TypeFor[RulesChange]()
	for i := 2; fields.Field(i).Name != "OfferMinutes"; i++ {
		for n, want := range map[int]booking.Code{-1: booking.Invalid, 1: "", 0: "", 1 << 30: booking.Invalid} {
			var c RulesChange
			reflect.ValueOf(&c).Elem().Field(i).Set(reflect.ValueOf(new(n)))
			_, err := p.UpdateRules(t.Context(), staff(p.organization), c)
			name := strings.ToLower(fields.Field(i).Name[:1]) + fields.Field(i).Name[1:]
			if code(err) != want || want != "" && !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %d: %v, want %q", name, n, err, want)
			}
		}
	}
}
