package auth

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

var (
	staff7 = booking.Actor{Kind: booking.Staff, Subject: "mina", Organization: 7}
	staff8 = booking.Actor{Kind: booking.Staff, Subject: "mina", Organization: 8}
	acme   = booking.Actor{Kind: booking.Partner, Subject: "acme"}
	other  = booking.Actor{Kind: booking.Partner, Subject: "other"}
)

func register(t *testing.T, p *Patients, actor booking.Actor, r Registration) (Patient, bool) {
	t.Helper()
	patient, created, err := p.Register(t.Context(), actor, r)
	if err != nil {
		t.Fatal(err)
	}
	return patient, created
}

func TestRegister(t *testing.T) {
	t.Parallel()
	p := NewPatients(devenv.NewDB(t).Pool)

	t.Run("Again", func(t *testing.T) {
		first, created := register(t, p, acme, Registration{Subject: "1", Name: ptr("Ada"), Email: ptr("ada@example.org")})
		want := Patient{ID: first.ID, Name: ptr("Ada"), Email: ptr("ada@example.org")}
		if diff := cmp.Diff(want, first); diff != "" || !created {
			t.Errorf("created %v (-want +got):\n%s", created, diff)
		}
		again, created := register(t, p, acme, Registration{Subject: "1"})
		if diff := cmp.Diff(want, again); diff != "" || created {
			t.Errorf("created %v (-want +got):\n%s", created, diff)
		}
		want.Email, want.Phone, want.Locale = ptr("ada@example.net"), ptr("+49 (30) 1234-5"), ptr("pt-BR")
		moved, created := register(t, p, acme, Registration{Subject: "1", Email: want.Email, Phone: want.Phone, Locale: want.Locale})
		if diff := cmp.Diff(want, moved); diff != "" || created {
			t.Errorf("created %v (-want +got):\n%s", created, diff)
		}
		stored, err := p.ByID(t.Context(), []booking.PatientID{moved.ID, moved.ID, -1})
		if diff := cmp.Diff(map[booking.PatientID]Patient{moved.ID: want}, stored); diff != "" || err != nil {
			t.Errorf("ByID: %v (-want +got):\n%s", err, diff)
		}
	})

	t.Run("RegistrarsApart", func(t *testing.T) {
		seen := make(map[booking.PatientID]string)
		for _, actor := range []booking.Actor{acme, other, staff7, staff8} {
			patient, created := register(t, p, actor, Registration{Subject: "same"})
			if by, known := seen[patient.ID]; known || !created {
				t.Errorf("%s got the patient of %s", actor.Registrar(), by)
			}
			seen[patient.ID] = actor.Registrar()
		}
		colleague := staff7
		colleague.Subject = "another"
		if patient, created := register(t, p, colleague, Registration{Subject: "same"}); created || seen[patient.ID] != "organization:7" {
			t.Error("a colleague got another patient")
		}
	})

	t.Run("AtOnce", func(t *testing.T) {
		const callers = 50
		var all sync.WaitGroup
		var mu sync.Mutex
		ids, made := make(map[booking.PatientID]bool), 0
		for range callers {
			all.Go(func() {
				patient, created, err := p.Register(context.Background(), acme, Registration{Subject: "at once", Name: ptr("Ada")})
				mu.Lock()
				defer mu.Unlock()
				if ids[patient.ID] = true; created {
					made++
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(ids) != 1 || made != 1 {
			t.Errorf("%d patients, created %d times, want one", len(ids), made)
		}
	})

	t.Run("NotAllowed", func(t *testing.T) {
		for code, actor := range map[booking.Code]booking.Actor{
			booking.Unauthenticated: {},
			booking.Forbidden:       {Kind: booking.Patient, Subject: "1", PatientID: 1},
		} {
			_, _, err := p.Register(t.Context(), actor, Registration{Subject: "1"})
			wantCode(t, err, code)
		}
		_, _, err := p.Register(t.Context(), booking.SystemActor, Registration{Subject: "1"})
		wantCode(t, err, booking.Forbidden)
	})
}

// B75: whatever people are called comes out as it went in, or is refused whole.
func TestRegisterText(t *testing.T) {
	t.Parallel()
	p := NewPatients(devenv.NewDB(t).Pool)
	piece := []rune(`O'Né/l & "<b>" 👩🏽‍⚕️ שלום e` + "\u0301 \\ %s ٣ ")
	runes := make([]rune, maxName)
	for i := range runes {
		runes[i] = piece[i%len(piece)]
	}
	name := string(runes)
	long := func(n int, s string) *string { return ptr(strings.Repeat(s, n)) }
	address := func(n int) *string { return ptr(strings.Repeat("a", n-len("@example.org")) + "@example.org") }
	tests := []struct {
		name  string
		given Registration
		fault string // "" = stored as it is
	}{
		{"Name", Registration{Name: &name}, ""},
		{"NameOfEmoji", Registration{Name: long(maxName, "🩺")}, ""},
		{"NameTooLong", Registration{Name: long(maxName+1, "🩺")}, "name: must have 1 to 200 characters, it has 201."},
		{"NameEmpty", Registration{Name: ptr("")}, "name: must have 1 to 200 characters, it has 0."},
		{"NameBlank", Registration{Name: ptr(" \u00a0")}, "name: must not be blank."},
		{"NameNotUTF8", Registration{Name: ptr("Ren\xe9")}, "name: must be valid UTF-8."},
		{"NameWithNUL", Registration{Name: ptr("A\x00da")}, "name: must not have control characters."},
		{"NameWithLine", Registration{Name: ptr("Ada\r\nBcc: x@example.org")}, "name: must not have control characters."},
		{"NameWithSeparator", Registration{Name: ptr("Ada\u2028x")}, "name: must not have control characters."},
		{"EmailLongest", Registration{Email: address(maxEmail)}, ""},
		{"EmailTooLong", Registration{Email: address(maxEmail + 1)}, "email: must have 3 to 254 characters, it has 255."},
		{"EmailUnicode", Registration{Email: ptr("björn@exämple.org")}, ""},
		{"EmailWithName", Registration{Email: ptr("Ada <ada@example.org>")}, "email: must be an e-mail address"},
		{"EmailWithComment", Registration{Email: ptr("ada@example.org (Ada)")}, "email: must be an e-mail address"},
		{"TwoEmails", Registration{Email: ptr("a@example.org,b@example.org")}, "email: must be an e-mail address"},
		{"NoEmail", Registration{Email: ptr("example.org")}, "email: must be an e-mail address"},
		{"EmailWithLine", Registration{Email: ptr("a@example.org\nb")}, "email: must not have control characters."},
		{"Phone", Registration{Phone: ptr("+49 (0)30/123-45.6")}, ""},
		{"PhoneLongest", Registration{Phone: long(maxPhone, "1")}, ""},
		{"PhoneTooLong", Registration{Phone: long(maxPhone+1, "1")}, "phone: must have 3 to 32 characters, it has 33."},
		{"PhoneOfLetters", Registration{Phone: ptr("0800 DOCTOR")}, "phone: may have digits"},
		{"PhoneOfOtherDigits", Registration{Phone: ptr("٠١٢٣")}, "phone: may have digits"},
		{"PhoneWithoutDigits", Registration{Phone: ptr("+-(12)")}, "phone: must have 3 digits"},
		{"Locale", Registration{Locale: ptr("zh-Hant-TW-x-private")}, ""},
		{"LocaleTooLong", Registration{Locale: ptr("de" + strings.Repeat("-abc", 9))}, "locale: must have 2 to 35 characters"},
		{"LocaleUnderscore", Registration{Locale: ptr("de_DE")}, "locale: must be a language tag"},
		{"LocalePath", Registration{Locale: ptr("../../etc")}, "locale: must be a language tag"},
		{"LocaleOpenEnd", Registration{Locale: ptr("de-")}, "locale: must be a language tag"},
		{"SubjectLongest", Registration{Subject: strings.Repeat("é", maxIdentity)}, ""},
		{"SubjectTooLong", Registration{Subject: strings.Repeat("é", maxIdentity+1)}, "subject: must have 1 to 255 characters"},
		{"SubjectEmpty", Registration{Subject: ""}, "subject: must have 1 to 255 characters"},
		{"SubjectWithNUL", Registration{Subject: "1\x00"}, "subject: must not have control characters."},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.HasPrefix(tt.name, "Subject") {
				tt.given.Subject = fmt.Sprint(i)
			}
			patient, _, err := p.Register(t.Context(), acme, tt.given)
			if tt.fault != "" {
				if refusal := wantCode(t, err, booking.Invalid); !strings.HasPrefix(refusal.Message, tt.fault) {
					t.Errorf("message = %q, want %q", refusal.Message, tt.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			stored, err := p.ByID(t.Context(), []booking.PatientID{patient.ID})
			want := Patient{ID: patient.ID, Name: tt.given.Name, Email: tt.given.Email, Phone: tt.given.Phone, Locale: tt.given.Locale}
			if diff := cmp.Diff(map[booking.PatientID]Patient{patient.ID: want}, stored); diff != "" || err != nil {
				t.Errorf("stored: %v (-want +got):\n%s", err, diff)
			}
		})
	}
	var rows, want int
	for _, tt := range tests {
		if tt.fault == "" {
			want++
		}
	}
	if err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM patient`).Scan(&rows); err != nil || rows != want {
		t.Errorf("%d rows, %v, want %d: what is refused leaves none", rows, err, want)
	}
}

func TestPatientsUnavailable(t *testing.T) {
	t.Parallel()
	p := NewPatients(deadPool(t))
	_, _, err := p.Register(t.Context(), acme, Registration{Subject: "1"})
	wantCode(t, err, booking.Unavailable)
	_, err = p.ByID(t.Context(), []booking.PatientID{1})
	wantCode(t, err, booking.Unavailable)
	_, err = p.signIn(t.Context(), identity{"i", "s"}, untold)
	wantCode(t, err, booking.Unavailable)
}

// deadPool is a pool whose database is away.
func deadPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@"+l.Addr().String()+"/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
