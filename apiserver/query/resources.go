package query

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/query/catalog"
)

// resources finds tables by the name that edges give to a resource: the shortest name of its table. It belongs to
// one query.
type resources struct {
	ctx    context.Context
	tables catalog.Tables
	// byName and byKind are all tables, once all has been called.
	byName map[string]*catalog.Table
	byKind map[schema.GroupKind]string
}

func newResources(ctx context.Context, tables catalog.Tables) *resources {
	return &resources{ctx: ctx, tables: tables}
}

// table returns the table of the resource with a name; nil if there is none.
func (r *resources) table(name string) (*catalog.Table, error) {
	t, err := r.tables.Table(r.ctx, name)
	if t == nil || err != nil || t.Resource.Resource == name {
		return t, err
	}
	if short, err := r.tables.Table(r.ctx, t.Resource.Resource); short == nil || err != nil || short.Resource != t.Resource {
		return t, err
	}
	return nil, nil
}

// all returns the tables of all resources, by name.
func (r *resources) all() (map[string]*catalog.Table, error) {
	if r.byName != nil {
		return r.byName, nil
	}
	byName, byKind := map[string]*catalog.Table{}, map[schema.GroupKind]string{}
	for _, name := range r.tables.Names() {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
		t, err := r.table(name)
		if err != nil {
			return nil, err
		}
		if t != nil {
			byName[name] = t
			byKind[schema.GroupKind{Group: t.Resource.Group, Kind: t.Kind}] = name
		}
	}
	r.byName, r.byKind = byName, byKind
	return byName, nil
}

// ofKind returns the name of the resource of a kind; false if there is none.
func (r *resources) ofKind(apiVersion, kind string) (string, bool, error) {
	if _, err := r.all(); err != nil {
		return "", false, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return "", false, nil //nolint:nilerr // no API version: no resource
	}
	name, ok := r.byKind[schema.GroupKind{Group: gv.Group, Kind: kind}]
	return name, ok, nil
}
