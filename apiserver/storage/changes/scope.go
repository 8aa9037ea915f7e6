package changes

import (
	"context"

	"byre/sqlstore"
)

// Scope is what a user may see of a resource as of a moment.
type Scope struct {
	// All is true if that is everything. Namespaces otherwise has the namespaces, with the revision that
	// created each: a state of an object that is older is not of that namespace.
	All        bool
	Namespaces map[string]int64
	// defined is the revision that created the definition of a custom resource: an older state is not of it.
	defined int64
}

// Includes reports whether a record of the resource may be seen.
func (s *Scope) Includes(r *sqlstore.Record) bool {
	created, ok := s.Namespaces[r.Namespace]
	return r.Revision >= s.defined && (s.All || ok && r.Revision >= created)
}

// Scope returns what the user may see of a resource as of a revision, by the rule of Sees.
func (r *Rights) Scope(ctx context.Context, of sqlstore.Resource, revision int64) (scope Scope, err error) {
	asked := question{verb: "list", group: of.Group, resource: of.Resource}
	if of.Owner == sqlstore.Custom {
		if asked.defined, err = CreatedNow(ctx, r.Driver, definitionKey(of.Group, of.Resource)); err != nil {
			return scope, err
		}
		if asked.defined == 0 || revision < asked.defined {
			// What the resource was, nobody can be asked any more.
			scope.All, err = r.may(ctx, question{verb: "*", group: "*", resource: "*"})
			return scope, err
		}
		scope.defined = asked.defined
	}
	if scope.All, err = r.seesAs(ctx, asked); scope.All || err != nil {
		return scope, err
	}
	namespaces := map[string]int64{}
	all := sqlstore.Query{KeysOnly: true}
	all.Resource = NamespaceKey("").Resource
	if _, err := r.Driver.List(ctx, all, func(n sqlstore.Record) error {
		namespaces[n.Name] = n.Created
		return nil
	}); err != nil {
		return scope, APIError(err)
	}
	scope.Namespaces = map[string]int64{}
	for name, created := range namespaces {
		if created > revision {
			continue
		}
		asked.namespace, asked.since = name, created
		sees, err := r.seesAs(ctx, asked)
		if err != nil {
			return scope, err
		}
		if sees {
			scope.Namespaces[name] = created
		}
	}
	return scope, nil
}

// SeesAll reports whether the user may see all changes of a resource, and those of all resources if it is nil.
func (r *Rights) SeesAll(ctx context.Context, of *sqlstore.Resource) (bool, error) {
	everything := question{verb: "list", group: "*", resource: "*"}
	if of != nil {
		everything.group, everything.resource = of.Group, of.Resource
	}
	return r.seesAs(ctx, everything)
}

// HiddenBefore returns the revision before which the user sees nothing of a resource, and may list it now, in a namespace or in all
// if it is empty: the revision that created the definition of a custom resource. It returns 0 if there is none.
func (r *Rights) HiddenBefore(ctx context.Context, of sqlstore.Resource, namespace string) (int64, error) {
	if of.Owner != sqlstore.Custom {
		return 0, nil
	}
	if sees, err := r.may(ctx, question{verb: "*", group: "*", resource: "*"}); sees || err != nil {
		return 0, err
	}
	defined, err := CreatedNow(ctx, r.Driver, definitionKey(of.Group, of.Resource))
	if err != nil || defined == 0 {
		return 0, err
	}
	asked := question{verb: "list", group: of.Group, resource: of.Resource, defined: defined}
	sees, err := r.seesAs(ctx, asked)
	if !sees && err == nil && namespace != "" {
		asked.namespace = namespace
		if asked.since, err = CreatedNow(ctx, r.Driver, NamespaceKey(namespace)); err == nil {
			sees, err = r.seesAs(ctx, asked)
		}
	}
	if !sees || err != nil {
		return 0, err
	}
	return defined, nil
}
