package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/rest"

	"byre/cmd/byre/client"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// past runs commands as a user of a server.
type past struct {
	*testing.T
	kubeconfig string
}

func (p past) args(user string, args ...string) []string {
	args = append(args, "--kubeconfig", p.kubeconfig)
	if user != "" {
		args = append(args, "--as", user)
	}
	return args
}

// run runs a command that must succeed, and expects texts in its output.
func (p past) run(user string, want []string, args ...string) string {
	p.Helper()
	out, _ := succeed(p.T, p.args(user, args...)...)
	for _, text := range want {
		if !strings.Contains(out, text) {
			p.Errorf("%q has no %q:\n%s", args, text, out)
		}
	}
	return out
}

// fail runs a command that must fail with an error.
func (p past) fail(user, want string, args ...string) (out string) {
	p.Helper()
	status, out, errOut := call(p.args(user, args...)...)
	if status != 1 || !strings.Contains(errOut, want) {
		p.Errorf("%q: status %d, %q, %q, want %q", args, status, out, errOut, want)
	}
	return out
}

// A tenant finds who changed a Service, undoes it, and brings back what a colleague deleted. What the commands print,
// and ask, is shown in package client.
func TestPast_IsShownAndReversed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir, "--controllers=")
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	config := server.config(t)
	admin := kubernetes.NewForConfigOrDie(config)
	for _, user := range []string{"alice", "bob"} {
		for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view", "byre:history-viewer"} {
			if _, err := admin.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: user + "-" + strings.ReplaceAll(role, ":", "-")},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	as := func(user string) kubernetes.Interface {
		config := rest.CopyConfig(config)
		config.Impersonate.UserName = user
		return kubernetes.NewForConfigOrDie(config)
	}
	ports := []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
	created, err := as("alice").CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app.kubernetes.io/name": "web"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: ports},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(user, text string) string {
		t.Helper()
		patched, err := as(user).CoreV1().Services("default").Patch(t.Context(), "web", types.StrategicMergePatchType,
			[]byte(text), metav1.PatchOptions{FieldManager: user + "s-tool"})
		if err != nil {
			t.Fatal(err)
		}
		return patched.ResourceVersion
	}
	affinity := patch("bob", `{"spec":{"sessionAffinity":"ClientIP"},"metadata":{"annotations":{"note":"by bob"}}}`)

	p.run("alice",
		[]string{"create ", affinity, "bob", `metadata.annotations: <none>`, `spec.sessionAffinity: "None" → "ClientIP"`},
		"log", "service/web")
	p.run("alice", []string{"services/web"}, "log", "--since", "1h", "--who", "bob")
	p.run("alice", []string{"services/web"}, "log", "--since", "30d") // before the first revision
	if out := p.run("alice", nil, "log", "--who", "nobody"); strings.Contains(out, "web") {
		t.Errorf("the log of nobody is %s", out)
	}
	p.run("alice",
		[]string{"-  sessionAffinity: None\n", "+  sessionAffinity: ClientIP\n", "services/web at revision " + affinity},
		"diff", "svc", "web")
	if out := p.run("alice", []string{"sessionAffinity: None"}, "show", "svc/web", "--at",
		created.ResourceVersion); strings.Contains(out, "bob") {
		t.Errorf("the first version is %s", out)
	}
	p.fail("alice", "the namespace default was created after", "show", "svc/web", "--at", "-1d")
	p.fail("", "did not exist", "show", "svc/web", "--at", "-1d")
	p.fail("mallory", "forbidden", "log", "service/web")
	p.fail("alice", "forbidden", "log", "-A")

	var leaves []client.Leaf
	if err := json.Unmarshal([]byte(p.run("alice", nil, "blame", "service/web", "-o", "json")), &leaves); err != nil {
		t.Fatal(err)
	}
	blamed := map[string]string{}
	for _, leaf := range leaves {
		if leaf.Change == nil {
			t.Errorf("%s has no change", leaf.Path)
			continue
		}
		blamed[leaf.Path] = leaf.Change.Who + " " + strconv.FormatInt(leaf.Change.Revision, 10)
	}
	for path, want := range map[string]string{
		"spec.sessionAffinity": "bob " + affinity, "metadata.annotations.note": "bob " + affinity,
		"spec.ports[port=443,protocol=TCP].name":    "alice " + created.ResourceVersion,
		`metadata.labels["app.kubernetes.io/name"]`: "alice " + created.ResourceVersion,
	} {
		if blamed[path] != want {
			t.Errorf("%s is of %q, want %q", path, blamed[path], want)
		}
	}

	p.run("alice", []string{`replace spec.sessionAffinity "None"`, "is undone"}, "undo", affinity, "--yes")
	p.run("alice", []string{"nothing to undo"}, "undo", affinity, "--yes")
	undone, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || !reflect.DeepEqual(undone.Spec, created.Spec) || len(undone.Annotations) > 0 {
		t.Errorf("the Service is %+v, %v", undone, err)
	}
	first := patch("bob", `{"spec":{"sessionAffinity":"ClientIP"},"metadata":{"labels":{"tier":"front"}}}`)
	later := patch("alice", `{"metadata":{"labels":{"tier":"back"}}}`)
	p.fail("alice", "others have changed metadata.labels.tier (alice, revision "+later+")", "undo", first, "--yes")
	if now, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil ||
		now.ResourceVersion != later {
		t.Errorf("the Service is %+v, %v", now, err)
	}

	last, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := as("bob").CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another Service takes the address.
	if _, err := admin.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: corev1.ServiceSpec{ClusterIP: last.Spec.ClusterIP, Ports: ports},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.run("alice", []string{"left out: spec.clusterIP", "is created again"}, "undelete", "service/web", "--yes")
	p.run("alice", []string{"exists: nothing to do"}, "undelete", "service/web", "--yes")
	back, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*corev1.Service{back, last} {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	}
	if !reflect.DeepEqual(back.Spec, last.Spec) || !reflect.DeepEqual(back.Labels, last.Labels) || back.UID == last.UID {
		t.Errorf("the Service is %+v, want %+v", back, last)
	}
	// What created an object is undone by its deletion.
	p.run("alice", []string{"delete services/web", "is undone"}, "undo", back.ResourceVersion, "--yes")
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Image: "main"}}}}
	job, err := as("alice").BatchV1().Jobs("default").Create(t.Context(),
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: pod}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.run("alice", []string{"delete jobs.batch/once", "is undone"}, "undo", job.ResourceVersion, "--yes")
	if job, err = admin.BatchV1().Jobs("default").Get(t.Context(), "once",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Pods are to be left: %v, %v", job.Finalizers, err)
	}
	namespace, err := admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.fail("", "its deletion would delete all that it holds", "undo", namespace.ResourceVersion, "--yes")
	p.fail("alice", "has no version", "undelete", "service/never", "--yes")
	p.fail("alice", "not found", "undo", "123456789")
}

// transcript is what docs/tutorial.md shows of commands and their output. A number of the page, such
// as a revision, stands for another one here, which is bound where it is first met.
type transcript struct {
	*testing.T
	kubeconfig string
	bound      map[string]string
}

var (
	number = regexp.MustCompile(`\b\d{3,}\b`)
	// What differs from run to run: ages, times and UIDs.
	varying = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d+[smhd]\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b`)
	blanks  = regexp.MustCompile(` +(\n?)`)
	// An argument, which may be in double quotes.
	argument = regexp.MustCompile(`"([^"]*)"|\S+`)
)

// substitute puts the numbers of this run in place of those of the page.
func (s *transcript) substitute(text string) string {
	return number.ReplaceAllStringFunc(text, func(n string) string {
		if actual, ok := s.bound[n]; ok {
			return actual
		}
		return n
	})
}

// run runs a command of the page, and compares what it prints.
func (s *transcript) run(command, want string) {
	s.Helper()
	var args []string
	for _, arg := range argument.FindAllString(s.substitute(strings.TrimPrefix(command, "kubectl byre ")), -1) {
		args = append(args, strings.Trim(arg, `"`))
	}
	var out bytes.Buffer
	if status := run(s.Context(), "kubectl-byre", append(args, "--kubeconfig", s.kubeconfig), &out, &out); status != 0 {
		s.Fatalf("%s: status %d\n%s", command, status, out.String())
	}
	got := out.String()
	plain := func(text string) string {
		return varying.ReplaceAllString(strings.ReplaceAll(blanks.ReplaceAllString(text, " $1"), " \n", "\n"), "*")
	}
	actual := number.FindAllString(plain(got), -1)
	for i, n := range number.FindAllString(plain(want), -1) {
		if _, known := s.bound[n]; !known && i < len(actual) {
			s.bound[n] = actual[i]
		}
	}
	if plain(s.substitute(want)) != plain(got) {
		s.Errorf("%s prints\n%s\nthe page has\n%s", command, got, want)
	}
}

// The commands of docs/tutorial.md, from "What happened" on, print what it shows.
func TestTutorial_CommandsPrintWhatItShows(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What happened\n")
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			server := startServer(t, dir, append(flags(t), "--controllers=namespace-controller")...)
			changeAsTwoUsers(t, server.config(t))
			s := transcript{t, filepath.Join(dir, "admin.kubeconfig"), make(map[string]string)}
			commands := 0
			for i, block := range strings.Split(section, "```\n") {
				if i%2 == 0 {
					continue
				}
				command, output, _ := strings.Cut(strings.TrimPrefix(block, "$ "), "\n")
				if commands++; command == "kubectl delete namespace shop" {
					deleteNamespace(t, kubernetes.NewForConfigOrDie(server.config(t)), "shop")
					continue
				}
				s.run(command, output)
			}
			if commands < 10 {
				t.Errorf("the page has %d commands", commands)
			}
		})
	}
}

// changeAsTwoUsers does what the page has its reader do by kubectl.
func changeAsTwoUsers(t *testing.T, config *rest.Config) {
	t.Helper()
	as := func(user string) *kubernetes.Clientset {
		config := rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		config.UserAgent = "kubectl/v1.37.2"
		return kubernetes.NewForConfigOrDie(config)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	alice, bob := as("alice"), as("bob")
	ctx, create, patch := t.Context(), metav1.CreateOptions{FieldManager: "kubectl-create"},
		metav1.PatchOptions{FieldManager: "kubectl-patch"}
	must(alice.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, create))
	labels := map[string]string{"app": "web"}
	must(alice.AppsV1().Deployments("shop").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "shop:1.4"}}},
			}},
	}, create))
	must(alice.CoreV1().Services("shop").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, create))
	must(alice.CoreV1().ConfigMaps("shop").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"burst": "40", "rate": "20"},
	}, create))
	must(bob.AppsV1().Deployments("shop").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":30}}`),
		patch, "scale"))
	must(bob.CoreV1().ConfigMaps("shop").Patch(ctx, "limits", types.MergePatchType, []byte(`{"data":{"burst":"99"}}`),
		patch))
	must(nil, bob.CoreV1().Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}))
}

// newAnnotator serves a mutating webhook that sets the annotation "hooked" of the Deployments of who is called hooked.
func newAnnotator(t *testing.T) *httptest.Server {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if review.Request.UserInfo.Username == "hooked" {
			review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
			review.Response.Patch = []byte(`[{"op":"add","path":"/metadata/annotations/hooked","value":"yes"}]`)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	return hook
}

// Each way to write an object names its user as who set the fields that it has changed: also those that a webhook has
// set. That blame follows from the changes is shown in memory (TestBlame_EqualsTheLogOfRandomEdits in plugin).
func TestBlame_OfEachWayToWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startServer(t, dir, "--controllers=")
	p := past{t, filepath.Join(dir, "admin.kubeconfig")}
	config := server.config(t)
	as := func(user string) dynamic.ResourceInterface {
		config := rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		return dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "apps", Version: "v1",
			Resource: "deployments"}).Namespace("default")
	}
	must := func(_ *unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	patch := func(user string, kind types.PatchType, text string, subresources ...string) error {
		_, err := as(user).Patch(t.Context(), "d", kind, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	const identity = `"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"`
	must(as("created").Create(t.Context(),
		parseObject(t,
			`{`+identity+`,"annotations":{"made":"1","removed":"1"}},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":`+
				podOf("Always")+`}}`), metav1.CreateOptions{}))
	must(as("applied").Apply(t.Context(), "d", parseObject(t, `{`+identity+`,"labels":{"applied":"1"}}}`),
		metav1.ApplyOptions{FieldManager: "tool"}))
	now, err := as("updated").Get(t.Context(), "d", metav1.GetOptions{})
	must(now, err)
	now.SetAnnotations(map[string]string{"made": "1", "removed": "1", "updated": "1"})
	must(as("updated").Update(t.Context(), now, metav1.UpdateOptions{}))
	must(nil, patch("merged", types.MergePatchType, `{"metadata":{"annotations":{"merged":"1","removed":null}}}`))
	must(nil, patch("scaled", types.MergePatchType, `{"spec":{"replicas":3}}`, "scale"))
	must(nil, patch("status", types.MergePatchType, `{"status":{"observedGeneration":7}}`, "status"))
	must(nil, patch("strategic", types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}`))
	hook := newAnnotator(t)
	_, err = kubernetes.NewForConfigOrDie(config).AdmissionregistrationV1().MutatingWebhookConfigurations().Create(
		t.Context(), &registrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "annotator"},
			Webhooks: []registrationv1.MutatingWebhook{{
				Name: "annotator.example.com", SideEffects: new(registrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
				ClientConfig: registrationv1.WebhookClientConfig{URL: &hook.URL,
					CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
				Rules: []registrationv1.RuleWithOperations{{
					Operations: []registrationv1.OperationType{registrationv1.Update},
					Rule: registrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
						Resources: []string{"deployments"}},
				}},
			}},
		}, metav1.CreateOptions{})
	must(nil, err)
	written := 0
	storetest.EventuallyDone(t, "the webhook is called", func(context.Context) (bool, error) {
		written++
		err := patch("hooked", types.JSONPatchType,
			fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/patched","value":"%d"}]`, written))
		now, getErr := as("hooked").Get(t.Context(), "d", metav1.GetOptions{})
		return getErr == nil && now.GetAnnotations()["hooked"] != "", err
	})

	var leaves []client.Leaf
	if err := json.Unmarshal([]byte(p.run("", nil, "blame", "deployments/d", "-o", "json")), &leaves); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, leaf := range leaves {
		if leaf.Change == nil || leaf.Change.RealUser != "byre-admin" {
			t.Errorf("%s is of %+v", leaf.Path, leaf.Change)
			continue
		}
		found[leaf.Path] = strings.TrimSuffix(leaf.Change.Who+"/"+leaf.Change.Subresource, "/")
	}
	for path, want := range map[string]string{
		"metadata.name": "created", "metadata.annotations.made": "created", "metadata.labels.applied": "applied",
		"metadata.annotations.updated": "updated",
		"metadata.annotations.merged":  "merged", "metadata.annotations.removed": "", "spec.replicas": "scaled/scale",
		"status.observedGeneration":                   "status/status",
		"spec.template.spec.containers[name=a].image": "strategic", "metadata.annotations.patched": "hooked",
		"metadata.annotations.hooked": "hooked",
	} {
		if found[path] != want {
			t.Errorf("%s is %q's, want %q's", path, found[path], want)
		}
	}
}

// All that shows fields has one grammar of paths, with the keys of the schema; undo tests and replaces at the leaf:
// of a built-in object and of a custom one, on both databases.
func TestPast_NamesLeavesByTheirKeys(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]func(*testing.T, string) string{
		"sqlite":     func(_ *testing.T, dir string) string { return "sqlite://" + filepath.Join(dir, "byre.db") },
		"postgresql": func(t *testing.T, _ string) string { return pgtest.DSN(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			server := startServer(t, dir, "--controllers=", "--endpoint", endpoint(t, dir))
			p := past{t, filepath.Join(dir, "admin.kubeconfig")}
			config := server.config(t)
			as := func(user string) dynamic.Interface {
				config := rest.CopyConfig(config)
				config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
				return dynamic.NewForConfigOrDie(config)
			}
			defineHarbors(t, as("admin"))
			storetest.EventuallyDone(t, "the schema is published", func(context.Context) (bool, error) {
				documents := discovery.NewDiscoveryClientForConfigOrDie(config).OpenAPIV3()
				_, err := openapi3.NewRoot(documents).GVSpec(schema.GroupVersion{Group: "example.com", Version: "v1"})
				return err == nil, nil
			})
			for _, of := range []struct {
				gvr                                    schema.GroupVersionResource
				object                                 string
				change, other, same, path, former, key string
			}{
				{
					schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
					`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x","labels":{"a":"1"}},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"a:1","ports":[{"name":"dns","containerPort":53,"protocol":"UDP"}]},{"name":"b","image":"b:1"}]}}}}`,
					`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"a:2"},{"op":"replace","path":"/metadata/labels/a","value":"2"}]`,
					`[{"op":"replace","path":"/spec/template/spec/containers/1/image","value":"b:2"},{"op":"add","path":"/metadata/labels/b","value":"2"}]`,
					`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"a:3"}]`,
					"spec.template.spec.containers[name=a].image", `"a:1"`,
					"spec.template.spec.containers[name=a].ports[containerPort=53,protocol=UDP].name",
				},
				{
					schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "harbors"},
					`{"apiVersion":"example.com/v1","kind":"Harbor","metadata":{"name":"x"},"spec":{"berths":[{"name":"n","pier":"east","ship":"s1"},{"name":"n","pier":"west","ship":"s2"}]}}`,
					`[{"op":"replace","path":"/spec/berths/0/ship","value":"s3"}]`,
					`[{"op":"replace","path":"/spec/berths/1/ship","value":"s4"}]`,
					`[{"op":"replace","path":"/spec/berths/0/ship","value":"s5"}]`,
					"spec.berths[pier=east].ship", `"s1"`, "spec.berths[pier=west].name",
				},
			} {
				kind := of.gvr.Resource + "." + of.gvr.Group + "/x"
				if _, err := as("alice").Resource(of.gvr).Namespace("default").Create(t.Context(), parseObject(t, of.object),
					metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				patch := func(user, text string) string {
					t.Helper()
					patched, err := as(user).Resource(of.gvr).Namespace("default").Patch(t.Context(), "x", types.JSONPatchType,
						[]byte(text), metav1.PatchOptions{FieldManager: user})
					if err != nil {
						t.Fatal(err)
					}
					return patched.GetResourceVersion()
				}
				changed := patch("bob", of.change)
				p.run("", []string{of.path + ": " + of.former + " → "}, "log", kind)
				p.run("", []string{`"path": "` + of.path + `"`}, "diff", kind, "-o", "json")
				if out := p.run("", nil, "sql", "SELECT path FROM field_changes WHERE revision = "+changed); !strings.Contains(out,
					of.path+"\n") {
					t.Errorf("field_changes has %s", out)
				}
				patch("carol", of.other)
				blamed := map[string]string{}
				var leaves []client.Leaf
				if err := json.Unmarshal([]byte(p.run("", nil, "blame", kind, "-o", "json")), &leaves); err != nil {
					t.Fatal(err)
				}
				for _, leaf := range leaves {
					blamed[leaf.Path] = leaf.Change.Who + " " + leaf.Change.Verb + " " + leaf.Change.Manager
				}
				if blamed[of.path] != "bob patch bob" || !strings.HasPrefix(blamed[of.key], "alice create ") {
					t.Errorf("it is of %v", blamed)
				}
				p.run("", []string{"replace " + of.path + " " + of.former, "is undone"}, "undo", changed, "--yes")
				leaves = nil
				if err := json.Unmarshal([]byte(p.run("", nil, "blame", kind, "-o", "json")), &leaves); err != nil {
					t.Fatal(err)
				}
				for _, leaf := range leaves {
					value, _ := json.Marshal(leaf.Value)
					if leaf.Path == of.path && string(value) != of.former {
						t.Errorf("%s is %s, want %s", leaf.Path, value, of.former)
					}
					if blamed[leaf.Path] == "carol patch carol" && leaf.Change.Who != "carol" {
						t.Errorf("%s, which carol has set, is of %+v", leaf.Path, leaf.Change)
					}
				}
				changed = patch("bob", of.change)
				later := patch("dave", of.same)
				p.fail("", "others have changed "+of.path+" (dave, revision "+later+")", "undo", changed, "--yes")
			}
			p.fail("", "does not exist", "blame", "deployment/none")
			p.fail("mallory", "forbidden", "blame", "deployment/x")
		})
	}
}

// defineHarbors defines a custom resource with a list that has a key which is not a name.
func defineHarbors(t *testing.T, client dynamic.Interface) {
	t.Helper()
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	_, err := client.Resource(definitions).Create(t.Context(), parseObject(t, `{
		"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"harbors.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"harbors","kind":"Harbor"},"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"berths":{"type":"array",
		"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["pier"],"items":{"type":"object","required":["pier"],"properties":{
		"pier":{"type":"string"},"name":{"type":"string"},"ship":{"type":"string"}}}}}}}}}}]}}`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the resource is served", func(ctx context.Context) (bool, error) {
		_, err := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
			Resource: "harbors"}).List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
}

// inNamespace are objects of the resources of a namespace, without their names.
var inNamespace = []struct{ version, resource, kind, content string }{
	{"v1", "serviceaccounts", "ServiceAccount", `"automountServiceAccountToken":false`},
	{"v1", "configmaps", "ConfigMap", `"data":{"a":"1"},"binaryData":{"b":"AAE="}`},
	{"v1", "secrets", "Secret", `"type":"Opaque","data":{"password":"c2VjcmV0"}`},
	{"v1", "persistentvolumeclaims", "PersistentVolumeClaim",
		`"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`},
	{"v1", "services", "Service", `"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`},
	{"v1", "podtemplates", "PodTemplate", `"template":` + podOf("Always")},
	{"v1", "pods", "Pod", `"spec":{"serviceAccountName":"main","containers":[{"name":"a","image":"a"}]}`},
	{"v1", "replicationcontrollers", "ReplicationController",
		`"spec":{"replicas":1,"selector":{"a":"b"},"template":` + podOf("Always") + `}`},
	{"v1", "limitranges", "LimitRange", `"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"9Gi"}}]}`},
	{"v1", "resourcequotas", "ResourceQuota", `"spec":{"hard":{"count/nothing.example.com":"5"}}`},
	{"apps/v1", "deployments", "Deployment",
		`"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "replicasets", "ReplicaSet",
		`"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "statefulsets", "StatefulSet",
		`"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "daemonsets", "DaemonSet",
		`"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Always") + `}`},
	{"apps/v1", "controllerrevisions", "ControllerRevision", `"revision":1,"data":{"a":1}`},
	{"batch/v1", "jobs", "Job", `"spec":{"template":` + podOf("Never") + `}`},
	{"batch/v1", "jobs", "Job",
		`"spec":{"manualSelector":true,"selector":{"matchLabels":{"a":"b"}},"template":` + podOf("Never") + `}`},
	{"batch/v1", "cronjobs", "CronJob",
		`"spec":{"schedule":"0 0 * * *","jobTemplate":{"spec":{"template":` + podOf("Never") + `}}}`},
	{"autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler",
		`"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`},
	{"policy/v1", "poddisruptionbudgets", "PodDisruptionBudget",
		`"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`},
	{"networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", `"spec":{"podSelector":{},"policyTypes":["Ingress"]}`},
	{"networking.k8s.io/v1", "ingresses", "Ingress",
		`"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`},
	{"rbac.authorization.k8s.io/v1", "roles", "Role", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]`},
	{"rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding",
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"u"}]`},
	{"storage.k8s.io/v1", "csistoragecapacities", "CSIStorageCapacity", `"storageClassName":"s","capacity":"1Gi"`},
	{"resource.k8s.io/v1", "resourceclaims", "ResourceClaim",
		`"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}`},
	{"example.com/v1", "gears", "Gear", `"spec":{"teeth":12,"name":"g"}`},
}

func podOf(restart string) string {
	return `{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"` + restart +
		`","containers":[{"name":"a","image":"a"}]}}`
}

// defineGears defines a custom resource.
func defineGears(t *testing.T, client dynamic.Interface) {
	t.Helper()
	definitions := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	_, err := client.Resource(definitions).Create(t.Context(), parseObject(t, `{
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
		list, err := client.Resource(version.WithResource(of.resource)).Namespace(namespace).List(t.Context(),
			metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			var owners []string
			for _, owner := range object.GetOwnerReferences() {
				owners = append(owners, owner.Kind+"/"+owner.Name)
			}
			if manual, _, _ := unstructured.NestedBool(object.Object, "spec", "manualSelector"); of.resource == "jobs" &&
				!manual {
				unstructured.RemoveNestedField(object.Object, "spec", "selector")
				unstructured.RemoveNestedField(object.Object, "spec", "template", "metadata", "labels", "controller-uid")
				unstructured.RemoveNestedField(object.Object, "spec", "template", "metadata", "labels",
					"batch.kubernetes.io/controller-uid")
			}
			content, name := object.Object, of.resource+"/"+object.GetName()
			content["metadata"] = map[string]any{"labels": object.GetLabels(), "annotations": object.GetAnnotations(),
				"owners": owners, "finalizers": object.GetFinalizers()}
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
			_, err := client.CoreV1().PersistentVolumeClaims(name).Patch(ctx, claims.Items[i].Name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		_, err = client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// An object of each kind is deleted with the namespace and brought back; some own others. That the plan is right for
// random namespaces is shown in memory (TestUndelete_BringsBackANamespace in plugin).
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
	if _, err := admin.CoreV1().ServiceAccounts("shop").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "main"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the ServiceAccount default is there", func() error {
		_, err := admin.CoreV1().ServiceAccounts("shop").Patch(t.Context(), "default", types.MergePatchType,
			[]byte(`{"imagePullSecrets":[{"name":"registry"}]}`), metav1.PatchOptions{})
		return err
	})
	var owner *unstructured.Unstructured
	create := func(i int, name, controller string) {
		t.Helper()
		of := inNamespace[i%len(inNamespace)]
		owners := ""
		if owner != nil {
			owners = fmt.Sprintf(`,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q%s}]`, owner.GetAPIVersion(),
				owner.GetKind(), owner.GetName(), owner.GetUID(), controller)
		}
		version, err := schema.ParseGroupVersion(of.version)
		if err != nil {
			t.Fatal(err)
		}
		object := parseObject(t,
			fmt.Sprintf(
				`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"number":"%d"},"annotations":{"a/b":"%d"}%s},%s}`,
				of.version, of.kind, name, i, i, owners, of.content))
		// a custom resource is served after its definition is there
		storetest.EventuallySucceeds(t, "the object is created", func() error {
			created, err := objects.Resource(version.WithResource(of.resource)).Namespace("shop").Create(t.Context(), object,
				metav1.CreateOptions{})
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
	if account, err := admin.CoreV1().ServiceAccounts("shop").Get(t.Context(), "default",
		metav1.GetOptions{}); err != nil || len(account.ImagePullSecrets) != 1 {
		t.Errorf("the ServiceAccount default is %v, %v", account, err)
	}
	p.run("", []string{"nothing to do"}, "undelete", "-n", "shop", "--yes")
	definitions := objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
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
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	const version = `{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`
	if _, err := definitions.Create(t.Context(), parseObject(t, fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gears.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gears","kind":"Gear"},"versions":[`+version+","+version+"]}}", "v1", true, false, "v1beta1", true, true)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gears := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
		Resource: "gears"}).Namespace("default")
	maps := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	var gear *unstructured.Unstructured
	create := func() {
		storetest.EventuallyDone(t, "a gear", func(ctx context.Context) (created bool, err error) {
			gear, err = gears.Create(ctx,
				parseObject(t, `{"apiVersion":"example.com/v1","kind":"Gear","metadata":{"name":"g"},"spec":{"teeth":1}}`),
				metav1.CreateOptions{})
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
	m, err := maps.Create(t.Context(),
		parseObject(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"v":"old"}}`),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := definitions.Patch(t.Context(), "gears.example.com", types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"versions":[`+version+","+version+`]}}`, "v1", true, true, "v1beta1", false, false),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []struct {
		of   dynamic.ResourceInterface
		name string
		text string
	}{{gears, "g", `{"spec":{"teeth":2}}`}, {maps, "m", `{"data":{"v":"new"}}`}} {
		if _, err := patch.of.Patch(t.Context(), patch.name, types.MergePatchType, []byte(patch.text),
			metav1.PatchOptions{}); err != nil {
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
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
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
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Data: map[string]string{"v": "old"}}
		if name == "controlled" {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Gone", Name: "g", UID: "g",
				Controller: new(true)}}
			m.Finalizers = []string{"example.com/keep"} // the garbage collector finds no owner
		}
		must(maps.Create(t.Context(), m, metav1.CreateOptions{}))
	}
	service, err := admin.CoreV1().Services("shop").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(service, err)
	at := service.ResourceVersion

	patch("changed", `{"data":{"v":"new"},"metadata":{"labels":{"app":"other"},"finalizers":["example.com/kept"]}}`)
	patch("sealed", `{"data":{"v":"new"},"immutable":true}`)
	patch("controlled", `{"data":{"v":"new"}}`)
	must(nil, maps.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	must(maps.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "created", Labels: map[string]string{"app": "created"}}},
		metav1.CreateOptions{}))
	// A Service that is created again has another address, which can't be changed.
	must(nil, admin.CoreV1().Services("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	again := service.DeepCopy()
	again.UID, again.ResourceVersion, again.Spec.ClusterIP, again.Spec.ClusterIPs = "", "", "", nil
	again.Spec.Ports[0].Port = 81
	again, err = admin.CoreV1().Services("shop").Create(t.Context(), again, metav1.CreateOptions{})
	must(again, err)
	must(admin.CoreV1().Services("shop").Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`), metav1.PatchOptions{}, "status"))

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
	var out string
	storetest.Eventually(t, "alice may list what she was granted", func() bool {
		_, out, _ = call(p.args("alice", rollback()...)...) // it asks, and gets no answer
		return strings.Contains(out, "configmaps/deleted") && strings.Contains(out, "services/web")
	})
	out = p.fail("alice", "nothing done", rollback()...)
	for _, want := range []string{"create configmaps/deleted", `replace data.v "old"`, "update services/web",
		"configmaps/created (created since; --prune deletes it)", "1 objects that controllers own"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "configmaps/same") {
		t.Errorf("what has not changed is in the plan: %s", out)
	}
	p.run("alice", []string{"configmaps/deleted is created again (server dry run)"},
		rollback("-l", "app in (changed,deleted)", "--dry-run=server")...)
	if data("deleted") != "gone" {
		t.Error("a dry run has created an object")
	}
	if out := p.run("alice", []string{"configmaps/changed is as it was"},
		rollback("-l", "app=changed", "--yes")...); strings.Contains(out, "deleted") {
		t.Errorf("the selector selects more: %s", out)
	}
	// Names are not what a terminal obeys.
	hostile := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x\x1b[1A\u009b2K\u202e"}}
	must(admin.RbacV1().Roles("shop").Create(t.Context(), hostile, metav1.CreateOptions{}))
	if out := p.fail("", "nothing done", rollback("--prune")...); !strings.Contains(out,
		"delete roles.rbac.authorization.k8s.io/x") || strings.ContainsAny(out, "\x1b\u009b\u202e") {
		t.Errorf("%q", out)
	}
	must(nil, admin.RbacV1().Roles("shop").Delete(t.Context(), hostile.Name, metav1.DeleteOptions{}))
	p.fail("alice", "1 of 3 requests failed", rollback("--yes")...) // an immutable ConfigMap
	for name, want := range map[string]string{"changed": "old", "deleted": "old", "sealed": "new", "controlled": "new",
		"same": "old", "created": ""} {
		if got := data(name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if m, err := maps.Get(t.Context(), "changed", metav1.GetOptions{}); err != nil || m.Labels["app"] != "changed" ||
		len(m.Finalizers) != 1 {
		t.Errorf("the ConfigMap is %+v, %v", m, err)
	}
	if s, err := admin.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{}); err != nil ||
		s.Spec.ClusterIP != again.Spec.ClusterIP ||
		s.Spec.Ports[0].Port != 80 || len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service is %+v, %v", s, err)
	}
	must(nil, maps.Delete(t.Context(), "sealed", metav1.DeleteOptions{}))
	p.run("alice", []string{"configmaps/created is deleted", "configmaps/sealed is created again"},
		rollback("--prune", "--yes")...)
	if data("created") != "gone" || data("sealed") != "old" {
		t.Error("not all is as it was")
	}
	p.run("alice", []string{"nothing to do"}, rollback("--prune", "--yes")...)
}

// kubectl completes the arguments of its plugin by a program of this name. What is completed is shown in package
// client.
func TestPast_NamesAreCompleted(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, isThere := map[string]string{
			"/api":               `{"kind":"APIVersions","versions":["v1"]}`,
			"/apis":              `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			"/api/v1":            `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"namespaces","kind":"Namespace"}]}`,
			"/api/v1/namespaces": `{"kind":"NamespaceList","apiVersion":"v1","items":[{"metadata":{"name":"shop"}}]}`,
		}[r.URL.Path]
		if !isThere {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	for line, want := range map[string]string{
		"roll": "rollback\tMake the objects of a namespace again what they were\n:4\n",
		"log --server " + server.URL + " namespaces/s": "namespaces/shop\n:4\n",
	} {
		var out strings.Builder
		if status := run(t.Context(), "/usr/bin/kubectl_complete-byre", strings.Fields(line), &out,
			io.Discard); status != 0 || out.String() != want {
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
			fmt.Fprint(w,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"the history of pods begins at noon"}`)
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
	if _, errOut, _ = strings.Cut(errOut, "\n"); out != "REVISION\nnew\n" ||
		errOut != "not all changes are there any more: the history of pods begins at noon\n" {
		t.Errorf("the log is %q, %q", out, errOut)
	}
}
