package migrations

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// maxIdentifier is the length of the longest name in PostgreSQL, in bytes. The server truncates
// longer names.
const maxIdentifier = 63

// CheckSchema fails if a name is not one of a schema that byre may use.
func CheckSchema(schema string) error {
	switch {
	case schema == "" || len(schema) > maxIdentifier || strings.ContainsRune(schema, 0):
		return fmt.Errorf("schema %q: want a name of 1 to %d bytes", schema, maxIdentifier)
	case strings.HasPrefix(schema, "pg_"), schema == "information_schema":
		return fmt.Errorf("schema %q: the name is PostgreSQL's own", schema)
	}
	return nil
}

// WithSchema returns a connection string whose sessions have only the named schema in their
// search_path. byre finds all its tables, views, locks and channels by the current schema, so that
// one database can have any number of stores. It fails if the name is not one of a schema that byre
// may use, or if the connection string names another schema.
func WithSchema(dsn, schema string) (string, error) {
	if err := CheckSchema(schema); err != nil {
		return "", err
	}
	if schema == "$user" {
		return "", errors.New("schema \"$user\": name it in search_path, or for the role")
	}
	config, err := ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	if given := config.ConnConfig.RuntimeParams["search_path"]; given != "" {
		if SchemaName(config.ConnConfig) != schema {
			return "", fmt.Errorf("the endpoint has the search_path %s, which does not begin with the schema %q: name one of them only", given, schema)
		}
		return dsn, nil
	}
	path := pgx.Identifier{schema}.Sanitize()
	// libpq does not read + as a space.
	escaped := strings.ReplaceAll(url.QueryEscape(path), "+", "%20")
	switch isURL := strings.Contains(dsn, "://"); {
	case isURL && strings.Contains(dsn, "?"):
		dsn += "&search_path=" + escaped
	case isURL:
		dsn += "?search_path=" + escaped
	default:
		dsn += " search_path='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(path) + "'"
	}
	// If the connection string is unusual, the parameter may have no effect. byre must not use
	// another schema then.
	if config, err = ParseDSN(dsn); err == nil && SchemaName(config.ConnConfig) != schema {
		err = errors.New("endpoint: it takes no search_path")
	}
	return dsn, err
}

// SchemaName returns the schema that an endpoint names: the first one of its search_path. It is empty if
// the endpoint has no search_path, or one that begins with "$user": then the server decides.
func SchemaName(config *pgx.ConnConfig) string {
	path := strings.TrimSpace(config.RuntimeParams["search_path"])
	name, _, _ := strings.Cut(path, ",")
	name = strings.ToLower(strings.TrimSpace(name))
	if quoted, ok := strings.CutPrefix(path, `"`); ok {
		// A quotation mark in the name is doubled.
		const mark = "\x00"
		name, _, _ = strings.Cut(strings.ReplaceAll(quoted, `""`, mark), `"`)
		name = strings.ReplaceAll(name, mark, `"`)
	}
	if name == "$user" {
		return ""
	}
	return name
}

// DatabaseName returns the name of a store for the operator: its database, and its schema if the endpoint
// names one.
func DatabaseName(config *pgx.ConnConfig) string {
	if schema := SchemaName(config); schema != "" {
		return fmt.Sprintf("schema %q of database %q", schema, config.Database)
	}
	return fmt.Sprintf("database %q", config.Database)
}

const selectSchema = `
SELECT coalesce(current_schema(), ''), EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`

// HasSchema reports whether the schema that the endpoint names exists. It fails if the session uses
// another one.
//
// Invariant: byre executes no statement in a session whose current schema is not the one that the
// endpoint names. The endpoint's search_path sets the current schema, and every program that opens a
// store calls HasSchema first: the server skips a schema that does not exist or that the role may
// not use, and a pooler may drop the setting. Otherwise byre would write to the store in another
// schema.
func HasSchema(ctx context.Context, conn *pgx.Conn) (bool, error) {
	config := conn.Config()
	wanted := SchemaName(config)
	var current string
	var exists bool
	if err := conn.QueryRow(ctx, selectSchema, wanted).Scan(&current, &exists); err != nil {
		return false, Explain(config, err)
	}
	switch {
	case wanted == "" && current == "":
		return false, fmt.Errorf("PostgreSQL at %s: no schema of the search_path exists: create it, or name one with --database-schema", Address(config))
	case wanted == "" || current == wanted:
		return true, nil
	case !exists:
		return false, nil
	}
	return false, fmt.Errorf("PostgreSQL at %s: sessions use the schema %q instead of %q: grant USAGE on the schema to %s; "+
		"behind a pooler, set search_path for the role (ALTER ROLE) or at the pooler",
		Address(config), current, wanted, pgx.Identifier{config.User}.Sanitize())
}
