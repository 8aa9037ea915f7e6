package storetest_test

import (
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

func TestModel_PassesTheSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) sqlstore.Driver { return storetest.NewModel() })
}
