// Package sqlviews makes views for who owns the database, with the tables and columns of queries through the API
// server. A Schema of PostgreSQL keeps them; for SQLite, SQLiteStatements returns the statements that make them.
//
// The views are over byre's own tables. They follow no access rights, and an object that is encrypted at rest has only
// its namespace, name and revision. Invariant: no value makes a view fail; a value that does not fit the type of its
// column is NULL. Each expression keeps this: it looks at the type of the JSON before it converts a value.
package sqlviews
