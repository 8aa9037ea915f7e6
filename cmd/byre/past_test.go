package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/cmd/byre/client"
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

// A tenant finds who changed a Service, undoes it, and brings back what a colleague deleted. What the commands print, and ask, is
// shown in package client.
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
		patched, err := as(user).CoreV1().Services("default").Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{FieldManager: user + "s-tool"})
		if err != nil {
			t.Fatal(err)
		}
		return patched.ResourceVersion
	}
	affinity := patch("bob", `{"spec":{"sessionAffinity":"ClientIP"},"metadata":{"annotations":{"note":"by bob"}}}`)

	p.run("alice", []string{"create ", affinity, "bob", `metadata.annotations: <none>`, `spec.sessionAffinity: "None" → "ClientIP"`}, "log", "service/web")
	p.run("alice", []string{"services/web"}, "log", "--since", "1h", "--who", "bob")
	p.run("alice", []string{"services/web"}, "log", "--since", "30d") // before the first revision
	if out := p.run("alice", nil, "log", "--who", "nobody"); strings.Contains(out, "web") {
		t.Errorf("the log of nobody is %s", out)
	}
	p.run("alice", []string{"-  sessionAffinity: None\n", "+  sessionAffinity: ClientIP\n", "services/web at revision " + affinity}, "diff", "svc", "web")
	if out := p.run("alice", []string{"sessionAffinity: None"}, "show", "svc/web", "--at", created.ResourceVersion); strings.Contains(out, "bob") {
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
		"spec.ports[name=https].port":               "alice " + created.ResourceVersion,
		`metadata.labels["app.kubernetes.io/name"]`: "alice " + created.ResourceVersion,
	} {
		if blamed[path] != want {
			t.Errorf("%s is of %q, want %q", path, blamed[path], want)
		}
	}

	p.run("alice", []string{`replace /spec/sessionAffinity "None"`, "is undone"}, "undo", affinity, "--yes")
	p.run("alice", []string{"nothing to undo"}, "undo", affinity, "--yes")
	undone, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || !reflect.DeepEqual(undone.Spec, created.Spec) || len(undone.Annotations) > 0 {
		t.Errorf("the Service is %+v, %v", undone, err)
	}
	first := patch("bob", `{"spec":{"sessionAffinity":"ClientIP"},"metadata":{"labels":{"tier":"front"}}}`)
	later := patch("alice", `{"metadata":{"labels":{"tier":"back"}}}`)
	p.fail("alice", "others have changed /metadata/labels/tier", "undo", first, "--yes")
	if now, err := admin.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil || now.ResourceVersion != later {
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
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "main"}}}}
	job, err := as("alice").BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: pod}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.run("alice", []string{"delete jobs.batch/once", "is undone"}, "undo", job.ResourceVersion, "--yes")
	if job, err = admin.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Pods are to be left: %v, %v", job.Finalizers, err)
	}
	namespace, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.fail("", "its deletion would delete all that it holds", "undo", namespace.ResourceVersion, "--yes")
	p.fail("alice", "has no version", "undelete", "service/never", "--yes")
	p.fail("alice", "not found", "undo", "123456789")
}
