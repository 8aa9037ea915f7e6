package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite"

	"byre/sqlstore/postgres/pgtest"
)

// databases are the names of the databases that byre is tested on.
var databases = []string{"sqlite", "postgres"}

// A database is where one server keeps its objects.
type database struct {
	name     string
	endpoint string // byre's --endpoint
	// query asks the database itself, past byre. A row is its columns as text,
	// with a tab between.
	query func(query string) ([]string, error)
}

func openDatabase(t *testing.T, name string) database {
	t.Helper()
	if name == "postgres" {
		return openPostgres(t)
	}
	return openSQLite(t)
}

func openSQLite(t *testing.T) database {
	path := filepath.Join(t.TempDir(), "byre.db")
	return database{
		name:     "sqlite",
		endpoint: "sqlite://" + path,
		query:    func(query string) ([]string, error) { return querySQLite(context.Background(), path, query) },
	}
}

func querySQLite(ctx context.Context, path, query string) (lines []string, err error) {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		lines = append(lines, line(values))
	}
	return lines, rows.Err()
}

func queryPostgres(ctx context.Context, dsn, query string) (lines []string, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		lines = append(lines, line(values))
	}
	return lines, rows.Err()
}

func line(values []any) string {
	columns := make([]string, len(values))
	for i, v := range values {
		if raw, ok := v.([]byte); ok {
			v = string(raw)
		}
		columns[i] = fmt.Sprint(v)
	}
	return strings.Join(columns, "\t")
}

func openPostgres(t *testing.T) database {
	dsn := pgtest.DSN(t)
	return database{
		name:     "postgres",
		endpoint: dsn,
		query:    func(query string) ([]string, error) { return queryPostgres(context.Background(), dsn, query) },
	}
}
