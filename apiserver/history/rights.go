package history

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// rights tells which changes the user of a request may see. One goroutine uses it, for one
// request.
type rights struct {
	driver     sqlstore.Driver
	authorizer authorizer.UnconditionalAuthorizer
	user       user.Info
	// decisions has what the authorizer has answered.
	decisions map[question]bool
	// created has the create revisions of namespaces and definitions; 0 of what does not
	// exist.
	created map[sqlstore.Key]int64
}

// question asks whether the user may do verb to the objects of a resource in a namespace, or in
// all if it is empty. since is the create revision of that namespace: an answer about a namespace
// does not hold for one that is created again.
type question struct {
	verb, group, resource, namespace string
	since                            int64
}

func (s *Storage) rightsOf(ctx context.Context) (*rights, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("the request has no user"))
	}
	return &rights{driver: s.config.Driver, authorizer: s.config.Authorizer, user: who, decisions: make(map[question]bool)}, nil
}

// refresh forgets which namespaces and definitions exist. The caller calls it after it has read
// changes and before it asks for them: so none of them is of a namespace that is created later
// than rights knows.
func (r *rights) refresh() { r.created = make(map[sqlstore.Key]int64) }

// sees reports whether the user may see a change: may list changes and the object's resource,
// both cluster-wide or both in the object's namespace. A change that is older than the namespace,
// or than the definition of the resource, is not of what has these names now.
func (r *rights) sees(ctx context.Context, c *sqlstore.Change) (bool, error) {
	key := c.New.Key
	if key.Owner == sqlstore.Custom {
		defined, err := r.createdAt(ctx, sqlstore.Key{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: key.Resource + "." + key.Group})
		if err != nil {
			return false, err
		}
		if defined == 0 || c.Revision < defined {
			// What the resource was, nobody can be asked any more.
			return r.may(ctx, question{verb: "*", group: "*", resource: "*"})
		}
	}
	if sees, err := r.seesIn(ctx, key, "", 0); sees || err != nil || key.Namespace == "" {
		return sees, err
	}
	since, err := r.createdAt(ctx, sqlstore.Key{Resource: "namespaces", Name: key.Namespace})
	if err != nil || since == 0 || c.Revision < since {
		return false, err
	}
	return r.seesIn(ctx, key, key.Namespace, since)
}

func (r *rights) seesIn(ctx context.Context, key sqlstore.Key, namespace string, since int64) (bool, error) {
	lists, err := r.may(ctx, question{"list", groupResource.Group, groupResource.Resource, namespace, since})
	if !lists || err != nil {
		return false, err
	}
	return r.may(ctx, question{"list", key.Group, key.Resource, namespace, since})
}

// may asks the authorizer once.
func (r *rights) may(ctx context.Context, q question) (bool, error) {
	allowed, asked := r.decisions[q]
	if asked {
		return allowed, nil
	}
	decision, _, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: r.user, Verb: q.verb, Namespace: q.namespace, APIGroup: q.group, APIVersion: "*", Resource: q.resource, ResourceRequest: true,
	})
	// As upstream's authorization of requests: an error with no decision is an error.
	if allowed = decision == authorizer.DecisionAllow; !allowed && err != nil {
		return false, apierrors.NewInternalError(err)
	}
	r.decisions[q] = allowed
	return allowed, nil
}

// createdAt returns the revision that created an object; 0 if it does not exist.
func (r *rights) createdAt(ctx context.Context, key sqlstore.Key) (int64, error) {
	if created, known := r.created[key]; known {
		return created, nil
	}
	record, _, err := r.driver.Get(ctx, key)
	if err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
		return 0, apiError(err)
	}
	r.created[key] = record.Created
	return record.Created, nil
}
