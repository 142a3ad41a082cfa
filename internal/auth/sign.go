package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"openslot/internal/booking"
)

// Grant is what a token signed here says of its holder.
type Grant struct {
	Subject      string
	Role         booking.ActorKind
	Organization booking.OrganizationID // for staff
	Name         string                 // Name, Email, Locale: for a patient's row; may be empty
	Email        string
	Locale       string
	TTL          time.Duration // from now; above 0
}

// Sign makes a token that an Authenticator with the same Config accepts. It needs the Secret: for
// development and tests. A grant that would be refused is an error.
func (c Config) Sign(g Grant) (string, error) {
	if err := c.check(); err != nil {
		return "", fmt.Errorf("auth: sign: %w", err)
	}
	if len(c.Secret) == 0 {
		return "", errors.New("auth: sign: there is no secret; whoever publishes the key set signs")
	}
	if g.TTL <= 0 {
		return "", errors.New("auth: sign: the token would have expired")
	}
	said := claims{role: string(g.Role), org: g.Organization}
	said.Subject = g.Subject
	if _, err := said.actor(); err != nil {
		return "", fmt.Errorf("auth: sign: %w", err)
	}
	now := time.Now()
	payload := jwt.MapClaims{"iss": c.Issuer, "aud": c.Audience, "sub": g.Subject, "role": string(g.Role),
		"iat": now.Unix(), "exp": now.Add(g.TTL).Unix()}
	if g.Organization != 0 {
		payload["org"] = int64(g.Organization)
	}
	for name, value := range map[string]string{"name": g.Name, "email": g.Email, "locale": g.Locale} {
		if value != "" {
			payload[name] = value
		}
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, payload).SignedString(c.Secret)
}
