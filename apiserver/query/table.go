package query

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage"
	"byre/sqlstore"
)

// Table is a resource that SQL can ask. It is immutable.
type Table struct {
	// Resource and Version are what the authorizer is asked about.
	Resource schema.GroupResource
	Version  string
	// Kind is the kind of the objects.
	Kind string
	// Description says what the objects are.
	Description string
	// Columns begin with those that every table has; see NewColumns.
	Columns []Column
	// Store has the objects; nil for a resource whose definition is gone, of which there are past ones only.
	Store *storage.Store
	// Gone is that resource.
	Gone sqlstore.Resource
}

// Of identifies the resource to the store.
func (t *Table) Of() sqlstore.Resource {
	if t.Store == nil {
		return t.Gone
	}
	return t.Store.Resource()
}

// Tables finds tables. It is safe for concurrent use.
type Tables interface {
	// Names returns the names of all tables, each in lower case, in any order.
	Names() []string
	// Table returns the table with a name, or nil if there is none any more.
	Table(ctx context.Context, name string) (*Table, error)
}

// maxName is the length of the longest name of a table, in bytes. It is that of PostgreSQL's
// identifiers.
const maxName = 63

// FullName returns the name of the table of a resource that only its group and plural decide:
// "deployments.apps". A name that is too long is cut off, and ends with a hash of the whole.
func FullName(r schema.GroupResource) string {
	name := strings.ToLower(r.String())
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s~%x", name[:maxName-1-8], sum[:4])
}
