package migrations

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Dialect is a kind of database.
type Dialect string

// The dialects. Each is also the name of the folder with its steps.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// ParseEndpoint returns the kind of database of an endpoint, and its place: the path of the file
// for SQLite, the connection string for PostgreSQL. Its errors do not repeat the endpoint, which
// may have a password.
func ParseEndpoint(endpoint string) (Dialect, string, error) {
	scheme, rest, found := strings.Cut(endpoint, ":")
	switch {
	case found && scheme == "sqlite":
		rest = strings.TrimPrefix(rest, "//")
		if rest == "" || strings.ContainsAny(rest, "?#") {
			return "", "", errors.New("endpoint: want sqlite:///path/of/file without parameters")
		}
		path, err := url.PathUnescape(rest)
		if err != nil {
			return "", "", fmt.Errorf("endpoint: %w", err)
		}
		return SQLite, path, nil
	case found && (scheme == "postgres" || scheme == "postgresql"):
		return Postgres, endpoint, nil
	case !strings.Contains(endpoint, "://") && strings.Contains(endpoint, "="):
		return Postgres, endpoint, nil
	default:
		// The error does not repeat the endpoint, which may have a password.
		return "", "", errors.New("endpoint: want sqlite:///path or postgres://user@host/database")
	}
}
