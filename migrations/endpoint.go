package migrations

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Dialect is a kind of database.
type Dialect string

// The dialects; each is also the name of its folder of steps.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// ParseEndpoint says which database an endpoint means: a file's path for
// SQLite, a connection string for PostgreSQL.
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
		// The endpoint itself may hold a password: it is not repeated.
		return "", "", errors.New("endpoint: want sqlite:///path or postgres://user@host/database")
	}
}
