// Package query serves the group sql.byre.dev: a Query is one SELECT over the cluster's objects. Its
// creation is answered with the result, and nothing is stored. docs/sql.md is its manual.
//
// # A query
//
// Storage.Create waits for the query's turn (turns.go), compiles the statement, fills the tables
// that it names with the rows that the user may list, and runs it. The statement runs in an engine, a
// connection of SQLite in memory, in which tables are virtual: their rows are entries of the watch
// cache, and the values of a row are cut out of its JSON when the engine asks for them. A
// DetailTable has a row for each label, container or volume of an object, made of the same entries.
//
// # Tables and columns
//
// A Table is a resource, and a Column is a value of its objects, cut out of their JSON. The columns
// of a resource follow from its OpenAPI schema and from what kubectl prints of it. BuiltinTables has
// the tables of built-in resources; other servers add theirs as Tables. Tables and columns are
// immutable, but for the caches of their makers, and safe for concurrent use.
//
// # What is promised
//
// Invariant: a row that the user may not list never reaches the engine. Storage.fill keeps this: it
// asks the authorizer about each table and namespace, and fills the views before the first step of
// the statement. So no row, error or count depends on what the user may not list.
//
// Invariant: all tables of a query show one revision, which is not older than the request, or that of
// the moment that the query asks for. A table as a function, pods('-1h'), shows a moment of its own;
// those of versions and changes end with that revision.
//
// Invariant: a row of the past reaches the engine by the rule of the resource changes only: stored
// keeps it by a changes.Scope, and logReader by changes.Rights.
//
// A query is bounded in time, memory, the size of values, and rows. An engine belongs to one query, and
// its memory is freed at the query's end. The package has no goroutines.
package query
