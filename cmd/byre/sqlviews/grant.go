package sqlviews

import (
	"fmt"
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

// Statements returns the statements that make the role, and the schema of its name with its views.
func (g *Grant) Statements(tables []Table) string {
	tables = slices.DeleteFunc(slices.Clone(tables), func(t Table) bool {
		return !g.Secrets && !t.IsCustom && t.Resource.Group == "" && t.Resource.Resource == "secrets"
	})
	role := identifier(g.Role)
	views := Postgres{Store: g.Store, Schema: g.Role, Namespaces: g.Namespaces}
	return fmt.Sprintf(`BEGIN;
CREATE ROLE %[1]s LOGIN;
CREATE SCHEMA %[1]s;
%[2]sGRANT USAGE ON SCHEMA %[1]s TO %[1]s;
GRANT SELECT ON ALL TABLES IN SCHEMA %[1]s TO %[1]s;
ALTER ROLE %[1]s SET search_path = %[1]s;
COMMIT;
`, role, views.Statements(tables))
}
