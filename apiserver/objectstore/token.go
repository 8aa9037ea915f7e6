package objectstore

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// tokenLifetime is how long a paged list can be continued at its revision. It is
// upstream's --etcd-compaction-interval (storagebackend.DefaultCompactInterval), after
// which etcd compacts the token's revision. Here history lasts longer, so the token
// itself ends.
const tokenLifetime = 5 * time.Minute

// continueToken is upstream's token (apiserver/pkg/storage/continue.go) with the
// time of the list's first page, by the database's clock. Upstream's decoder
// ignores the addition.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
	IssuedSeconds   int64  `json:"issued,omitempty"`
}

// stampToken adds the time of a list's first page to a token. A zero time, of a
// page that was read while the database was away, adds nothing.
func stampToken(token string, issued time.Time) (string, error) {
	if issued.IsZero() {
		return token, nil
	}
	c, err := decodeToken(token)
	if err != nil {
		return "", err
	}
	c.IssuedSeconds = issued.Unix()
	data, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// tokenIssued returns the time in a token that upstream's decoder has accepted. It is
// zero if the token has none, as a token of another server.
func tokenIssued(token string) time.Time {
	c, err := decodeToken(token)
	if err != nil || c.IssuedSeconds <= 0 {
		return time.Time{}
	}
	return time.Unix(c.IssuedSeconds, 0)
}

func decodeToken(token string) (c continueToken, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("decode continue token: %w", err)
	}
	return c, nil
}

// tokenExpired: where either time is unknown, a token lasts as long as history.
func tokenExpired(issued, now time.Time) bool {
	return !issued.IsZero() && !now.IsZero() && now.Sub(issued) > tokenLifetime
}
