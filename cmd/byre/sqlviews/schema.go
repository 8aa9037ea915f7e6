package sqlviews

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"byre/apiserver/query"
	"byre/migrations"
)

// Schema is a schema of PostgreSQL that has a view for each name of each table, and a function of the same name that
// returns the rows of a moment; so has each detail table.
//
// Invariant: only what has byre's mark in its comment is replaced or dropped. Update keeps it. An object that others
// depend on is not dropped: no statement has CASCADE.
type Schema struct {
	name string
	// store is the schema of byre's tables.
	store string
	db    *sql.DB
	// found are the relations and functions of the schema, by name.
	found map[string]*relation
}

// relation is what a schema has under a name.
type relation struct {
	// isForeign says that byre has not made it.
	isForeign bool
	// view and function are the hashes in the comments; empty if there is none.
	view, function string
	// columns are those of the view, in its order.
	columns []string
}

// ErrOwnTables is the error of a schema that has byre's own tables.
var ErrOwnTables = errors.New("has byre's own tables: name another")

// OpenSchema opens the PostgreSQL of a store, which a server may use. The caller must call Close.
func OpenSchema(ctx context.Context, endpoint, name string) (*Schema, error) {
	pool, err := migrations.ParseDSN(endpoint)
	if err != nil {
		return nil, err
	}
	// The simple protocol takes several statements, and works behind a pooler.
	pool.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	s := &Schema{name: name, db: stdlib.OpenDB(*pool.ConnConfig)}
	if err = s.db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&s.store); err != nil {
		err = migrations.Explain(pool.ConnConfig, err)
	} else if s.store == name {
		err = fmt.Errorf("the schema %q %w", name, ErrOwnTables)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the database.
func (s *Schema) Close() error { return s.db.Close() }

// mark begins the last line of the comments on what Update makes. A hash of the definition follows.
const mark = "Kept by byre serve --sql-schema: "

const (
	selectSchemaExists = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1), pg_catalog.quote_ident(current_user)`

	selectRelations = `
SELECT c.relname, false, coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), ''),
       (SELECT coalesce(json_agg(a.attname ORDER BY a.attnum), '[]') FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
UNION ALL
SELECT p.proname, true, coalesce(pg_catalog.obj_description(p.oid, 'pg_proc'), ''), '[]'
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND p.proargtypes[0] = 'timestamptz'::regtype`
)

// Update makes the schema have the views and functions of the tables, and not those of others. It returns why an object
// is not up to date, by name. Of tables of one name the first counts.
func (s *Schema) Update(ctx context.Context, tables []Table) (map[string]error, error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	left, wanted := map[string]error{}, map[string]bool{revisionFunction: true}
	for i := range tables {
		for _, name := range tables[i].names() {
			if wanted[name] {
				continue
			}
			wanted[name] = true
			t := &tables[i]
			left[name] = s.keep(ctx, name, kept{
				t.Description, postgresColumns(t),
				func(columns []query.Column) string { return s.current(t, columns) },
				func(columns []query.Column) string { return s.past(t, columns) },
			})
		}
	}
	for _, t := range details() {
		wanted[t.name] = true
		left[t.name] = s.keep(ctx, t.name, kept{
			t.Description, t.columns(),
			func(columns []query.Column) string { return t.view(s.dialect(), tables, columns) },
			func(columns []query.Column) string { return t.view(s.pastDialect(), tables, columns) },
		})
	}
	for name, r := range s.found {
		if !wanted[name] && !r.isForeign {
			left[name] = s.execute(ctx, s.drop(name))
		}
	}
	maps.DeleteFunc(left, func(_ string, err error) bool { return err == nil })
	return left, ctx.Err()
}

// prepare makes the schema and revisionFunction, and reads what the schema has.
func (s *Schema) prepare(ctx context.Context) error {
	var exists bool
	var role string
	if err := s.db.QueryRowContext(ctx, selectSchemaExists, s.name).Scan(&exists, &role); err != nil {
		return err
	}
	if !exists {
		_, err := s.db.ExecContext(ctx, "CREATE SCHEMA "+identifier(s.name))
		if isCode(err, insufficientPrivilege) {
			return fmt.Errorf("%w: run as the owner of the database: CREATE SCHEMA %s AUTHORIZATION %s", err, identifier(s.name),
				role)
		}
		if err != nil {
			return err
		}
	}
	err := s.makeRevisionFunction(ctx)
	if isCode(err, insufficientPrivilege) {
		return fmt.Errorf("%w: run as the owner of the schema: GRANT CREATE, USAGE ON SCHEMA %s TO %s", err,
			identifier(s.name), role)
	}
	return err
}

// makeRevisionFunction reads what the schema has, and makes revisionFunction.
func (s *Schema) makeRevisionFunction(ctx context.Context) error {
	if err := s.read(ctx); err != nil {
		return err
	}
	statements := s.revisionFunction()
	hash := hashOf(statements)
	switch r := s.found[revisionFunction]; {
	case r == nil:
	case r.isForeign:
		return fmt.Errorf("%w: %s.%s", errForeign, identifier(s.name), revisionFunction)
	case r.function == hash:
		return nil
	}
	return s.execute(ctx, fmt.Sprintf("%sCOMMENT ON FUNCTION %s.%s(timestamptz, integer) IS %s;\n",
		statements, identifier(s.name), revisionFunction,
		literal("The revision of a moment; it fails where the history of a resource does not reach back to it.\n"+mark+hash)))
}

// read reads what the schema has.
func (s *Schema) read(ctx context.Context) error {
	s.found = map[string]*relation{}
	return eachRow(ctx, s.db, func(rows *sql.Rows) error {
		var name, comment, columns string
		var isFunction bool
		if err := rows.Scan(&name, &isFunction, &comment, &columns); err != nil {
			return err
		}
		r := s.found[name]
		if r == nil {
			r = &relation{}
			s.found[name] = r
		}
		_, hash, isOwn := strings.Cut(comment, mark)
		switch {
		case !isOwn:
			r.isForeign = true
		case isFunction:
			r.function = hash
		default:
			r.view = hash
			return json.Unmarshal([]byte(columns), &r.columns)
		}
		return nil
	}, selectRelations, s.name)
}

// PostgreSQL's codes of errors.
const (
	insufficientPrivilege  = "42501"
	invalidTableDefinition = "42P16"
	dependentObjects       = "2BP01"
	lockNotAvailable       = "55P03"
)

// ErrLocked is the error of an object that a session reads. Update can change it later.
var ErrLocked = errors.New("a transaction reads it")

var errForeign = errors.New("byre has not made what has the name: drop it")

// kept is what keep keeps under a name.
type kept struct {
	description string
	columns     []query.Column
	// view returns the query of the view, with columns in their order, and past that of the function.
	view, past func(columns []query.Column) string
}

// keep makes the view and the function of a name, unless they are up to date. A view that only gets more columns is
// replaced, with the rights on it and with the views of others that depend on it; the new columns are its last ones.
func (s *Schema) keep(ctx context.Context, name string, k kept) error {
	hash := hashOf(s.definition(name, k, k.columns, ""))
	r := s.found[name]
	switch {
	case r == nil:
		return s.execute(ctx, s.definition(name, k, k.columns, hash))
	case r.isForeign:
		return errForeign
	case r.view == hash && r.function == hash:
		return nil
	}
	err := s.execute(ctx, s.definition(name, k, inOrder(k.columns, r.columns), hash))
	if isCode(err, invalidTableDefinition) { // a column is gone, or has another type
		err = s.execute(ctx, s.drop(name)+s.definition(name, k, k.columns, hash))
	}
	return err
}

// inOrder returns columns in an order that names some of them; the others follow.
func inOrder(columns []query.Column, names []string) []query.Column {
	at := func(c *query.Column) int {
		if i := slices.Index(names, c.Name); i >= 0 {
			return i
		}
		return len(names)
	}
	columns = slices.Clone(columns)
	slices.SortStableFunc(columns, func(a, b query.Column) int { return at(&a) - at(&b) })
	return columns
}

// definition returns the statements that make the view and the function of a name, with a hash in their comments.
func (s *Schema) definition(name string, k kept, columns []query.Column, hash string) string {
	var b strings.Builder
	object := identifier(s.name) + "." + identifier(name)
	fmt.Fprintf(&b, "CREATE OR REPLACE VIEW %s AS\n%s;\n", object, k.view(columns))
	fmt.Fprintf(&b, "COMMENT ON VIEW %s IS %s;\n", object, literal(k.description+"\n\n"+mark+hash))
	fmt.Fprintf(&b, "CREATE OR REPLACE FUNCTION %s(at timestamptz) RETURNS SETOF %s LANGUAGE sql STABLE AS %s;\n", object,
		object, literal(k.past(columns)))
	fmt.Fprintf(&b, "COMMENT ON FUNCTION %s(timestamptz) IS %s;\n", object,
		literal("The rows of "+name+" at a moment.\n"+mark+hash))
	for i := range columns {
		description := columns[i].Description
		if source := columns[i].Source(); source != "" {
			description = strings.TrimSpace(description + " (" + source + ")")
		}
		fmt.Fprintf(&b, "COMMENT ON COLUMN %s.%s IS %s;\n", object, identifier(columns[i].Name), literal(description))
	}
	return b.String()
}

func (s *Schema) drop(name string) string {
	object := identifier(s.name) + "." + identifier(name)
	return "DROP FUNCTION IF EXISTS " + object + "(timestamptz);\nDROP VIEW IF EXISTS " + object + ";\n"
}

// execute executes statements in one transaction, which waits for no other.
func (s *Schema) execute(ctx context.Context, statements string) error {
	_, err := s.db.ExecContext(ctx, "SELECT set_config('lock_timeout', '200ms', true);\n"+statements)
	var server *pgconn.PgError
	switch {
	case isCode(err, lockNotAvailable):
		return ErrLocked
	case isCode(err, dependentObjects) && errors.As(err, &server):
		dependency, _, _ := strings.Cut(server.Detail, "\n")
		return fmt.Errorf("%s: it stays as it is until you drop what depends on it", dependency)
	}
	return err
}

func isCode(err error, code string) bool {
	server, ok := errors.AsType[*pgconn.PgError](err)
	return ok && server.Code == code
}

func hashOf(statements string) string {
	sum := sha256.Sum256([]byte(statements))
	return fmt.Sprintf("%x", sum[:8])
}

// eachRow calls f for each row of a query.
func eachRow(ctx context.Context, db *sql.DB, f func(*sql.Rows) error, statement string, arguments ...any) error {
	rows, err := db.QueryContext(ctx, statement, arguments...)
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
