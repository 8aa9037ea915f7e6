package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// TestRecovery_InformersConverge recovers PostgreSQL from a base backup and the archived
// write-ahead log to an earlier moment, and serves the recovered database as it is. It is a
// new timeline of the server, so that byre begins an epoch: informers that have seen what
// was written after that moment converge by themselves.
func TestRecovery_InformersConverge(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	primary, err := pgtest.Config{Archive: true}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(primary.Remove)
	byre := servers.Byre{Dir: filepath.Join(t.TempDir(), "data"), Endpoint: primary.DSN("postgres"),
		Args: []string{"--controllers="}}
	server, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	c := newRestoreClient(t, server)
	count := c.Fill(t, 100)
	recovered, err := primary.BaseBackup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(recovered.Remove)
	stores := c.inform(t)
	c.change(t)
	want := c.Dump(t)
	if err := primary.SetRestorePoint(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	c.change(t)
	awaitStores(t, c, stores) // the informers have seen the changes that the recovery undoes

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := primary.Halt(); err != nil {
		t.Fatal(err)
	}
	if err := recovered.Recover(t.Context(), primary, "before"); err != nil {
		t.Fatal(err)
	}
	byre.Endpoint = recovered.DSN("postgres")
	if server, err = byre.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	if log := server.LogTail(); !strings.Contains(log, "a new epoch begins") {
		t.Errorf("byre does not say that an epoch begins: %s", log)
	}
	c.address.Store(strings.TrimPrefix(server.URL, "https://"))
	compareDumps(t, want, c.Dump(t), count/2)
	awaitStores(t, c, stores)
	c.change(t)
	awaitStores(t, c, stores)
}
