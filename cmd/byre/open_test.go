package main

import (
	"strings"
	"testing"

	"byre/apiserver/server"
	"byre/sqlstore/postgres/pgtest"
)

// byre refuses a PostgreSQL server that may lose commits unless --allow-unsafe-durability
// is set.
func TestServe_RefusesUnsafeDurability(t *testing.T) {
	store := server.StoreOptions{DataDir: t.TempDir(), Endpoint: pgtest.DSN(t) + "&options=-c%20synchronous_commit%3Doff"}
	if _, err := openDatabase(t.Context(), store); err == nil || !strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("without --allow-unsafe-durability: %v", err)
	}
	store.AllowUnsafeDurability = true
	database, err := openDatabase(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	if err := database.Driver.Close(); err != nil {
		t.Error(err)
	}
}
