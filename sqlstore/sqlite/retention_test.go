package sqlite_test

import (
	"testing"

	"byre/sqlstore/storetest"
)

func TestRetention_OfEachResource(t *testing.T) {
	t.Parallel()
	driver, path := open(t)
	defer driver.Close()
	other := foreign(t, path)
	storetest.Retention(t, driver, func() (texts []string) {
		rows, err := other.QueryContext(t.Context(), storetest.HistoryQuery)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return texts
	})
}
