package plugin

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery"

	"byre/apiserver/history"
)

// Types returns the names of the resources whose objects can be listed, such as deployments.apps.
func (c *Client) Types() []string {
	lists, _ := c.resources.ServerPreferredResources() // with an error too, those of the groups that answer
	var types []string
	found, _ := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists))
	for resource := range found {
		types = append(types, resource.GroupResource().String())
	}
	slices.Sort(types)
	return types
}

// Names returns the names of the objects of a type, or of those that were deleted.
func (c *Client) Names(ctx context.Context, kind string, deleted bool) (names []string, err error) {
	o, err := c.Find([]string{kind, "-"})
	if err != nil {
		return nil, err
	}
	if deleted {
		changes, err := c.Changes(ctx, Query{Namespace: o.changesIn(), Fields: fields.Set{
			"object.group": o.Resource.Group, "object.resource": o.Resource.Resource, "verb": "delete",
		}})
		for i := range changes {
			names = append(names, changes[i].Object.Name)
		}
		slices.Sort(names)
		return slices.Compact(names), err
	}
	list, err := c.client(o).List(ctx, metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names, nil
}

// recentFor and recentCount are what Recent reads: the changes of this time, and all if they are fewer.
const (
	recentFor   = 12 * time.Hour
	recentCount = 20
)

// Recent returns the last changes of the namespace that can be undone, the newest first.
func (c *Client) Recent(ctx context.Context) ([]history.Change, error) {
	query := Query{Namespace: c.namespace, Fields: fields.Set{"since": time.Now().Add(-recentFor).UTC().Format(time.RFC3339)}}
	changes, err := c.Changes(ctx, query)
	if err != nil || len(changes) < recentCount { // an error: the history may be shorter
		delete(query.Fields, "since")
		changes, err = c.Changes(ctx, query)
	}
	changes = slices.DeleteFunc(changes, func(change history.Change) bool {
		return change.Unreadable || slices.Contains([]string{"delete", "deletecollection", "expire"}, change.Verb)
	})
	slices.Reverse(changes)
	return changes, err
}
