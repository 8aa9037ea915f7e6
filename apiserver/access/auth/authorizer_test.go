package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/sqlstore/storetest"
)

// newPod returns a Pod of a node that refers to the Secret secret-NAME.
func newPod(name, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
		Spec: v1.PodSpec{NodeName: node, ServiceAccountName: "sa-" + name,
			Containers: []v1.Container{{Name: "c", EnvFrom: []v1.EnvFromSource{{
				SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "secret-" + name}}}}}}},
	}
}

// nodeQuestion asks whether the kubelet of a node may do something.
func nodeQuestion(node, verb, resource, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup, user.AllAuthenticated}},
		Verb: verb, Resource: resource, Namespace: "n", Name: name, APIVersion: "v1", ResourceRequest: true,
	}
}

// TestNodeAuthorizer_AllowsWhatItsPodsReferTo: a kubelet may read the objects that its own
// Pods refer to, and no others.
func TestNodeAuthorizer_AllowsWhatItsPodsReferTo(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(newPod("p", "a"), newPod("q", "b"))
	// The fake client has no revisions: an informer never sees what happens between its list
	// and its watch.
	var watched atomic.Bool
	client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		watched.Store(true)
		return true, w, err
	})
	a := newAuth(t, client, newRules(t).RBACListers, options(t)).Authorizer
	ask := func(node, verb, resource, name string) bool {
		return allowed(t, a, nodeQuestion(node, verb, resource, name))
	}
	storetest.Eventually(t, "the graph", func() bool {
		return ask("a", "get", "secrets", "secret-p") && ask("b", "get", "secrets", "secret-q")
	})
	if ask("a", "get", "secrets", "secret-q") || ask("a", "list", "secrets", "") {
		t.Error("a node reads secrets that are none of its Pods'")
	}
	if !ask("a", "get", "nodes", "a") {
		t.Error("a node can't read itself")
	}
	storetest.Eventually(t, "Pods are watched", watched.Load)
	if err := client.CoreV1().Pods("n").Delete(context.Background(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the graph without the deleted Pod", func() bool {
		return !ask("a", "get", "secrets", "secret-p")
	})
}

// TestNodeAuthorizer_IsReadyWithItsPods: a server is not ready before the Node authorizer has read the Pods.
func TestNodeAuthorizer_IsReadyWithItsPods(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	listed, proceed := make(chan struct{}), make(chan struct{})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		close(listed)
		<-proceed
		return false, nil, nil
	})
	a := newAuth(t, client, newRules(t).RBACListers, options(t))
	<-listed
	if a.Ready() == nil {
		t.Error("ready before the Pods are read")
	}
	close(proceed)
	storetest.Eventually(t, "the authorizer is ready", func() bool { return a.Ready() == nil })
}

// TestNodeAuthorizer_IsReadyWithItsGraph: upstream's graph, which handles the Pods in a goroutine of
// its own, has all of them when the authorizer is ready.
func TestNodeAuthorizer_IsReadyWithItsGraph(t *testing.T) {
	t.Parallel()
	pods := &v1.PodList{}
	for i := range 5000 {
		pods.Items = append(pods.Items, *newPod(fmt.Sprint(i), "a"))
	}
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, pods, nil
	})
	a := newAuth(t, client, newRules(t).RBACListers, options(t))
	storetest.Eventually(t, "the authorizer is ready", func() bool { return a.Ready() == nil })
	if !allowed(t, a.Authorizer, nodeQuestion("a", "get", "secrets", "secret-4999")) {
		t.Error("the kubelet is not allowed the Secret of its last Pod")
	}
}

// listReferences returns what the Node authorizer finds in a Pod.
func listReferences(pod *v1.Pod) []string {
	var found []string
	podutil.VisitPodSecretNames(pod, func(name string) bool { found = append(found, "secret "+name); return true })
	podutil.VisitPodConfigmapNames(pod, func(name string) bool { found = append(found, "config map "+name); return true })
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			found = append(found, "claim "+volume.PersistentVolumeClaim.ClaimName)
		}
		if volume.Ephemeral != nil {
			found = append(found, "ephemeral "+pod.Name+"-"+volume.Name)
		}
	}
	for _, claim := range pod.Spec.ResourceClaims {
		found = append(found, fmt.Sprintf("resource claim %+v", claim))
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		found = append(found, fmt.Sprintf("claim status %+v", status))
	}
	found = append(found, fmt.Sprintf("extended %+v", pod.Status.ExtendedResourceClaimStatus),
		"account "+pod.Spec.ServiceAccountName, "node "+pod.Spec.NodeName,
		"mirror "+pod.Annotations[v1.MirrorPodAnnotationKey],
		fmt.Sprintf("ephemeral containers %d", len(pod.Spec.EphemeralContainers)))
	slices.Sort(found)
	return slices.Compact(found)
}

// TestTrimPod_KeepsWhatTheNodeAuthorizerReads trims upstream's Pod that has every field
// set: every field that the Node authorizer reads stays, and most others go.
func TestTrimPod_KeepsWhatTheNodeAuthorizerReads(t *testing.T) {
	t.Parallel()
	full, err := os.ReadFile(filepath.Join(storetest.ModuleDir(t, "k8s.io/api"), "testdata", "HEAD", "core.v1.Pod.json"))
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	if err := json.Unmarshal(full, pod); err != nil {
		t.Fatal(err)
	}
	pod.Annotations[v1.MirrorPodAnnotationKey] = "m"
	want := listReferences(pod)
	trimmed, err := trimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, listReferences(trimmed.(*v1.Pod))); diff != "" || len(want) < 10 {
		t.Errorf("of %d references (-full +trimmed):\n%s", len(want), diff)
	}
	small, err := json.Marshal(trimmed)
	if err != nil {
		t.Fatal(err)
	}
	if len(small) > len(full)/2 {
		t.Errorf("%d of %d bytes are left", len(small), len(full))
	}
}

// TestAuthorizationConfig_WebhookBeforeRBAC reads a file that has a webhook with a CEL
// condition, and RBAC after it.
func TestAuthorizationConfig_WebhookBeforeRBAC(t *testing.T) {
	t.Parallel()
	asked := 0
	webhook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		asked++
		review.Status.Allowed = review.Spec.ResourceAttributes.Verb == "get"
		review.Status.Denied = !review.Status.Allowed
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer webhook.Close()
	kubeconfig := write(t, "webhook.kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, webhook.URL))
	file := write(t, "authz.yaml", fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: remote
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions: [{expression: request.resourceAttributes.namespace == "remote"}]
- {type: RBAC, name: rbac}
`, kubeconfig))
	o := options(t, "--authorization-config="+file)
	a := newAuth(t, fake.NewClientset(), newRules(t).RBACListers, o)
	if !o.Authorization.UsesMode(modes.ModeRBAC) {
		t.Error("RBAC is in the file but not in use")
	}
	for _, test := range []struct {
		verb, namespace string
		want            authorizer.Decision
		asked           int
	}{
		{"get", "remote", authorizer.DecisionAllow, 1},
		{"delete", "remote", authorizer.DecisionDeny, 1},
		{"get", "elsewhere", authorizer.DecisionNoOpinion, 0},
	} {
		asked = 0
		got, reason, err := a.Authorizer.Authorize(context.Background(), question("u", test.verb, "pods", test.namespace))
		if err != nil || got != test.want || asked != test.asked {
			t.Errorf("%s in %s: got %v (%s, %v), asked %d times", test.verb, test.namespace, got, reason, err, asked)
		}
	}

	o = NewOptions()
	o.Authorization.AuthorizationConfigurationFile = write(t, "bad.yaml",
		[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Magic, name: m}]\n"))
	if errs := o.Authorization.Validate(); len(errs) != 1 || !strings.Contains(errs[0].Error(), "Magic") {
		t.Errorf("got %v", errs)
	}
}
