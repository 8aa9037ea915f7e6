package sqlviews

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"byre/apiserver/query"
	"byre/migrations"
)

const (
	selectDefinitions = `
SELECT value FROM objects
WHERE "group" = 'apiextensions.k8s.io' AND resource = 'customresourcedefinitions' AND defined_by = 'builtin' AND value LIKE '{%'
ORDER BY name`
	selectStore = `SELECT current_schema()`

	// The indexes of Create: the name, and a text that has the comment.
	selectSQLiteIndexes = `
SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND name LIKE 'byre\_user\_%' ESCAPE '\' ORDER BY name`
	selectPostgresIndexes = `
SELECT c.relname, coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), '') FROM pg_catalog.pg_class c
WHERE c.relkind = 'i' AND c.relnamespace = pg_catalog.quote_ident(current_schema())::regnamespace AND c.relname LIKE 'byre\_user\_%'
ORDER BY c.relname`
)

// Database is the database of a store, which a server may use. Its user closes it.
type Database struct {
	db *sql.DB
	// path is the file of SQLite. store is the schema of byre's tables in PostgreSQL. One of them is empty.
	path, store string
}

// Open opens the database of an endpoint. A file of SQLite is only read.
func Open(ctx context.Context, endpoint string) (*Database, error) {
	dialect, dsn, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if dialect == migrations.SQLite {
		db, err := sql.Open("sqlite", migrations.SQLiteDSN(dsn)+"?mode=ro&_pragma=busy_timeout(10000)")
		return &Database{db: db, path: dsn}, err
	}
	pool, err := migrations.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	// The simple protocol takes several statements, and works behind a pooler.
	pool.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	d := &Database{db: stdlib.OpenDB(*pool.ConnConfig)}
	if err := d.db.QueryRowContext(ctx, selectStore).Scan(&d.store); err != nil {
		return nil, errors.Join(migrations.Explain(pool.ConnConfig, err), d.db.Close())
	}
	return d, nil
}

// Close closes the database.
func (d *Database) Close() error { return d.db.Close() }

// Store returns the schema of byre's tables in PostgreSQL; it is empty for SQLite.
func (d *Database) Store() string { return d.store }

// Definitions returns the JSON of all CustomResourceDefinitions that are not encrypted.
func (d *Database) Definitions(ctx context.Context) (definitions []string, err error) {
	err = d.query(ctx, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		definitions = append(definitions, value)
		return err
	}, selectDefinitions)
	return definitions, err
}

// query calls f for each row of a query.
func (d *Database) query(ctx context.Context, f func(*sql.Rows) error, statement string, arguments ...any) error {
	rows, err := d.db.QueryContext(ctx, statement, arguments...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Execute executes statements in PostgreSQL.
func (d *Database) Execute(ctx context.Context, statements string) error {
	_, err := d.db.ExecContext(ctx, statements)
	return err
}

// Index is an index that the owner has made on a column of a view.
type Index struct {
	Name   string `json:"name"`
	Table  string `json:"table"`
	Column string `json:"column"`
}

// indexPrefix is what the names of owners' indexes begin with in the database.
const indexPrefix = "byre_user_"

var (
	indexName = regexp.MustCompile(`^[a-z0-9_]{1,50}$`)
	// indexComment is what Create writes into the statement, or the comment, of an index.
	indexComment = regexp.MustCompile(`byre sql index: (\S+) (\S+)`)
)

// Indexes returns the indexes that Create has made, in the order of their names.
func (d *Database) Indexes(ctx context.Context) ([]Index, error) {
	statement := selectPostgresIndexes
	if d.path != "" {
		statement = selectSQLiteIndexes
	}
	indexes := []Index{}
	err := d.query(ctx, func(rows *sql.Rows) error {
		var name, text string
		err := rows.Scan(&name, &text)
		index := Index{Name: strings.TrimPrefix(name, indexPrefix)}
		if found := indexComment.FindStringSubmatch(text); found != nil {
			index.Table, index.Column = found[1], found[2]
		}
		indexes = append(indexes, index)
		return err
	}, statement)
	return indexes, err
}

// Views returns the views of PostgreSQL in a schema, or, if that is empty, temporary ones. They use the indexes that there are.
func (d *Database) Views(ctx context.Context, schema string) (Postgres, error) {
	indexes, err := d.Indexes(ctx)
	views := Postgres{Store: d.store, Schema: schema, Indexed: map[string]bool{}}
	for _, index := range indexes {
		views.Indexed[index.Table+" "+index.Column] = true
	}
	return views, err
}

// CreateIndex makes an index on a column of a table. A file of SQLite must not be in use.
func (d *Database) CreateIndex(ctx context.Context, name string, tables []Table, table, column string) error {
	if !indexName.MatchString(name) {
		return fmt.Errorf("the name %q: want up to 50 of a-z, 0-9 and _", name)
	}
	t, c, err := find(tables, table, column)
	if err != nil {
		return err
	}
	if !isScalar(c) {
		return fmt.Errorf("the column %s of %s can't have an index: it is no single value of the object, or the key, which has one", column, table)
	}
	indexes, err := d.Indexes(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(indexes, func(index Index) bool { return index.Name == name }) {
		return fmt.Errorf("there is an index %q: drop it first, or take another name", name)
	}
	// The expression alone: no query of byre's own could use the index instead of its own one.
	comment := "byre sql index: " + t.names()[0] + " " + c.Name
	if d.path != "" {
		return d.changeFile(ctx, "CREATE INDEX "+indexPrefix+name+" /* "+comment+" */ ON current_objects ("+sqliteColumn(c, sqliteValue)+")")
	}
	// A B-tree refuses keys of more than 2.7 KB, so that the write of an object with such a text would fail. A
	// hash index has no such bound.
	views := Postgres{Store: d.store}
	method := "btree"
	if c.Type == query.Text {
		method = "hash"
	}
	index := identifier(d.store) + "." + indexPrefix + name
	if err := d.Execute(ctx, "CREATE INDEX CONCURRENTLY "+indexPrefix+name+" ON "+identifier(d.store)+".current_objects USING "+method+" (("+postgresColumn(c, views.value(""))+"))"); err != nil {
		// What is left of it serves no query, and costs each write.
		return errors.Join(err, d.Execute(context.WithoutCancel(ctx), "DROP INDEX CONCURRENTLY IF EXISTS "+index))
	}
	return d.Execute(ctx, "COMMENT ON INDEX "+index+" IS "+literal(comment)+"; ANALYZE "+identifier(d.store)+".current_objects")
}

// DropIndex drops an index that CreateIndex has made. A file of SQLite must not be in use.
func (d *Database) DropIndex(ctx context.Context, name string) error {
	indexes, err := d.Indexes(ctx)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		switch {
		case index.Name != name:
		case d.path != "":
			return d.changeFile(ctx, "DROP INDEX "+identifier(indexPrefix+name))
		default:
			return d.Execute(ctx, "DROP INDEX CONCURRENTLY "+identifier(d.store)+"."+identifier(indexPrefix+name))
		}
	}
	return fmt.Errorf("there is no index %q: \"byre sql index list\" lists them", name)
}

// changeFile executes a statement in a file of SQLite that no server uses: writes would wait for it.
func (d *Database) changeFile(ctx context.Context, statement string) (err error) {
	lock, err := migrations.AcquireFile(d.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	db, err := sql.Open("sqlite", migrations.SQLiteDSN(lock.Path)+"?mode=rw&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}
