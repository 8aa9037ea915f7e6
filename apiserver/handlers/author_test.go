package handlers_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// TestWrite_RecordsSubresourceAndManager: the changes of requests that differ in their
// subresource or field manager differ in their author.
func TestWrite_RecordsSubresourceAndManager(t *testing.T) {
	t.Parallel()
	driver := storetest.NewModel()
	s := newServer(t, func(sqlstore.Driver) sqlstore.Driver { return driver })
	const deployments = "/apis/apps/v1/namespaces/first/deployments"
	const web = deployments + "/web"
	merge := "application/merge-patch+json"
	for _, test := range []struct {
		method, path, body string
		header             map[string]string
		want               sqlstore.Author
	}{
		{http.MethodPost, deployments, `{"metadata":{"name":"web"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},
"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
			map[string]string{"User-Agent": "kubectl/v1.37.2 (linux/amd64)"}, sqlstore.Author{Verb: "create", Manager: "kubectl"}},
		{http.MethodPatch, web + "/scale", `{"spec":{"replicas":3}}`,
			map[string]string{"Content-Type": merge, "User-Agent": "scaler/1"}, sqlstore.Author{Verb: "patch", Subresource: "scale", Manager: "scaler"}},
		{http.MethodPatch, web + "/status?fieldManager=me", `{"status":{"replicas":3}}`,
			map[string]string{"Content-Type": merge}, sqlstore.Author{Verb: "patch", Subresource: "status", Manager: "me"}},
		{http.MethodPatch, web + "?fieldManager=applier", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"x":"y"}}}`,
			map[string]string{"Content-Type": "application/apply-patch+yaml"}, sqlstore.Author{Verb: "apply", Manager: "applier"}},
		{http.MethodDelete, web, "", nil, sqlstore.Author{Verb: "delete"}},
	} {
		resp, answer := call{method: test.method, path: test.path, body: test.body, header: test.header}.answer(t, s.bytes)
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %s", test.method, test.path, answer)
		}
		state, err := driver.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		changes, err := driver.Changes(t.Context(), sqlstore.ChangesQuery{After: state.Revision - 1, Limit: 1})
		if err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		got := changes[0].Author
		got.AuditID = ""
		test.want.User = someone.Name
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %s (-want +recorded):\n%s", test.method, test.path, diff)
		}
	}
}
