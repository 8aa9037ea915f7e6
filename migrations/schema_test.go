package migrations_test

import (
	"strings"
	"testing"

	"byre/migrations"
)

// WithSchema returns an endpoint that names the schema and is otherwise the same, for every name and
// every form of endpoint.
func TestWithSchema_NamesTheSchema(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{
		"postgres://u:p%40ss@h1:5433,h2/db", "postgres://u@h/db?sslmode=disable&pool_max_conns=3", "host=h user=u dbname=db password='p ss'",
	} {
		before, err := migrations.ParseDSN(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range []string{"cp1", "Upper", `with "quotes" and 'apostrophes'`, `back\slash`, "a,b", "ümläut", "a&b=c?d#e", "select"} {
			dsn, err := migrations.WithSchema(endpoint, schema)
			if err != nil {
				t.Errorf("%s, %s: %v", endpoint, schema, err)
				continue
			}
			config, err := migrations.ParseDSN(dsn)
			if err != nil {
				t.Errorf("%s: %v", dsn, err)
				continue
			}
			if got := migrations.SchemaName(config.ConnConfig); got != schema {
				t.Errorf("%s: schema %q, want %q", dsn, got, schema)
			}
			if config.ConnConfig.Password != before.ConnConfig.Password || config.ConnConfig.Database != before.ConnConfig.Database ||
				migrations.Address(config.ConnConfig) != migrations.Address(before.ConnConfig) || config.MaxConns != before.MaxConns {
				t.Errorf("%s is another endpoint than %s", dsn, endpoint)
			}
			if again, err := migrations.WithSchema(dsn, schema); err != nil || again != dsn {
				t.Errorf("a second time: %s, %v", again, err)
			}
		}
	}
}

func TestWithSchema_Refuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ endpoint, schema, want string }{
		{"postgres://h/db", "", "1 to 63 bytes"},
		{"postgres://h/db", strings.Repeat("x", 64), "1 to 63 bytes"},
		{"postgres://h/db", "pg_mine", "PostgreSQL's own"},
		{"postgres://h/db?search_path=a,b", "b", "does not begin with"},
		{"postgres://u:secret@h/db?sslmode=wrong", "a", "sslmode"},
	} {
		dsn, err := migrations.WithSchema(test.endpoint, test.schema)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s, %q: %q, %v", test.endpoint, test.schema, dsn, err)
		}
	}
}

// Schema returns the first schema of the search_path, in which the server creates objects.
func TestSchema_IsTheFirstOfTheSearchPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"": "", "cp1": "cp1", "Cp1": "cp1", ` "Cp1" , public`: "Cp1", `"a""b",c`: `a"b`, "a,b": "a", `"$user",public`: "", "$user": "",
	} {
		config, err := migrations.ParseDSN("host=h search_path='" + path + "'")
		if err != nil {
			t.Fatal(err)
		}
		if got := migrations.SchemaName(config.ConnConfig); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
