package client

import (
	"context"
	"slices"

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

// Recent returns the last changes of the namespace that can be undone, the newest first, as far as one page has them.
func (c *Client) Recent(ctx context.Context) ([]history.Change, error) {
	changes, _, err := c.Newest(ctx, Query{Namespace: c.namespace}, pageSize-1)
	return slices.DeleteFunc(changes, func(change history.Change) bool {
		return change.Unreadable || slices.Contains([]string{"delete", "deletecollection", "expire"}, change.Verb)
	}), err
}
