package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"byre/sqlstore/postgres"
	"byre/sqlstore/storetest"
)

func TestRetention_OfEachResource(t *testing.T) {
	t.Parallel()
	driver, dsn := open(t, postgres.Options{})
	defer driver.Close()
	conn := connect(t, dsn)
	storetest.Retention(t, driver, func() []string {
		rows, err := conn.Query(t.Context(), storetest.HistoryQuery)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return texts
	})
}
