package migrations_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/migrations"
)

func TestRefreshCredentials_ReadsFilesAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dsn := range []string{
		"postgres://user@127.0.0.1:1/database?passwordfile=" + path,
		"host=127.0.0.1 port=1 user=user dbname=database password=shadowed passwordfile=" + path,
	} {
		write("first\n")
		pool, err := migrations.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		config := pool.ConnConfig
		if _, sent := config.RuntimeParams["passwordfile"]; sent || config.Password != "first" {
			t.Errorf("the password is %q, and the parameter is sent: %v", config.Password, sent)
		}
		write("a:token with \\ and spaces\r\n")
		if err := pool.BeforeConnect(t.Context(), config); err != nil || config.Password != "a:token with \\ and spaces" {
			t.Errorf("the next password is %q: %v", config.Password, err)
		}
	}
}

func TestRefreshCredentials_NamesTheFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for _, parameter := range []string{"passwordfile=" + missing, "sslcert=" + missing + "&sslkey=" + missing, "sslrootcert=" + missing} {
		pool, err := migrations.ParseDSN("postgres://user:hidden@127.0.0.1:1/database")
		if err != nil {
			t.Fatal(err)
		}
		err = migrations.RefreshCredentials("postgres://user:hidden@127.0.0.1:1/database?"+parameter, pool.ConnConfig)
		if err == nil || !strings.HasPrefix(err.Error(), "PostgreSQL at 127.0.0.1:1: ") || !strings.Contains(err.Error(), missing) ||
			!strings.HasSuffix(err.Error(), ": correct the file that the endpoint names") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", parameter, err)
		}
		// Explain returns an error that is explained already unchanged.
		if again := migrations.Explain(pool.ConnConfig, err); again.Error() != err.Error() {
			t.Errorf("explained again it is %v", again)
		}
	}
}

// TestRefreshCredentials_KeepsTheHostsOfTheStart: the service file that an endpoint names changes while the program runs.
func TestRefreshCredentials_KeepsTheHostsOfTheStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("[byre]\nuser=byre\ndbname=byre\nport=1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("host=127.0.0.1,127.0.0.2,127.0.0.3\nsslmode=require\npassword=first\n")
	pool, err := migrations.ParseDSN("service=byre servicefile=" + path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"host=127.0.0.2\nsslmode=require\n", "host=127.0.0.1,127.0.0.2,127.0.0.3\nsslmode=disable\n"} {
		write(text + "password=next\n")
		config := pool.ConnConfig.Copy()
		if err := pool.BeforeConnect(t.Context(), config); err != nil || config.Password != "next" || len(config.Fallbacks) != 2 {
			t.Errorf("%q: %v, %d other hosts", text, err, len(config.Fallbacks))
		}
	}
}
