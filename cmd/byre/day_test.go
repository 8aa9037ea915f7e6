package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

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
	ctx, create, patch := t.Context(), metav1.CreateOptions{FieldManager: "kubectl-create"}, metav1.PatchOptions{FieldManager: "kubectl-patch"}
	must(alice.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, create))
	labels := map[string]string{"app": "web"}
	must(alice.AppsV1().Deployments("shop").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "shop:1.4"}}},
		}},
	}, create))
	must(alice.CoreV1().Services("shop").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, create))
	must(alice.CoreV1().ConfigMaps("shop").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"burst": "40", "rate": "20"},
	}, create))
	must(bob.AppsV1().Deployments("shop").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":30}}`), patch, "scale"))
	must(bob.CoreV1().ConfigMaps("shop").Patch(ctx, "limits", types.MergePatchType, []byte(`{"data":{"burst":"99"}}`), patch))
	must(nil, bob.CoreV1().Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}))
}
