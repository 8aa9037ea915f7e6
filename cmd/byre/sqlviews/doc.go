// Package sqlviews makes SQL for who owns the database: views that have the tables and columns of queries through
// the API server, and expression indexes on the columns of these views.
//
// The views are over byre's own tables. They follow no access rights, and an object that is encrypted at rest has only its
// namespace, name and revision. Invariant: no value makes a view fail; a value that does not fit the type of its column is
// NULL. Each expression keeps this: it looks at the type of the JSON before it converts a value.
package sqlviews
