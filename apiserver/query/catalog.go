package query

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers"
	"byre/apiserver/storage"
)

// Servers has the Tables of several servers. Where two have a table of one name, the first counts.
type Servers []Tables

// Names implements Tables.
func (s Servers) Names() []string {
	names := map[string]bool{}
	for _, tables := range s {
		for _, name := range tables.Names() {
			names[name] = true
		}
	}
	return slices.Collect(maps.Keys(names))
}

// Table implements Tables.
func (s Servers) Table(ctx context.Context, name string) (*Table, error) {
	for _, tables := range s {
		if table, err := tables.Table(ctx, name); table != nil || err != nil {
			return table, err
		}
	}
	return nil, nil
}

// BuiltinTables are the tables of groups whose types a scheme has.
type BuiltinTables struct {
	resources map[string]builtin // by the names of tables
	// tables makes the tables, with the columns of their schemas, at the first query.
	tables func() (map[string]*Table, error)
}

// builtin is a resource that is a table.
type builtin struct {
	names []string
	store *storage.Store
	kind  schema.GroupVersionKind
}

// NewBuiltinTables makes the tables of groups. A table has the plural as its name, of which the first group
// with such a resource counts, and its full name. stores returns the Store of a resource, or nil; schemas
// returns the schemas of the types by the names by which they refer to each other.
func NewBuiltinTables(groups []handlers.Group, stores func(schema.GroupResource) *storage.Store, schemas func() (map[string]*spec.Schema, error)) (*BuiltinTables, error) {
	b := &BuiltinTables{resources: map[string]builtin{}}
	for i := range groups {
		group := &groups[i]
		for _, version := range group.Versions {
			for _, plural := range slices.Sorted(maps.Keys(group.Storage[version])) {
				served := group.Storage[version][plural]
				_, lists := served.(rest.Lister)
				gr := schema.GroupResource{Group: group.Name, Resource: plural}
				store := stores(gr)
				if !lists || store == nil || store.GroupResource() != gr {
					continue // it has no objects, or they are another resource's
				}
				kind, err := endpoints.GetResourceKind(store.StorageVersion(), served, group.Scheme)
				if err != nil {
					return nil, err
				}
				b.add(builtin{[]string{plural, FullName(gr)}, store, kind})
			}
		}
	}
	b.tables = sync.OnceValues(func() (map[string]*Table, error) {
		all, err := schemas()
		if err != nil {
			return nil, err
		}
		return b.makeTables(all)
	})
	return b, nil
}

// add adds a resource under those of its names that are free.
func (b *BuiltinTables) add(r builtin) {
	if _, known := b.resources[r.names[1]]; known {
		return // another version of the resource
	}
	for _, name := range r.names {
		if _, taken := b.resources[name]; !taken {
			b.resources[name] = r
		}
	}
}

func (b *BuiltinTables) makeTables(schemas map[string]*spec.Schema) (map[string]*Table, error) {
	all := NewSchemas(schemas)
	tables, made := map[string]*Table{}, map[*storage.Store]*Table{}
	for name, r := range b.resources {
		if tables[name] = made[r.store]; tables[name] != nil {
			continue
		}
		table := all.Describe(r.store.GroupResource(), r.kind)
		table.Store = r.store
		made[r.store], tables[name] = table, table
	}
	return tables, nil
}

// Schemas are the schemas of kinds.
type Schemas struct {
	definitions map[string]*spec.Schema
	byKind      map[schema.GroupVersionKind]*spec.Schema
}

// NewSchemas returns the schemas of kinds among definitions, which have the names by which they refer to each other.
func NewSchemas(definitions map[string]*spec.Schema) *Schemas {
	s := &Schemas{definitions, map[schema.GroupVersionKind]*spec.Schema{}}
	for _, of := range definitions {
		for _, kind := range kindsOf(of) {
			s.byKind[kind] = of
		}
	}
	return s
}

// Describe returns the table of a built-in resource whose objects are stored as a kind, without its Store.
func (s *Schemas) Describe(gr schema.GroupResource, kind schema.GroupVersionKind) *Table {
	of := cmp.Or(s.byKind[kind], &spec.Schema{}) // none if the version that is stored is not served
	return &Table{
		Resource: gr, Version: kind.Version, Kind: kind.Kind, Description: of.Description,
		Columns: NewColumns(of, s.definitions, printed(gr)),
	}
}

// kindsOf returns the kinds that a schema says it describes.
func kindsOf(s *spec.Schema) (kinds []schema.GroupVersionKind) {
	all, _ := s.Extensions["x-kubernetes-group-version-kind"].([]any)
	for _, each := range all {
		if kind, ok := each.(map[string]any); ok {
			text := func(member string) string { s, _ := kind[member].(string); return s }
			kinds = append(kinds, schema.GroupVersionKind{Group: text("group"), Version: text("version"), Kind: text("kind")})
		}
	}
	return kinds
}

// Names implements Tables.
func (b *BuiltinTables) Names() []string { return slices.Collect(maps.Keys(b.resources)) }

// Table implements Tables.
func (b *BuiltinTables) Table(_ context.Context, name string) (*Table, error) {
	if _, ok := b.resources[name]; !ok {
		return nil, nil
	}
	tables, err := b.tables()
	return tables[name], err
}
