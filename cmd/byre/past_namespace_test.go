package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"byre/cmd/byre/client/clienttest"
	"byre/sqlstore/storetest"
)

// inNamespace are objects of the resources of a namespace, without their names.
var inNamespace = []struct{ version, resource, kind, content string }{
	{"v1", "serviceaccounts", "ServiceAccount", `"automountServiceAccountToken":false`},
	{"v1", "configmaps", "ConfigMap", `"data":{"a":"1"},"binaryData":{"b":"AAE="}`},
	{"v1", "secrets", "Secret", `"type":"Opaque","data":{"password":"c2VjcmV0"}`},
	{"v1", "persistentvolumeclaims", "PersistentVolumeClaim", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`},
	{"v1", "services", "Service", `"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`},
	{"v1", "podtemplates", "PodTemplate", `"template":` + podOf("Always")},
	{"v1", "pods", "Pod", `"spec":{"serviceAccountName":"main","containers":[{"name":"a","image":"a"}]}`},
	{"v1", "replicationcontrollers", "ReplicationController", `"spec":{"replicas":1,"selector":{"a":"b"},"template":` + podOf("Always") + `}`},
	{"v1", "limitranges", "LimitRange", `"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"9Gi"}}]}`},
	{"v1", "resourcequotas", "ResourceQuota", `"spec":{"hard":{"count/nothing.example.com":"5"}}`},
	{"apps/v1", "deployments", "Deployment", `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "replicasets", "ReplicaSet", `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "statefulsets", "StatefulSet", `"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "daemonsets", "DaemonSet", `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "controllerrevisions", "ControllerRevision", `"revision":1,"data":{"a":1}`},
	{"batch/v1", "jobs", "Job", `"spec":{"template":` + podOf("Never") + `}`},
	{"batch/v1", "jobs", "Job", `"spec":{"manualSelector":true,"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Never") + `}`},
	{"batch/v1", "cronjobs", "CronJob", `"spec":{"schedule":"0 0 * * *","jobTemplate":{"spec":{"template":` + podOf("Never") + `}}}`},
	{"autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`},
	{"policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`},
	{"networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", `"spec":{"podSelector":{},"policyTypes":["Ingress"]}`},
	{"networking.k8s.io/v1", "ingresses", "Ingress", `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`},
	{"rbac.authorization.k8s.io/v1", "roles", "Role", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`},
	{"rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"u"}]`},
	{"storage.k8s.io/v1", "csistoragecapacities", "CSIStorageCapacity", `"storageClassName":"s","capacity":"1Gi"`},
	{"resource.k8s.io/v1", "resourceclaims", "ResourceClaim", `"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}`},
	{"example.com/v1", "gears", "Gear", `"spec":{"teeth":12,"name":"g"}`},
}

func podOf(restart string) string {
	return `{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"` + restart + `","containers":[{"name":"a","image":"a"}]}}`
}

// defineGears defines a custom resource.
func defineGears(t *testing.T, client dynamic.Interface) {
	t.Helper()
	_, err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(t.Context(), parseObject(t, `{
		"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gears","kind":"Gear"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func parseObject(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return object
}

// contents returns the objects of inNamespace in a namespace by resource and name, without what the server
// sets for one object.
func contents(t *testing.T, client dynamic.Interface, namespace string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, of := range inNamespace {
		version, err := schema.ParseGroupVersion(of.version)
		if err != nil {
			t.Fatal(err)
		}
		list, err := client.Resource(version.WithResource(of.resource)).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			var owners []string
			for _, owner := range object.GetOwnerReferences() {
				owners = append(owners, owner.Kind+"/"+owner.Name)
			}
			if manual, _, _ := unstructured.NestedBool(object.Object, "spec", "manualSelector"); of.resource == "jobs" && !manual {
				unstructured.RemoveNestedField(object.Object, "spec", "selector")
				unstructured.RemoveNestedField(object.Object, "spec", "template", "metadata", "labels", "controller-uid")
				unstructured.RemoveNestedField(object.Object, "spec", "template", "metadata", "labels", "batch.kubernetes.io/controller-uid")
			}
			content, name := object.Object, of.resource+"/"+object.GetName()
			content["metadata"] = map[string]any{"labels": object.GetLabels(), "annotations": object.GetAnnotations(), "owners": owners, "finalizers": object.GetFinalizers()}
			delete(content, "status")
			all[name] = content
		}
	}
	return all
}

// removeNamespace deletes a namespace, and waits until it is gone.
func removeNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	if err := client.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		claims, err := client.CoreV1().PersistentVolumeClaims(name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range claims.Items { // the controller of these finalizers is not running
			_, err := client.CoreV1().PersistentVolumeClaims(name).Patch(ctx, claims.Items[i].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		_, err = client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// An object of each kind is deleted with the namespace and brought back; some own others. That the plan is right for random
// namespaces is shown in memory (TestUndelete_BringsBackANamespace in plugin).
func TestPast_DeletedNamespaceIsBroughtBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir)
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	admin := kubernetes.NewForConfigOrDie(server.config(t))
	objects := dynamic.NewForConfigOrDie(server.config(t))
	defineGears(t, objects)
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", Labels: map[string]string{"team": "shop"}, Annotations: map[string]string{"note": "keep"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("shop").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "main"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the ServiceAccount default is there", func() error {
		_, err := admin.CoreV1().ServiceAccounts("shop").Patch(t.Context(), "default", types.MergePatchType, []byte(`{"imagePullSecrets":[{"name":"registry"}]}`), metav1.PatchOptions{})
		return err
	})
	var owner *unstructured.Unstructured
	create := func(i int, name, controller string) {
		t.Helper()
		of := inNamespace[i%len(inNamespace)]
		owners := ""
		if owner != nil {
			owners = fmt.Sprintf(`,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q%s}]`, owner.GetAPIVersion(), owner.GetKind(), owner.GetName(), owner.GetUID(), controller)
		}
		version, err := schema.ParseGroupVersion(of.version)
		if err != nil {
			t.Fatal(err)
		}
		object := parseObject(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"number":"%d"},"annotations":{"a/b":"%d"}%s},%s}`,
			of.version, of.kind, name, i, i, owners, of.content))
		storetest.EventuallySucceeds(t, "the object is created", func() error { // a custom resource is served after its definition is there
			created, err := objects.Resource(version.WithResource(of.resource)).Namespace("shop").Create(t.Context(), object, metav1.CreateOptions{})
			if err == nil && controller == "" {
				owner = created
			}
			return err
		})
	}
	for i := range inNamespace {
		if i%5 == 0 {
			owner = nil
		}
		create(i, fmt.Sprintf("o-%d", i), "")
	}
	want := contents(t, objects, "shop")
	create(1, "controlled", `,"controller":true`)
	if len(want) < len(inNamespace) {
		t.Fatalf("%d objects", len(want))
	}
	removeNamespace(t, admin, "shop")

	p.fail("", "name an object", "undelete", "--yes")
	p.run("", []string{"create namespaces/shop", "create gears.example.com/", "1 objects that controllers own", "can't check the other objects"}, "undelete", "-n", "shop", "--dry-run=server")
	p.run("", []string{"namespaces/shop is created again"}, "undelete", "-n", "shop", "--yes")
	got := contents(t, objects, "shop")
	for name, content := range want {
		if !reflect.DeepEqual(got[name], content) {
			t.Errorf("%s is %v, want %v", name, got[name], content)
		}
	}
	if got["configmaps/controlled"] != nil {
		t.Error("what a controller owns is created")
	}
	namespace, err := admin.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil || namespace.Labels["team"] != "shop" || namespace.Annotations["note"] != "keep" {
		t.Errorf("the namespace is %v, %v", namespace, err)
	}
	if account, err := admin.CoreV1().ServiceAccounts("shop").Get(t.Context(), "default", metav1.GetOptions{}); err != nil || len(account.ImagePullSecrets) != 1 {
		t.Errorf("the ServiceAccount default is %v, %v", account, err)
	}
	p.run("", []string{"nothing to do"}, "undelete", "-n", "shop", "--yes")
	definitions := objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if err := definitions.Delete(t.Context(), "gears.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "what has no definition any more is named", func() error {
		out, _ := succeed(t, p.args("", "undelete", "-n", "shop", "--yes")...)
		if !strings.Contains(out, "gears.example.com (its definition does not exist any more") {
			return errors.New(out)
		}
		return nil
	})
}

// tenant lets a user edit a namespace and see its history.
func tenant(t *testing.T, admin kubernetes.Interface, namespace, user string) {
	t.Helper()
	for _, role := range []string{"admin", "byre:history-viewer"} {
		if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + strings.ReplaceAll(role, ":", "-")},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// An object is handled in the version in which it was stored, or by its name where that is not served any more.
func TestPast_OfAVersionThatIsNotPreferred(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir)
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	client := dynamic.NewForConfigOrDie(server.config(t))
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	const version = `{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`
	if _, err := definitions.Create(t.Context(), parseObject(t, fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gears","kind":"Gear"},"versions":[`+version+","+version+"]}}", "v1", true, false, "v1beta1", true, true)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gears := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gears"}).Namespace("default")
	maps := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	var gear *unstructured.Unstructured
	create := func() {
		storetest.EventuallyDone(t, "a gear", func(ctx context.Context) (created bool, err error) {
			gear, err = gears.Create(ctx, parseObject(t, `{"apiVersion":"example.com/v1","kind":"Gear","metadata":{"name":"g"},"spec":{"teeth":1}}`), metav1.CreateOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		})
	}
	create()
	if out := p.run("", []string{gear.GetResourceVersion()}, "blame", "gear/g"); strings.Contains(out, "≤") {
		t.Errorf("fields are older than the object:\n%s", out)
	}
	p.run("", []string{"is undone"}, "undo", gear.GetResourceVersion(), "--yes")
	if _, err := gears.Get(t.Context(), "g", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a creation is undone: %v", err)
	}
	create()
	m, err := maps.Create(t.Context(), parseObject(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"v":"old"}}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := definitions.Patch(t.Context(), "gears.example.com", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"versions":[`+version+","+version+`]}}`, "v1", true, true, "v1beta1", false, false), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []struct {
		of   dynamic.ResourceInterface
		name string
		text string
	}{{gears, "g", `{"spec":{"teeth":2}}`}, {maps, "m", `{"data":{"v":"new"}}`}} {
		if _, err := patch.of.Patch(t.Context(), patch.name, types.MergePatchType, []byte(patch.text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.run("", []string{"configmaps/m is as it was", "left out: gears.example.com/g (it was stored in the version v1beta1, which is not served any more)"},
		"rollback", "-n", "default", "--at", m.GetResourceVersion(), "--yes")
}

// A tenant makes a namespace again what it was before others changed, deleted and created objects.
func TestPast_NamespaceIsRolledBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir)
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	admin := kubernetes.NewForConfigOrDie(server.config(t))
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tenant(t, admin, "shop", "alice")
	maps := admin.CoreV1().ConfigMaps("shop")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	patch := func(name, text string) {
		t.Helper()
		must(maps.Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}))
	}
	for _, name := range []string{"changed", "deleted", "sealed", "controlled", "same"} {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{"v": "old"}}
		if name == "controlled" {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Gone", Name: "g", UID: "g", Controller: new(true)}}
			m.Finalizers = []string{"example.com/keep"} // the garbage collector finds no owner
		}
		must(maps.Create(t.Context(), m, metav1.CreateOptions{}))
	}
	service, err := admin.CoreV1().Services("shop").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(service, err)
	at := service.ResourceVersion

	patch("changed", `{"data":{"v":"new"},"metadata":{"labels":{"app":"other"},"finalizers":["example.com/kept"]}}`)
	patch("sealed", `{"data":{"v":"new"},"immutable":true}`)
	patch("controlled", `{"data":{"v":"new"}}`)
	must(nil, maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	must(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "created", Labels: map[string]string{"app": "created"}}}, metav1.CreateOptions{}))
	// A Service that is created again has another address, which can't be changed.
	must(nil, admin.CoreV1().Services("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	again := service.DeepCopy()
	again.UID, again.ResourceVersion, again.Spec.ClusterIP, again.Spec.ClusterIPs = "", "", "", nil
	again.Spec.Ports[0].Port = 81
	again, err = admin.CoreV1().Services("shop").Create(t.Context(), again, metav1.CreateOptions{})
	must(again, err)
	must(admin.CoreV1().Services("shop").Patch(t.Context(), "web", types.MergePatchType, []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`), metav1.PatchOptions{}, "status"))

	data := func(name string) string {
		t.Helper()
		m, err := maps.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "gone"
		}
		must(m, err)
		return m.Data["v"]
	}
	rollback := func(flags ...string) []string {
		return append([]string{"rollback", "-n", "shop", "--at", at}, flags...)
	}
	p.fail("mallory", "forbidden", rollback("--yes")...)
	p.fail("", "is neither a revision", "rollback", "-n", "shop", "--at", "noon")
	out := p.fail("alice", "nothing done", rollback()...)
	for _, want := range []string{"create configmaps/deleted", `replace /data/v "old"`, "update services/web",
		"configmaps/created (created since; --prune deletes it)", "1 objects that controllers own"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "configmaps/same") {
		t.Errorf("what has not changed is in the plan: %s", out)
	}
	p.run("alice", []string{"configmaps/deleted is created again (server dry run)"}, rollback("-l", "app in (changed,deleted)", "--dry-run=server")...)
	if data("deleted") != "gone" {
		t.Error("a dry run has created an object")
	}
	if out := p.run("alice", []string{"configmaps/changed is as it was"}, rollback("-l", "app=changed", "--yes")...); strings.Contains(out, "deleted") {
		t.Errorf("the selector selects more: %s", out)
	}
	// Names are not what a terminal obeys.
	hostile := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x\x1b[1A\u009b2K\u202e"}}
	must(admin.RbacV1().Roles("shop").Create(t.Context(), hostile, metav1.CreateOptions{}))
	if out := p.fail("", "nothing done", rollback("--prune")...); !strings.Contains(out, "delete roles.rbac.authorization.k8s.io/x") || strings.ContainsAny(out, "\x1b\u009b\u202e") {
		t.Errorf("%q", out)
	}
	must(nil, admin.RbacV1().Roles("shop").Delete(t.Context(), hostile.Name, metav1.DeleteOptions{}))
	p.fail("alice", "1 of 3 requests failed", rollback("--yes")...) // an immutable ConfigMap
	for name, want := range map[string]string{"changed": "old", "deleted": "old", "sealed": "new", "controlled": "new", "same": "old", "created": ""} {
		if got := data(name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if m, err := maps.Get(t.Context(), "changed", metav1.GetOptions{}); err != nil || m.Labels["app"] != "changed" || len(m.Finalizers) != 1 {
		t.Errorf("the ConfigMap is %+v, %v", m, err)
	}
	if s, err := admin.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{}); err != nil || s.Spec.ClusterIP != again.Spec.ClusterIP ||
		s.Spec.Ports[0].Port != 80 || len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service is %+v, %v", s, err)
	}
	must(nil, maps.Delete(t.Context(), "sealed", metav1.DeleteOptions{}))
	p.run("alice", []string{"configmaps/created is deleted", "configmaps/sealed is created again"}, rollback("--prune", "--yes")...)
	if data("created") != "gone" || data("sealed") != "old" {
		t.Error("not all is as it was")
	}
	p.run("alice", []string{"nothing to do"}, rollback("--prune", "--yes")...)
}

// kubectl completes the arguments of its plugin by a program of this name. What is completed is shown in package client.
func TestPast_NamesAreCompleted(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(clienttest.New())
	t.Cleanup(server.Close)
	for line, want := range map[string]string{
		"roll": "rollback\tMake the objects of a namespace again what they were\n:4\n", "log --server " + server.URL + " namespaces/s": "namespaces/shop\n:4\n",
	} {
		var out strings.Builder
		if status := run(t.Context(), "/usr/bin/kubectl_complete-byre", strings.Fields(line), &out, io.Discard); status != 0 || out.String() != want {
			t.Errorf("completion of %q: status %d, %q, want %q", line, status, out.String(), want)
		}
	}
}

// The history of one resource may be shorter than what is asked for.
func TestPast_LogSaysFromWhenOnItIsWhole(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(r.URL.Query().Get("fieldSelector"), "since=") {
			w.WriteHeader(http.StatusGone)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"the history of pods begins at noon"}`)
			return
		}
		fmt.Fprintf(w, `{"columnDefinitions":[{"name":"Revision"}],"rows":[
			{"cells":["old"],"object":{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}},
			{"cells":["new"],"object":{"metadata":{"creationTimestamp":%q}}}]}`, time.Now().UTC().Format(time.RFC3339))
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut := succeed(t, "log", "-n", "shop", "--since", "2d", "--server", server.URL, "--kubeconfig", kubeconfig)
	if out != "REVISION\nnew\n" || errOut != "not all changes are there any more: the history of pods begins at noon\n" {
		t.Errorf("the log is %q, %q", out, errOut)
	}
}
