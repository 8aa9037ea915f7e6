package query

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/query/catalog"
	"byre/sqlstore"
)

// prepare compiles the statement of a query. If there is an error the statement may name a resource whose definition
// is gone: what is left of its history is looked for then only.
func (s *Storage) prepare(e *engine, q *Spec) error {
	e.past.moment = q.At
	err := e.prepare(q.SQL)
	if err == nil {
		return nil
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

// declareGone makes the tables of resources known whose definitions are gone, and reports whether the statement
// may name one. Nothing is known of such a resource but the members of every object.
func (s *Storage) declareGone(e *engine, sql string) (found bool, err error) {
	histories, err := e.past.historiesOf()
	if err != nil {
		return false, err
	}
	names := s.config.Tables.Names()
	for i := range histories {
		of := histories[i].Resource
		gr := schema.GroupResource{Group: of.Group, Resource: of.Resource}
		name := catalog.FullName(gr)
		if of.Owner != sqlstore.Custom || !strings.Contains(sql, name) || slices.Contains(names, name) {
			continue
		}
		found = true
		table := &catalog.Table{Resource: gr, Columns: catalog.NewColumns(&spec.Schema{}, nil, nil), Gone: of}
		if err := e.declare(name, table); err != nil {
			return false, err
		}
		if err := e.declareVersions(name+versionsSuffix, table); err != nil {
			return false, err
		}
	}
	return found, nil
}
