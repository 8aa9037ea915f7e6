package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// kubernetesOwn matches rows of what Kubernetes itself makes in each cluster.
var kubernetesOwn = regexp.MustCompile(`system:|kube-|kubeadm:|,ServiceAccount,`)

// timeOfChange matches the time of a change.
var timeOfChange = regexp.MustCompile(`[0-9-]{10}T[0-9:]{8}\.[0-9]{6}Z`)

// answers are the other rows of the statements of docs/sql.md, by their comments.
var answers = map[string]string{
	"which images run, by tag, in how many containers":     "example.org/web:1,2|example.org/log:2,1",
	"what the Pods of each node ask for, of what it has":   "n1,0.25,4,67108864,8589934592|n2,0.25,0.5,,",
	"which containers have no memory limit":                "shop,web-2,log|shop,web-2,web",
	"which Pods are on a node":                             "shop,web-1,Running",
	"what is known of a Pod that does not run":             "2026-01-02T03:04:05Z,FailedMount,3,no such volume",
	"which workloads have fewer ready Pods than they want": "deployments,shop,web,1,3",
	"which Services select no Pod":                         "shop,idle",
	"which ConfigMaps no Pod uses":                         "shop,forgotten",
	"which claims no Pod mounts":                           "shop,spare",
	"which nodes are not well":                             "n2,DiskPressure,True,KubeletHasDiskPressure|n2,Ready,Unknown,NodeStatusUnknown",
	"which values a label has":                             "deployments,web,1|pods,web,2",
	"who may read the Secrets of a namespace":              ",User,carol|shop,User,alice",
	"which Pods are on nodes that take no more":            "shop,web-2,n2",
	"which Pods use a Secret":                              "shop,web-1|shop,web-2",
	"which field managers have created ConfigMaps":         "byre.test,3",
	"who has scaled a Deployment since yesterday":          "TIME,erin,2,3",
	"what a deleted ConfigMap held":                        `TIME,frank,"{""color"":""blue""}"`,
	"which Pods were on a node an hour ago":                "",
	"what has changed in a namespace since a deployment":   "TIME,erin,patch,deployments,web|TIME,byre-admin,create,configmaps,retired|TIME,frank,delete,configmaps,retired",
}

// The statements of docs/sql.md give the rows that its reader expects. It begins with twelve.
func TestSQL_AnswersTheManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	statements := map[string]string{}
	for _, block := range strings.Split(string(text), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for statement := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(block), ";"), ";\n") {
			question, statement, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(statement), "-- "), "\n")
			statements[question] = statement
		}
	}
	if _, begin, _ := strings.Cut(string(text), "\n## "); strings.Count(begin[:strings.Index(begin, "\n## ")], "\n-- ") != 12 {
		t.Error("the page does not begin with twelve questions")
	}
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, append(flags(t), "--disable-admission-plugins=ServiceAccount")...)
			h.makeNamespace("shop")
			h.createAll("testdata/query-manual.yaml")
			h.changeForTheManual()
			for question, statement := range statements {
				rows := slices.DeleteFunc(h.csv("", statement), kubernetesOwn.MatchString)
				got := timeOfChange.ReplaceAllString(strings.Join(rows, "|"), "TIME")
				if want, ok := answers[question]; !ok || got != want {
					t.Errorf("%s:\n%s\n%q, want %q", question, statement, rows, want)
				}
			}
			for question := range answers {
				if statements[question] == "" {
					t.Errorf("the manual does not ask %s", question)
				}
			}
		})
	}
}

// changeForTheManual makes the changes that the manual asks for.
func (h *chronicle) changeForTheManual() {
	h.Helper()
	as := func(user string) *kubernetes.Clientset {
		config := rest.CopyConfig(h.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		return kubernetes.NewForConfigOrDie(config)
	}
	patch := func(user, change string) {
		_, err := as(user).AppsV1().Deployments("shop").Patch(h.Context(), "web", types.MergePatchType, []byte(change), metav1.PatchOptions{})
		h.must(err)
	}
	patch("dave", `{"spec":{"template":{"metadata":{"annotations":{"deployed":"now"}}}}}`)
	patch("erin", `{"spec":{"replicas":3}}`)
	_, err := h.kube.CoreV1().ConfigMaps("shop").Create(h.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "retired"}, Data: map[string]string{"color": "blue"}}, metav1.CreateOptions{})
	h.must(err)
	h.must(as("frank").CoreV1().ConfigMaps("shop").Delete(h.Context(), "retired", metav1.DeleteOptions{}))
}

// createAll creates the objects in a file of YAML, with their status.
func (h *chronicle) createAll(file string) {
	h.Helper()
	client, err := dynamic.NewForConfig(h.config)
	h.must(err)
	text, err := os.ReadFile(file)
	h.must(err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object unstructured.Unstructured
		h.must(yaml.Unmarshal([]byte(document), &object.Object))
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		objects := client.Resource(resource).Namespace(object.GetNamespace())
		created, err := objects.Create(h.Context(), &object, metav1.CreateOptions{FieldManager: "byre.test"})
		h.must(err)
		if status := object.Object["status"]; status != nil {
			created.Object["status"] = status
			_, err := objects.UpdateStatus(h.Context(), created, metav1.UpdateOptions{})
			h.must(err)
		}
	}
}
