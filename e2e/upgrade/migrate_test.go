package upgrade

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/e2e/robustness/history"
	"byre/e2e/robustness/tables"
	"byre/sqlstore/storetest"
)

// storedVersions returns the versions in which the objects of the test are stored. Encrypted ones
// have none.
func (s *site) storedVersions(t *testing.T, resources []resource) map[schema.GroupResource]string {
	t.Helper()
	conn, err := tables.Connect(t.Context(), s.kind, s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	all := map[schema.GroupResource]string{}
	for _, r := range resources {
		values, err := conn.Values(t.Context(), r.Group, r.Resource)
		if err != nil {
			t.Fatal(err)
		}
		versions := map[string]bool{}
		for name, value := range values {
			var o struct{ APIVersion string }
			if err := json.Unmarshal([]byte(value), &o); err != nil && !strings.HasPrefix(value, `"k8s:enc:aescbc:v1:key1:`) {
				t.Errorf("%s %s: %v: %.80q", r.GroupResource(), name, err, value)
			}
			versions[o.APIVersion] = true
		}
		all[r.GroupResource()] = strings.Join(slices.Sorted(maps.Keys(versions)), ",")
	}
	return all
}

// changes returns the log up to a revision.
func (s *site) changes(t *testing.T, revision string) []history.Change {
	t.Helper()
	upTo, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tables.Connect(t.Context(), s.kind, s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	log, err := conn.Changes(t.Context(), namespace, 0, upTo)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// migrate has upstream's controller write the objects again whose resource is stored in another
// version now, after one more version has become that of a custom resource. It returns the resources.
func migrate(
	t *testing.T, c *client, s *site, created []resource, stored map[schema.GroupResource]string,
) map[schema.GroupResource]string {
	t.Helper()
	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pandas.awesome.bears.com"
	pandas := c.do(http.MethodGet, definition, nil)
	for _, v := range pandas["spec"].(object)["versions"].([]any) {
		v.(object)["storage"] = v.(object)["name"] == "v3"
	}
	c.do(http.MethodPut, definition, pandas)
	moved := map[schema.GroupResource]string{{Group: "awesome.bears.com", Resource: "pandas"}: "awesome.bears.com/v3"}
	for r, data := range c.examples() {
		// byre has always stored definitions as v1, upstream stores them as v1beta1.
		if gr := r.GroupResource(); data.ExpectedGVK != nil && stored[gr] != "" &&
			gr.Resource != "customresourcedefinitions" {
			if version := data.ExpectedGVK.GroupVersion().String(); version != stored[gr] && moved[gr] == "" {
				moved[gr] = version
			}
		}
	}
	// Upstream's strategy authorizes the parameters of a policy binding anew in each update, because
	// it compares pointers (authorizeUpdate), and the controller's own role has no "get".
	c.do(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object{
		"metadata": object{"name": "migrator"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []object{{"kind": "ServiceAccount", "namespace": "kube-system",
			"name": "storage-version-migrator-controller"}},
	})
	const migrations = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
	for gr := range moved {
		c.do(http.MethodPost, migrations, object{"metadata": object{"name": gr.String()},
			"spec": object{"resource": object{"group": gr.Group, "resource": gr.Resource}}})
	}
	for gr := range moved {
		storetest.EventuallySucceeds(t, gr.String(), func() error {
			status, _ := c.do(http.MethodGet, migrations+"/"+gr.String(), nil)["status"].(object)
			conditions, _ := status["conditions"].([]any)
			for _, condition := range conditions {
				if o := condition.(object); o["type"] == "Succeeded" && o["status"] == "True" {
					return nil
				}
			}
			return fmt.Errorf("conditions %v", conditions)
		})
	}
	after := s.storedVersions(t, created)
	for gr, version := range moved {
		t.Logf("%v: stored as %s, then as %s", gr, stored[gr], after[gr])
		if after[gr] != version {
			t.Errorf("%v is stored as %s, not as %s", gr, after[gr], version)
		}
	}
	storetest.EventuallySucceeds(t, "the stored versions of the definition", func() error {
		versions := c.do(http.MethodGet, definition, nil)["status"].(object)["storedVersions"]
		if !gocmp.Equal(versions, []any{"v3"}) {
			return fmt.Errorf("%v", versions)
		}
		return nil
	})
	return moved
}

// withoutMigrated returns a copy in which the objects that migrate has written again have no revision.
// It leaves out the migrations: the controller fails those of the test.
func withoutMigrated(s state, migrated map[schema.GroupResource]string) state {
	copied := state{}
	for r, objects := range s {
		if r.Resource == "storageversionmigrations" {
			continue
		}
		copied[r] = map[string]object{}
		for key, o := range objects {
			if _, ok := migrated[r.GroupResource()]; ok {
				o = runtime.DeepCopyJSON(o)
				delete(metadata(o), "resourceVersion")
			}
			copied[r][key] = o
		}
	}
	return copied
}
