package upgrade

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/test/integration/etcd"

	"byre/e2e/servers"
)

const (
	namespace = "kept"
	// label is on every object that the test creates.
	label = "upgrade.byre.dev/round"
)

// leftOut are resources of which the test has no object, and why.
var leftOut = map[string]string{
	"workloads.scheduling.k8s.io": "1.36 stores v1alpha2, which 1.37 does not know any more",
	"podgroups.scheduling.k8s.io": "as workloads",
}

// object is the JSON of an object.
type object = map[string]any

// state has the objects of the test, by their resource as it is served, and then by namespace and name.
type state map[schema.GroupVersionResource]map[string]object

// resource is one that a server serves in a version, and whose objects can be created and listed.
type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

func (r resource) path(namespace string) string {
	path := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if r.namespaced && namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}

// client makes requests as an administrator. What it can't do ends the test.
type client struct {
	t      *testing.T
	url    string
	config *rest.Config
	http   *http.Client
}

func newClient(t *testing.T, s *servers.Server) *client {
	t.Helper()
	config := s.Config(servers.AdminToken)
	config.WarningHandler = rest.NoWarnings{}
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, s.URL, config, c}
}

// try makes a request, and decodes the answer.
func (c *client) try(method, path string, body any) (object, error) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(string(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, said)
	}
	var o object
	return o, json.Unmarshal(said, &o)
}

func (c *client) do(method, path string, body any) object {
	c.t.Helper()
	o, err := c.try(method, path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// resources returns what the server serves. Quotas come last: they would forbid what is created
// before a controller has counted.
func (c *client) resources() (all []resource) {
	c.t.Helper()
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(c.config).ServerGroupsAndResources()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "create") && !strings.Contains(r.Name, "/") {
				all = append(all, resource{gv.WithResource(r.Name), r.Namespaced})
			}
		}
	}
	slices.SortFunc(all, func(a, b resource) int {
		if a.Resource != b.Resource && (a.Resource == "resourcequotas" || b.Resource == "resourcequotas") {
			return map[bool]int{true: 1, false: -1}[a.Resource == "resourcequotas"]
		}
		return cmp.Compare(a.String(), b.String())
	})
	return all
}

// examples returns upstream's example of each resource of the server's minor version.
func (c *client) examples() map[schema.GroupVersionResource]etcd.StorageData {
	c.t.Helper()
	version, err := discovery.NewDiscoveryClientForConfigOrDie(c.config).ServerVersion()
	if err != nil {
		c.t.Fatal(err)
	}
	return etcd.GetEtcdStorageDataForNamespaceServedAt(namespace, version.Major+"."+version.Minor, false)
}

// list returns the objects of the test as they are, or as they were at a revision.
func (c *client) list(resources []resource, revision string) state {
	c.t.Helper()
	all := state{}
	query := "?labelSelector=" + label
	if revision != "" {
		query += "&resourceVersionMatch=Exact&resourceVersion=" + revision
	}
	for _, r := range resources {
		all[r.GroupVersionResource] = map[string]object{}
		items, _ := c.do(http.MethodGet, r.path("")+query, nil)["items"].([]any)
		for _, item := range items {
			o := item.(object)
			// A CSINode has a status since 1.37, a structure that the encoder never leaves out.
			if status, ok := o["status"].(object); ok && len(status) == 0 && r.Resource == "csinodes" {
				delete(o, "status")
			}
			all[r.GroupVersionResource][key(o)] = o
		}
	}
	return all
}

// revision returns that of the store.
func (c *client) revision() string {
	c.t.Helper()
	return metadata(c.do(http.MethodGet, "/api/v1/configmaps", nil))["resourceVersion"].(string)
}

func metadata(o object) object { return o["metadata"].(object) }

func key(o object) string {
	ns, _ := metadata(o)["namespace"].(string)
	return ns + "/" + metadata(o)["name"].(string)
}

// example returns an object with the label, and with another name if there is a prefix.
func example(t *testing.T, data etcd.StorageData, prefix string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(data.Stub), &o); err != nil {
		t.Fatal(err)
	}
	m := metadata(o)
	m["name"] = prefix + m["name"].(string)
	m["labels"] = object{label: "1"}
	return o
}
