package changes

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// AnswersHold is for how long an answer of the authorizer is used: a watch shows what was revoked
// for no longer.
const AnswersHold = 10 * time.Second

// Rights tells which changes the user of a request may see. One goroutine uses it, for one
// request.
type Rights struct {
	*Log
	user user.Info
	// decisions has what the authorizer has answered since the time asked.
	decisions map[question]bool
	asked     time.Time
}

// question asks whether the user may do verb to the objects of a resource in a namespace, or in
// all if it is empty. since is the create revision of that namespace, and defined that of the
// definition of a custom resource: an answer does not hold for what is created again.
type question struct {
	verb, group, resource, namespace string
	since, defined                   int64
}

// RightsOf returns the Rights of the user of a request.
func (l *Log) RightsOf(ctx context.Context) (*Rights, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("the request has no user"))
	}
	return &Rights{Log: l, user: who, decisions: make(map[question]bool), asked: time.Now()}, nil
}

// Sees reports whether the user may see a change: may list changes and the object's resource,
// both cluster-wide or both in the object's namespace. A change that is older than the namespace,
// or than the definition of the resource, is not of what has these names now.
func (r *Rights) Sees(ctx context.Context, c *sqlstore.Change, created *Creations) (bool, error) {
	key := c.New.Key
	asked := question{verb: "list", group: key.Group, resource: key.Resource}
	var err error
	if key.Owner == sqlstore.Custom {
		if asked.defined, err = created.Of(ctx, definitionKey(key.Group, key.Resource)); err != nil {
			return false, err
		}
		if asked.defined == 0 || c.Revision < asked.defined {
			// What the resource was, nobody can be asked any more.
			return r.may(ctx, question{verb: "*", group: "*", resource: "*"})
		}
	}
	if sees, err := r.seesAs(ctx, asked); sees || err != nil || key.Namespace == "" {
		return sees, err
	}
	asked.namespace = key.Namespace
	if asked.since, err = created.Of(ctx, NamespaceKey(key.Namespace)); err != nil || asked.since == 0 ||
		c.Revision < asked.since {
		return false, err
	}
	return r.seesAs(ctx, asked)
}

// seesAs reports whether the answer is yes to a question, and to that for changes in the same
// namespace.
func (r *Rights) seesAs(ctx context.Context, q question) (bool, error) {
	changes := question{verb: "list", group: Group, resource: Resource, namespace: q.namespace, since: q.since}
	lists, err := r.may(ctx, changes)
	if !lists || err != nil {
		return false, err
	}
	return r.may(ctx, q)
}

// may asks the authorizer, unless it has answered a short time ago.
func (r *Rights) may(ctx context.Context, q question) (bool, error) {
	if time.Since(r.asked) >= AnswersHold {
		clear(r.decisions)
		r.asked = time.Now()
	}
	allowed, asked := r.decisions[q]
	if asked {
		return allowed, nil
	}
	decision, _, err := r.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: r.user, Verb: q.verb, Namespace: q.namespace, APIGroup: q.group, APIVersion: "*", Resource: q.resource,
		ResourceRequest: true,
	})
	// As upstream's authorization of requests: an error with no decision is an error.
	if allowed = decision == authorizer.DecisionAllow; !allowed && err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if allowed {
		if allowed, err = r.isOfNow(ctx, q); err != nil {
			return false, err
		}
	}
	r.decisions[q] = allowed
	return allowed, nil
}

// isOfNow reports whether the namespace and the definition of a question are still there. The
// caller calls it after the authorizer has answered, which knows them by their names only: the
// answer may be about others that were created meanwhile.
func (r *Rights) isOfNow(ctx context.Context, q question) (bool, error) {
	for key, known := range map[sqlstore.Key]int64{NamespaceKey(q.namespace): q.since,
		definitionKey(q.group, q.resource): q.defined} {
		if known == 0 {
			continue
		}
		if created, err := CreatedNow(ctx, r.Driver, key); err != nil || created != known {
			return false, err
		}
	}
	return true, nil
}

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

// Lists reports whether the user may list changes and a resource, as they are named now, in a namespace or in all.
func (r *Rights) Lists(ctx context.Context, of schema.GroupResource, namespace string) (bool, error) {
	q := question{verb: "list", group: of.Group, resource: of.Resource}
	if sees, err := r.seesAs(ctx, q); sees || err != nil {
		return sees, err
	}
	q.namespace = namespace
	return r.seesAs(ctx, q)
}

// HiddenBefore returns the revision before which the user sees nothing of a resource, and may list it now, in a
// namespace or in all if it is empty: the revision that created the definition of a custom resource. It returns 0 if
// there is none.
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

// Creations has the revisions that created namespaces and definitions. It is safe for concurrent
// use.
//
// Invariant: it is made after the changes were read for which it is asked, or after all earlier
// changes that create or delete a namespace or a definition (AreChanged). What it returns is
// then exact: a change is of the object that has the name now if it is not older than that object's
// creation.
type Creations struct {
	driver sqlstore.Driver
	mu     sync.Mutex
	known  map[sqlstore.Key]int64
}

// NewCreations makes a Creations.
func NewCreations(driver sqlstore.Driver) *Creations {
	return &Creations{driver: driver, known: make(map[sqlstore.Key]int64)}
}

// Of returns the revision that created an object; 0 if it does not exist.
func (c *Creations) Of(ctx context.Context, key sqlstore.Key) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if created, known := c.known[key]; known {
		return created, nil
	}
	created, err := CreatedNow(ctx, c.driver, key)
	if err == nil {
		c.known[key] = created
	}
	return created, err
}

// CreatedNow asks the database for the revision that created an object; 0 if it does not exist.
func CreatedNow(ctx context.Context, driver sqlstore.Driver, key sqlstore.Key) (int64, error) {
	record, _, err := driver.Get(ctx, key)
	if err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
		return 0, APIError(err)
	}
	return record.Created, nil
}

// NamespaceKey returns the key of a Namespace.
func NamespaceKey(name string) sqlstore.Key { return sqlstore.Key{Resource: "namespaces", Name: name} }

func definitionKey(group, resource string) sqlstore.Key {
	return sqlstore.Key{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: resource + "." + group}
}

// AreChanged reports whether a change creates or deletes a namespace or a definition.
func AreChanged(c *sqlstore.Change) bool {
	key := c.New.Key
	return c.Op != sqlstore.Update && (key == NamespaceKey(key.Name) || key.Of() == definitionKey("", "").Of())
}
