package main

import (
	"strings"
	"testing"

	"byre/apiserver"
	"byre/sqlstore/postgres/pgtest"
)

// A PostgreSQL that may forget commits is used only where that is allowed by name.
func TestUnsafeDurability(t *testing.T) {
	options := apiserver.StoreOptions{Endpoint: pgtest.DSN(t) + "&options=-c%20synchronous_commit%3Doff"}
	if _, err := openDatabase(t.Context(), options); err == nil || !strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("without --allow-unsafe-durability: %v", err)
	}
	options.AllowUnsafeDurability = true
	database, err := openDatabase(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := database.Driver.Close(); err != nil {
		t.Error(err)
	}
}
