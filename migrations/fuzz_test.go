package migrations_test

import (
	"net/url"
	"strings"
	"testing"

	"byre/migrations"
)

// FuzzParseEndpoint: ParseEndpoint returns a file, a connection string, or an error that does not
// contain a password. SQLiteDSN escapes the path of a file so that unescaping returns the path.
func FuzzParseEndpoint(f *testing.F) {
	for _, endpoint := range []string{
		"", ":", "sqlite:", "sqlite://", "sqlite:///var/lib/byre.db", "sqlite:relative.db", "sqlite://%3Fmode=memory", "sqlite:///a%00b", "sqlite:///%zz",
		"sqlite:///a?mode=ro", "sqlite:///a#b", "sqlite:////", "sqlite::memory:", "byre.db", "SQLITE:///x",
		"postgres://u:secret@h/db", "postgresql://h1,h2:5433/db?sslmode=disable", "host=h password='se cret' user=u", "mysql://u:secret@h/db", "postgres:", "=",
	} {
		f.Add(endpoint)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		dialect, place, err := migrations.ParseEndpoint(endpoint)
		switch {
		case err != nil:
			// The error may contain the three bytes of a malformed escape.
			said, escape, _ := strings.Cut(err.Error(), "invalid URL escape ")
			if len(escape) > len(`"%zz"`)+len(`\x00`)*3 || strings.Contains(said, "secret") {
				t.Errorf("the error repeats the endpoint: %v", err)
			}
		case place == "":
			t.Error("an endpoint without a place is accepted")
		case dialect == migrations.SQLite:
			name, parameters, some := strings.Cut(strings.TrimPrefix(migrations.SQLiteDSN(place), "file:"), "?")
			if path, err := url.PathUnescape(name); err != nil || path != place || some || strings.Contains(name, "#") {
				t.Errorf("the file %q is opened as %q with parameters %q: %v", place, path, parameters, err)
			}
		case dialect == migrations.Postgres:
			if place != endpoint {
				t.Errorf("the connection string %q became %q", endpoint, place)
			}
		default:
			t.Errorf("dialect %q", dialect)
		}
	})
}
