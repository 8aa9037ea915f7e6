package query

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/sqlstore"
)

// resources finds tables by the name that edges give to a resource: the shortest name of its table. It belongs to
// one query.
type resources struct {
	ctx    context.Context
	tables Tables
	// byName and byKind are all tables, once all has been called.
	byName map[string]*Table
	byKind map[schema.GroupKind]string
}

func newResources(ctx context.Context, tables Tables) *resources {
	return &resources{ctx: ctx, tables: tables}
}

// table returns the table of the resource with a name; nil if there is none.
func (r *resources) table(name string) (*Table, error) {
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
func (r *resources) all() (map[string]*Table, error) {
	if r.byName != nil {
		return r.byName, nil
	}
	byName, byKind := map[string]*Table{}, map[schema.GroupKind]string{}
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

// prepare compiles the statement of a query. If there is an error the statement may name a resource whose definition
// is gone: what is left of its history is looked for then only.
func (s *Storage) prepare(e *engine, q *Spec) error {
	e.past.moment = q.At
	err := e.prepare(q.SQL)
	if err == nil || e.cause.err != nil || errors.Is(err, errTooDeep) || errors.Is(err, errTooLarge) {
		return err // after these two the engine must not be used
	}
	found, goneErr := s.declareGone(e, strings.ToLower(q.SQL))
	switch {
	case goneErr != nil:
		return goneErr
	case found:
		return e.prepare(q.SQL)
	}
	return err
}

// declareGone makes the tables of resources known whose definitions are gone and whose past the user may see, and reports
// whether the statement may name one. Nothing is known of such a resource but the members of every object.
func (s *Storage) declareGone(e *engine, sql string) (found bool, err error) {
	histories, err := e.past.historiesOf()
	if err != nil {
		return false, err
	}
	rights, err := e.past.rightsOf()
	if err != nil {
		return false, err
	}
	names := s.config.Tables.Names()
	for i := range histories {
		of := histories[i].Resource
		gr := schema.GroupResource{Group: of.Group, Resource: of.Resource}
		name := FullName(gr)
		if of.Owner != sqlstore.Custom || !strings.Contains(sql, name) || slices.Contains(names, name) {
			continue
		}
		if scope, err := rights.Scope(e.ctx, of, 0); err != nil {
			return false, err
		} else if !scope.All {
			continue // to others it is as if it had never been
		}
		found = true
		table := &Table{Resource: gr, Columns: NewColumns(&spec.Schema{}, nil, nil), Gone: of}
		if err := e.declare(name, table); err != nil {
			return false, err
		}
		if err := e.declareVersions(name+versionsSuffix, table); err != nil {
			return false, err
		}
	}
	return found, nil
}
