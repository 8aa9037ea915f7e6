package changes

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	if asked.since, err = created.Of(ctx, NamespaceKey(key.Namespace)); err != nil || asked.since == 0 || c.Revision < asked.since {
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
		User: r.user, Verb: q.verb, Namespace: q.namespace, APIGroup: q.group, APIVersion: "*", Resource: q.resource, ResourceRequest: true,
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
	for key, known := range map[sqlstore.Key]int64{NamespaceKey(q.namespace): q.since, definitionKey(q.group, q.resource): q.defined} {
		if known == 0 {
			continue
		}
		if created, err := CreatedNow(ctx, r.Driver, key); err != nil || created != known {
			return false, err
		}
	}
	return true, nil
}
