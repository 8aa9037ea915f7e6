// Package catalog says what SQL can ask: a Table is a resource, and a Column is a value of its objects, which is cut out
// of their JSON. The columns of a resource follow from its OpenAPI schema and from what kubectl prints of it.
//
// All values are immutable, but for the caches of their makers, and safe for concurrent use.
package query
