package sqlviews

import (
	"fmt"
	"slices"
	"strings"

	"byre/apiserver/query"
)

// Table is a table with where its objects are.
type Table struct {
	*query.Table
	// IsCustom is true for the instances of a CustomResourceDefinition.
	IsCustom bool
}

// names returns the names of the table in queries: a built-in resource has its plural too.
func (t *Table) names() []string {
	full := query.FullName(t.Resource)
	if t.IsCustom || full == t.Resource.Resource {
		return []string{full}
	}
	return []string{t.Resource.Resource, full}
}

// condition selects the table's row of resources.
func (t *Table) condition() string {
	return `"group" = ` + literal(t.Resource.Group) + " AND resource = " + literal(t.Resource.Resource) + " AND defined_by = " + literal(t.definedBy())
}

func (t *Table) definedBy() string {
	if t.IsCustom {
		return "custom"
	}
	return "builtin"
}

// columns are the columns of the view.
func (t *Table) columns() []query.Column { return shown(t.Columns) }

// shown are the columns that a view has: not those that are arguments of a table.
func shown(columns []query.Column) []query.Column {
	return slices.DeleteFunc(slices.Clone(columns), func(c query.Column) bool { return c.IsHidden() })
}

// find returns the table and the column of a name.
func find(tables []Table, table, column string) (*Table, *query.Column, error) {
	i := slices.IndexFunc(tables, func(t Table) bool { return slices.Contains(t.names(), table) })
	if i < 0 {
		return nil, nil, fmt.Errorf("there is no table %q", table)
	}
	columns := tables[i].columns()
	j := slices.IndexFunc(columns, func(c query.Column) bool { return c.Name == column })
	if j < 0 {
		return nil, nil, fmt.Errorf("the table %s has no column %q", table, column)
	}
	return &tables[i], &columns[j], nil
}

// The columns that are made of more than one value of the object.
const (
	ownerPath      = "metadata.ownerReferences"
	containersPath = "status.containerStatuses"
)

// isScalar reports whether a column is one value at its path, which an expression index can be on.
func isScalar(c *query.Column) bool {
	switch c.Source() {
	case "", "metadata.namespace", "metadata.name", "metadata.resourceVersion", ownerPath, containersPath:
		return false
	}
	return c.Type != query.JSON && c.Type != query.Quantity
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
