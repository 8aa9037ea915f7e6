package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// coreGroup stands for the group without a name in the paths of pages.
const coreGroup = "core"

// resource is a resource of the server, in one version.
type resource struct {
	Group, Version, Resource, Kind string
	Namespaced                     bool
	verbs                          []string
}

// groupInPath is the group in the paths of pages.
func (r resource) groupInPath() string { return cmp.Or(r.Group, coreGroup) }

// FullName is the name as kubectl takes it, such as deployments.apps.
func (r resource) FullName() string {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()
}

// path is the path of the resource's objects in the API; an empty namespace means all.
func (r resource) path(namespace string) string {
	path := "/api/" + r.Version
	if r.Group != "" {
		path = "/apis/" + r.Group + "/" + r.Version
	}
	if namespace != "" && r.Namespaced {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}

// discover returns the resources of the server, each in the version that the server prefers and in the
// others.
func (c *client) discover() (all []resource, err error) {
	for _, path := range []string{"/api", "/apis"} {
		var groups apidiscovery.APIGroupDiscoveryList
		if err := c.get(question{path: path, accept: asGroups}, &groups); err != nil {
			return nil, err
		}
		for _, group := range groups.Items {
			for _, version := range group.Versions {
				for _, r := range version.Resources {
					if r.ResponseKind == nil {
						continue
					}
					all = append(all, resource{group.Name, version.Version, r.Resource, r.ResponseKind.Kind, r.Scope == apidiscovery.ScopeNamespace, r.Verbs})
				}
			}
		}
	}
	return all, nil
}

// find returns the resource that a path names.
func (v *visit) find() (resource, []resource, error) {
	all, err := v.client.discover()
	if err != nil {
		return resource{}, nil, err
	}
	for _, r := range all {
		if r.groupInPath() == v.r.PathValue("group") && r.Version == v.r.PathValue("version") && r.Resource == v.r.PathValue("resource") {
			return r, all, nil
		}
	}
	return resource{}, nil, v.showNothing()
}

// counted is a resource with the number of its objects.
type counted struct {
	resource
	// Count is a number, or why there is none.
	Count string
	Known bool
}

const (
	countTimeout = 5 * time.Second
	// countersPerPage is how many resources are counted at a time.
	countersPerPage = 4
)

// showResources shows all resources, with the number of objects.
func (v *visit) showResources() error {
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	namespace := v.param("namespace")
	var shown []counted
	known := map[string]bool{}
	for _, r := range all {
		// The first version is the one that the server prefers.
		if known[r.FullName()] || !slices.Contains(r.verbs, "list") || namespace != "" && !r.Namespaced {
			continue
		}
		known[r.FullName()] = true
		shown = append(shown, counted{resource: r})
	}
	slices.SortStableFunc(shown, func(a, b counted) int { return strings.Compare(a.Group, b.Group) })
	ctx, cancel := context.WithTimeout(v.client.from.Context(), countTimeout)
	defer cancel()
	client := &client{v.client.server, v.client.from.WithContext(ctx)}
	var group errgroup.Group
	group.SetLimit(countersPerPage)
	for i := range shown {
		group.Go(func() error {
			shown[i].Count, shown[i].Known = client.count(shown[i].resource, namespace)
			return nil
		})
	}
	_ = group.Wait() // no goroutine returns an error
	v.render(http.StatusOK, "Resources",
		h.Form(h.Method("get"), h.Class("filters"), v.namespaceField(), h.Button(g.Text("Show"))),
		grid(g.Group{h.Th(g.Text("Resource")), h.Th(g.Text("Kind")), h.Th(g.Text("Group")), h.Th(h.Class("number"), g.Text("Objects"))},
			g.Map(shown, func(c counted) g.Node {
				return h.Tr(
					h.Td(a(v.tableLink(c.resource, namespace), c.Resource)), h.Td(say(c.Kind)), h.Td(say(strings.TrimPrefix(c.Group+"/"+c.Version, "/"))),
					h.Td(h.Class("number"), g.If(c.Known, g.Text(c.Count)), g.If(!c.Known, h.Span(h.Class("absent"), h.Title(visible(c.Count)), g.Text("not shown")))))
			})))
	return nil
}

// count returns the number of a resource's objects.
func (c *client) count(r resource, namespace string) (count string, known bool) {
	var list metav1.PartialObjectMetadataList
	err := c.get(question{path: r.path(namespace), query: url.Values{"limit": {"1"}}, accept: asMetadata + "," + asJSON}, &list)
	switch {
	case err != nil:
		return message(err), false
	case list.RemainingItemCount != nil:
		return strconv.FormatInt(int64(len(list.Items))+*list.RemainingItemCount, 10), true
	case list.Continue != "":
		return "1 or more", true
	}
	return strconv.Itoa(len(list.Items)), true
}
