package sqlviews

import (
	"fmt"
	"io"
	"slices"
)

// Grant is a role of PostgreSQL that reads the objects of some namespaces.
type Grant struct {
	Role       string
	Namespaces []string
	// Secrets says that it reads Secrets too.
	Secrets bool
	// Store is the schema of byre's tables.
	Store string
}

// WriteTo writes the statements that make the role, and the schema of its name with its views.
func (g *Grant) WriteTo(w io.Writer, tables []Table) error {
	tables = slices.DeleteFunc(slices.Clone(tables), func(t Table) bool {
		return !g.Secrets && !t.IsCustom && t.Resource.Group == "" && t.Resource.Resource == "secrets"
	})
	role := identifier(g.Role)
	if _, err := fmt.Fprintf(w, "BEGIN;\nCREATE ROLE %s LOGIN;\nCREATE SCHEMA %s;\n", role, role); err != nil {
		return err
	}
	views := Postgres{Store: g.Store, Schema: g.Role, Namespaces: g.Namespaces}
	if err := views.WriteTo(w, tables); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "GRANT USAGE ON SCHEMA %s TO %s;\nGRANT SELECT ON ALL TABLES IN SCHEMA %s TO %s;\nALTER ROLE %s SET search_path = %s;\nCOMMIT;\n",
		role, role, role, role, role, role)
	return err
}
