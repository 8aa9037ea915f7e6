package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"byre/sqlstore"
	"byre/watch"
)

// fill fills the tables of a query with the rows that its user may list, all at one revision that is not
// older than the request, or at the one of the moment that the query asks for. It returns the revision.
//
// As for a list, the authorizer is asked before the rows are read: about all namespaces, and if
// the answer is no, about each namespace in which there are rows. Objects of a resource whose definition
// is not known, if it has any, have been left behind or are newer than what is known: they are shown by the rights of the past.
func (s *Storage) fill(ctx context.Context, p *past, views []*view) (revision string, err error) {
	at := p.moment
	if p.latest, err = s.config.Feed.Latest(ctx); err != nil {
		return "", err
	}
	resources := make([]sqlstore.Resource, len(views))
	for i, v := range views {
		resources[i] = v.Of()
	}
	snapshots, err := s.config.Feed.Snapshots(ctx, resources...)
	if err != nil {
		return "", err
	}
	namespaces := make([][]string, len(views))
	known := make([]map[string]bool, len(views))
	for i := range known {
		known[i] = map[string]bool{}
	}
	for asked := true; asked; {
		asked = false
		for i, v := range views {
			if at != "" || v.Store == nil {
				continue
			}
			answers := len(known[i])
			if namespaces[i], err = s.mayList(ctx, v.Table, snapshots[i], known[i]); err != nil {
				return "", err
			}
			asked = asked || len(known[i]) > answers
		}
		// There may be rows in other namespaces meanwhile.
		if asked {
			if snapshots, err = s.config.Feed.Snapshots(ctx, resources...); err != nil {
				return "", err
			}
		}
	}
	for i, v := range views {
		p.latest = snapshots[i].Revision()
		v.snapshot = snapshots[i]
		if at != "" || v.Store == nil {
			continue // v.now is what it showed then, by the rights of the past
		}
		v.now = &selection{view: v, source: &cached{snapshots[i], namespaces[i]}}
		if namespaces[i] != nil && len(namespaces[i]) == 0 {
			v.now.forbidden = fmt.Sprintf("you may not list %s in all namespaces, nor in one that has some", v.Resource)
		}
	}
	shown := p.latest
	if at != "" {
		if shown, err = p.revision(at); err != nil {
			return "", err
		}
		p.latest = shown
	}
	for _, v := range views {
		if v.now != nil {
			continue
		}
		if v.now, err = p.show(v, at, shown); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(shown, 10), nil
}

// mayList returns the namespaces in which the user may list the objects of a table; nil means all. known has the
// answers of the authorizer, by namespace.
func (s *Storage) mayList(ctx context.Context, t *Table, snapshot watch.Snapshot, known map[string]bool) ([]string, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("the request has no user"))
	}
	if all, err := s.may(ctx, who, t, "", known); all || err != nil {
		return nil, err
	}
	namespaces := []string{}
	for namespace := range snapshot.Namespaces() {
		if namespace == "" {
			continue // objects without a namespace
		}
		may, err := s.may(ctx, who, t, namespace, known)
		if err != nil {
			return nil, err
		}
		if may {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces, nil
}

// may asks the authorizer what the handler of lists asks, unless the answer is known.
func (s *Storage) may(ctx context.Context, who user.Info, t *Table, namespace string, known map[string]bool) (bool, error) {
	if allowed, ok := known[namespace]; ok {
		return allowed, nil
	}
	decision, _, err := s.config.Log.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "list", Namespace: namespace, APIGroup: t.Resource.Group, APIVersion: t.Version, Resource: t.Resource.Resource, ResourceRequest: true,
	})
	if known[namespace] = decision == authorizer.DecisionAllow; !known[namespace] && err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return known[namespace], nil
}

// warn adds a warning for each table and edge that a statement names, and that is empty because its user may
// list nothing of what it has.
func warn(ctx context.Context, sql string, views []*view) {
	sql = strings.ToLower(sql)
	for _, v := range views {
		if v.edge == "" && v.now.forbidden != "" && strings.Contains(sql, v.name) {
			warning.AddWarning(ctx, "", fmt.Sprintf("%s is empty: %s", v.name, v.now.forbidden))
		}
	}
	for name, edge := range edgesIn(sql) {
		var parts []*selection
		var pods *podsByNamespace
		for _, v := range views {
			switch {
			case v.edge != name:
			case edge.selects && v.name == podsTable:
				pods = &podsByNamespace{shown: v.now}
			default:
				parts = append(parts, v.now)
			}
		}
		if isEmpty(parts, pods) {
			warnEmpty(ctx, name)
		}
	}
}

func warnEmpty(ctx context.Context, edge string) {
	warning.AddWarning(ctx, "", edge+" is empty: you may not list what it is made of")
}

// isEmpty reports whether the user may list no row of any part of an edge, or none of the Pods that it selects
// from, if it does.
func isEmpty(parts []*selection, pods *podsByNamespace) bool {
	if pods != nil && pods.shown.forbidden != "" {
		return true
	}
	return len(parts) > 0 && !slices.ContainsFunc(parts, func(part *selection) bool { return part.forbidden == "" })
}
