package postgres_test

import (
	"strings"
	"testing"

	"byre/sqlstore/postgres"
)

// Neon turns fsync off, because its safekeepers have the log. A server that only has fsync off
// is refused, whatever else it says.
func TestOpen_AcceptsNeonWithoutFsync(t *testing.T) {
	t.Parallel()
	_, dsn := startCluster(t)
	admin := connect(t, dsn)
	open := func(parameters string) error {
		driver, err := postgres.OpenWithoutServing(t.Context(), dsn+parameters, postgres.Options{})
		if err == nil {
			err = driver.Close()
		}
		return err
	}
	refused := func(when, parameters string) {
		t.Helper()
		if err := open(parameters); err == nil || !strings.Contains(err.Error(), "fsync is off") {
			t.Errorf("%s: %v", when, err)
		}
	}
	const neon = "&options=-cneon.timeline_id%3Dde6fa815c1e45aa61491c3d34c4eb33e"
	set(t, admin, "fsync", "off")
	refused("without fsync", "")
	refused("without safekeepers", neon)
	set(t, admin, "synchronous_standby_names", "walproposer")
	if err := open(neon); err != nil {
		t.Errorf("with safekeepers: %v", err)
	}
	refused("commits that do not wait for the safekeepers", neon+"%20-csynchronous_commit%3Dlocal")
	refused("a standby of that name", "")
}
