package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// fake answers with texts for paths. Of lists of changes, it answers those of a resource whose history is
// too short with 410.
func fake(t *testing.T, expired string, answers map[string]string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if selector := r.URL.Query().Get("fieldSelector"); slices.Contains(strings.Split(selector, ","), "object.resource="+expired) {
			w.WriteHeader(http.StatusGone)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"the history of %s does not reach back to 3"}`, expired)
			return
		}
		text, found := answers[r.URL.Path]
		if !found {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound","details":{"name":"x"}}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const (
	changesPath = "/apis/history.byre.dev/v1/namespaces/shop/changes"
	verbsOfAll  = `"verbs":["create","delete","get","list","update"]`
	unreadable  = `"metadata":{"name":"5"},"revision":5,"replaces":2,"unreadable":true,"object":{"group":"","resource":"configmaps","namespace":"shop","name":"sealed"}`
)

// unreadableChange is a server with a change of a ConfigMap that can't be decrypted any more.
func unreadableChange() map[string]string {
	return map[string]string{
		"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[
			{"name":"configmaps","kind":"ConfigMap","namespaced":true,` + verbsOfAll + `},{"name":"pods","kind":"Pod","namespaced":true,` + verbsOfAll + `}]}`,
		"/api/v1/namespaces/shop/configmaps": `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}`,
		"/api/v1/namespaces/shop/pods":       `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`,
		changesPath:                          `{"kind":"ChangeList","items":[{` + unreadable + `}]}`,
		changesPath + "/5":                   `{"kind":"Change",` + unreadable + `}`,
		"/apis/history.byre.dev/v1/namespaces/default/changes": `{"kind":"ChangeList","items":[]}`,
	}
}

func TestUndo_RefusesAnUnreadableChange(t *testing.T) {
	t.Parallel()
	_, err := fake(t, "none", unreadableChange()).PlanUndo(t.Context(), 5)
	if err == nil || !strings.Contains(err.Error(), "can't be read any more") {
		t.Errorf("the error is %v", err)
	}
}

// Pods have a shorter history than what makes them.
func TestRollback_LeavesOutWhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	plan, err := fake(t, "pods", unreadableChange()).PlanRollback(t.Context(), Moment{Revision: 3}, labels.Everything(), true)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.Join(plan.LeftOut, "\n")
	for _, want := range []string{"pods (the history of pods does not reach back to 3", "configmaps/sealed (revision 5: the object can't be read any more)"} {
		if !strings.Contains(left, want) {
			t.Errorf("%q is not left out: %s", want, left)
		}
	}
	if len(plan.Steps) > 0 {
		t.Errorf("%d steps", len(plan.Steps))
	}
}

func TestRollback_NeedsTheHistoryOfWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	_, err := fake(t, "configmaps", unreadableChange()).PlanRollback(t.Context(), Moment{Revision: 3}, labels.Everything(), true)
	if err == nil || !strings.Contains(err.Error(), "the history of configmaps does not reach back to 3") || apierrors.IsNotFound(err) {
		t.Errorf("the error is %v", err)
	}
}

func TestTypes_AreThoseThatCanBeListed(t *testing.T) {
	t.Parallel()
	if got := strings.Join(fake(t, "none", unreadableChange()).Types(), " "); got != "configmaps pods" {
		t.Errorf("the types are %s", got)
	}
}

// A completion shows what may have been meant.
func TestRecent_IsWhatCanBeUndone(t *testing.T) {
	t.Parallel()
	answers := unreadableChange()
	answers[changesPath] = `{"items":[{"revision":10,"verb":"expire"},{"revision":9,"verb":"deletecollection"},{"revision":8,"verb":"delete"},
		{"revision":7,"verb":"patch"},{"revision":6,"verb":"create"},{"revision":5,"unreadable":true,"verb":"patch"}]}`
	changes, err := fake(t, "none", answers).Recent(t.Context())
	if err != nil || len(changes) != 2 || changes[0].Revision != 7 || changes[1].Revision != 6 {
		t.Errorf("the changes are %+v, %v", changes, err)
	}
}

// Follow goes on after the last change that it has received when the connection ends, and fails when
// what comes next is deleted.
func TestFollow_GoesOnAndSaysWhatIsGone(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{}`) // discovery
			return
		}
		asked = append(asked, r.URL.Query().Get("resourceVersion"))
		switch len(asked) {
		case 1:
			fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"},"rows":[{"cells":["7"]}]}}
				{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		}
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	err = client.Follow(t.Context(), Query{Namespace: "shop"}, "5", func(table *metav1.Table) error {
		rows += len(table.Rows)
		return nil
	})
	if rows != 1 || !slices.Equal(asked, []string{"5", "9", "9"}) || err == nil || err.Error() != "the changes after revision 9 can't be followed any more: run the command again: too old" {
		t.Errorf("%d rows, asked after %q, %v", rows, asked, err)
	}
}

func TestFind_LearnsWhatIsDefinedLater(t *testing.T) {
	t.Parallel()
	answers := unreadableChange()
	client := fake(t, "", answers)
	if _, err := client.Find([]string{"configmaps/settings"}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Find([]string{"gears/g"}); !meta.IsNoMatchError(err) {
		t.Fatalf("before the definition: %v", err)
	}
	answers["/apis"] = `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}]}]}`
	answers["/apis/example.com/v1"] = `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"gears","kind":"Gear","namespaced":true,` + verbsOfAll + `}]}`
	if o, err := client.Find([]string{"gears/g"}); err != nil || o.String() != "gears.example.com/g" {
		t.Errorf("after it: %s, %v", o, err)
	}
}

// TestCreate_ReportsARefusalWithoutDetails: a webhook may answer so.
func TestCreate_ReportsARefusalWithoutDetails(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid","message":"no"}`)
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	refused := &Undelete{
		Object:  Object{corev1.SchemeGroupVersion.WithResource("configmaps"), "shop", "b"},
		Content: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "b"}}},
	}
	if _, err := client.Create(t.Context(), refused, false); !apierrors.IsInvalid(err) {
		t.Error(err)
	}
}
