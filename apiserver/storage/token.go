package storage

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// tokenLifetime is how long a paged list can be continued at its revision. It is
// upstream's --etcd-compaction-interval (storagebackend.DefaultCompactInterval): after
// this time etcd compacts the token's revision. This server keeps history for longer,
// so it refuses the token by its age.
const tokenLifetime = 5 * time.Minute

// continueToken is upstream's token (apiserver/pkg/storage/continue.go) with the time of
// the list's first page, by the database's clock, and the number of objects that come
// after the page, so that they are counted once a list. Upstream's decoder ignores these
// members.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
	IssuedSeconds   int64  `json:"issued,omitempty"`
	Left            int64  `json:"left,omitempty"`
}

// extendToken adds our members to upstream's token. A zero time adds nothing: the time is
// not known if the page was read while the database was not available.
func extendToken(token string, issued time.Time, left int64) (string, error) {
	if issued.IsZero() {
		return token, nil
	}
	c, err := decodeToken(token)
	if err != nil {
		return "", err
	}
	c.IssuedSeconds, c.Left = issued.Unix(), left
	data, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// tokenMembers returns our members of a token that upstream's decoder has accepted. They
// are zero where a token lacks them, such as a token of another server.
func tokenMembers(token string) (issued time.Time, left int64) {
	c, err := decodeToken(token)
	if err == nil && c.IssuedSeconds > 0 {
		issued = time.Unix(c.IssuedSeconds, 0)
	}
	return issued, max(c.Left, 0)
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

// tokenExpired reports whether a token is older than tokenLifetime. A token does not
// expire if either time is unknown; it then lasts as long as the history.
func tokenExpired(issued, now time.Time) bool {
	return !issued.IsZero() && !now.IsZero() && now.Sub(issued) > tokenLifetime
}
