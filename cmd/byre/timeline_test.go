package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"byre/sqlstore/storetest"
)

// incident is a namespace with the Deployment web, in which something breaks.
type incident struct {
	*testing.T
	config    *rest.Config
	namespace string
}

// as returns a client for a user, who may do everything.
func (i *incident) as(user string) kubernetes.Interface {
	config := rest.CopyConfig(i.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	return kubernetes.NewForConfigOrDie(config)
}

// of is the path of objects of the namespace.
func (i *incident) of(version, objects string) string {
	root := "/apis/"
	if version == "v1" {
		root = "/api/"
	}
	return root + version + "/namespaces/" + i.namespace + "/" + objects
}

// do sends a request with a body in YAML.
func (i *incident) do(user, method, path, text string) {
	i.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		i.Fatal(err)
	}
	request := i.as(user).CoreV1().RESTClient().Verb(method).AbsPath(path).SetHeader("Content-Type", "application/json")
	if method == http.MethodPatch {
		request = request.SetHeader("Content-Type", string(types.StrategicMergePatchType))
		if strings.Contains(path, "example.com") { // a definition or a custom resource
			request = request.SetHeader("Content-Type", string(types.MergePatchType))
		}
	}
	if text != "" {
		request = request.Body(body)
	}
	if err := request.Do(i.Context()).Error(); err != nil {
		i.Fatalf("%s %s: %v", method, path, err)
	}
}

func (i *incident) create(user, path, text string) {
	i.Helper()
	i.do(user, http.MethodPost, path, text)
}

func (i *incident) patch(user, path, text string) {
	i.Helper()
	i.do(user, http.MethodPatch, path, text)
}

// deploy makes the Deployment, and what belongs to it, on the Nodes of a pool. The Pods tolerate that no kubelet says
// that the Nodes are ready.
func (i *incident) deploy(pool string) {
	i.Helper()
	i.create("setup", "/api/v1/namespaces", `metadata: {name: `+i.namespace+`}`)
	awaitAccount(i.T, i.as("setup"), i.namespace)
	i.create("setup", i.of("v1", "secrets"), `{metadata: {name: db}, stringData: {password: secret}}`)
	i.create("setup", i.of("v1", "secrets"), `{metadata: {name: web-tls}, stringData: {tls.crt: old}}`)
	i.create("setup", i.of("v1", "services"),
		`{metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}`)
	i.create("setup", i.of("networking.k8s.io/v1", "ingresses"), `{metadata: {name: web}, spec: {
		tls: [{secretName: web-tls}], defaultBackend: {service: {name: web, port: {number: 80}}}}}`)
	i.create("setup", i.of("apps/v1", "deployments"), `{metadata: {name: web}, spec: {replicas: 2,
		selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {
		nodeSelector: {pool: `+pool+`}, tolerations: [{operator: Exists}], terminationGracePeriodSeconds: 0,
		containers: [{name: c, image: "web:1", envFrom: [{secretRef: {name: db}}]}]}}}}`)
	i.await("two available Pods", func(ctx context.Context) (bool, error) {
		pods, err := i.pods(ctx)
		for n := range pods {
			if pods[n].Spec.NodeName != "" && pods[n].Status.Phase == corev1.PodPending {
				_, err := i.as("system:node:"+pods[n].Spec.NodeName).CoreV1().Pods(i.namespace).Patch(ctx, pods[n].Name,
					types.StrategicMergePatchType, []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`),
					metav1.PatchOptions{}, "status")
				if err != nil {
					return false, err
				}
			}
		}
		if err != nil {
			return false, err
		}
		web, err := i.as("setup").AppsV1().Deployments(i.namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && web.Status.AvailableReplicas == 2, err
	})
}

func (i *incident) await(what string, condition func(context.Context) (bool, error)) {
	i.Helper()
	storetest.EventuallyDone(i.T, what, condition)
}

func (i *incident) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := i.as("setup").CoreV1().Pods(i.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (i *incident) awaitPods(more int) {
	i.Helper()
	i.await("Pods", func(ctx context.Context) (bool, error) {
		pods, err := i.pods(ctx)
		return len(pods) >= more, err
	})
}

func (i *incident) awaitEvent(reason string) {
	i.Helper()
	i.await("an Event "+reason, func(ctx context.Context) (bool, error) {
		list, err := i.as("setup").CoreV1().Events(i.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		return err == nil && len(list.Items) > 0, err
	})
}

func (i *incident) awaitReplicas(want int32) {
	i.Helper()
	i.await("the replicas of the autoscaler", func(ctx context.Context) (bool, error) {
		web, err := i.as("setup").AppsV1().Deployments(i.namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && *web.Spec.Replicas == want, err
	})
}

// A timeline names the cause of incidents in its first screen, whatever controllers write meanwhile.
func TestTimeline_NamesTheCauseOfIncidents(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--with-scheduler", "--with-controller-manager")
	config := server.config(t)
	const scaled = `spec: {replicas: 4}`
	nodes := &incident{t, config, ""}
	for _, name := range []string{"shared", "drained"} {
		createReadyNode(t, nodes.as("setup"), name)
		nodes.patch("setup", "/api/v1/nodes/"+name, `metadata: {labels: {pool: `+name+`}}`)
	}
	nodes.create("setup", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{
		metadata: {name: gadgets.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: gadgets, kind: Gadget}, versions: [{name: v1, served: true, storage: true,
		schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`)
	for _, c := range []struct {
		name string
		// stage breaks something, and returns the object of the timeline if it is not the Deployment.
		stage func(i *incident) string
		// want are the words of the row of the cause, and also those of another row.
		want, also []string
	}{
		{"image-typo", func(i *incident) string {
			i.patch("ci", i.of("apps/v1", "deployments/web"), `spec: {template: {spec: {containers: [{name: c, image: "wbe:2"}]}}}`)
			i.awaitPods(3)
			pods, err := i.pods(i.Context())
			if err != nil {
				i.Fatal(err)
			}
			for n := range pods {
				if pods[n].Spec.Containers[0].Image == "wbe:2" {
					i.create("system:node:shared", i.of("v1", "events"), fmt.Sprintf(`{metadata: {generateName: pull}, type: Warning,
						reason: Failed, message: "wbe:2: not found", source: {component: kubelet}, lastTimestamp: %s,
						involvedObject: {apiVersion: v1, kind: Pod, name: %s, namespace: %s}}`,
						time.Now().UTC().Format(time.RFC3339), pods[n].Name, i.namespace))
				}
			}
			return ""
		}, []string{"ci", "patch", "deployments.apps/web", `image: "web:1" → "wbe:2"`, "itself", "by controllers"},
			[]string{"event", "wbe:2: not found"}},
		{"deleted-secret", func(i *incident) string {
			i.do("bob", http.MethodDelete, i.of("v1", "secrets/db"), "")
			return ""
		}, []string{"bob", "delete", "secrets/db", "named by deployments.apps/web"}, nil},
		{"quota", func(i *incident) string {
			i.create("carol", i.of("v1", "resourcequotas"), `{metadata: {name: small}, spec: {hard: {pods: "2"}}}`)
			i.patch("alice", i.of("apps/v1", "deployments/web"), scaled)
			i.awaitEvent("FailedCreate")
			return ""
		}, []string{"carol", "create", "resourcequotas/small", "limits its namespace"},
			[]string{"event", "FailedCreate", "exceeded quota"}},
		{"wrong-selector", func(i *incident) string {
			i.patch("bob", i.of("v1", "services/web"), `spec: {selector: {app: wbe}}`)
			return ""
		}, []string{"bob", "patch", "services/web", `spec.selector.app: "web" → "wbe"`, "selected its Pods"}, nil},
		{"drained-node", func(i *incident) string {
			i.patch("ops", "/api/v1/nodes/drained", `spec: {unschedulable: true}`)
			pods, err := i.pods(i.Context())
			if err != nil {
				i.Fatal(err)
			}
			for n := range pods {
				i.create("ops", i.of("v1", "pods/"+pods[n].Name+"/eviction"), fmt.Sprintf(
					`{apiVersion: policy/v1, kind: Eviction, metadata: {name: %s, namespace: %s}}`, pods[n].Name, i.namespace))
			}
			return ""
		}, []string{"ops", "patch", "nodes/drained", "spec.unschedulable: <none> → true", "node of pods/web-"},
			[]string{"ops", "create/eviction", "pods/web-"}},
		{"autoscaler", func(i *incident) string {
			i.create("alice", i.of("autoscaling/v2", "horizontalpodautoscalers"), `{metadata: {name: web}, spec: {
				minReplicas: 4, maxReplicas: 8, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}`)
			for range 2 {
				i.awaitReplicas(4)
				i.patch("ci", i.of("apps/v1", "deployments/web"), `spec: {replicas: 2}`)
			}
			i.awaitReplicas(4)
			return ""
		}, []string{"ci ⇄ ", "horizontal-pod-autoscaler", "fight", "deployments.apps/web", "spec.replicas: 2 ⇄ 4"},
			[]string{"alice", "create", "horizontalpodautoscalers.autoscaling/web", "scales it"}},
		{"two-operators", func(i *incident) string {
			for range 3 {
				for _, operator := range []string{"mesh", "policy"} {
					i.patch("system:serviceaccount:operators:"+operator, i.of("apps/v1", "deployments/web"),
						`metadata: {labels: {mode: `+operator+`}}`)
				}
			}
			return ""
		}, []string{"operators:mesh ⇄ operators:policy", "fight", `metadata.labels.mode: "mesh" ⇄ "policy"`}, nil},
		{"certificate", func(i *incident) string {
			i.patch("system:serviceaccount:certs:issuer", i.of("v1", "secrets/web-tls"), `stringData: {tls.crt: new}`)
			return ""
		}, []string{"certs:issuer", "patch", "secrets/web-tls", "*** (before)", "certificate of ingresses"}, nil},
		{"definition", func(i *incident) string {
			i.create("alice", i.of("example.com/v1", "gadgets"), `{apiVersion: example.com/v1, kind: Gadget, metadata: {name: g}}`)
			i.patch("eve", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.com", `spec: {versions: [
				{name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object,
				x-kubernetes-preserve-unknown-fields: true}}},
				{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}`)
			return "gadgets.example.com/g"
		}, []string{"eve", "patch", "customresourcedefinitions.apiextensions.k8s.io/gadgets.example.com",
			"spec.versions[name=v1].storage: true → false", "defines gadgets.example.com/g"}, nil},
		{"webhook", func(i *incident) string {
			i.create("dave", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{metadata: {name: check},
				webhooks: [{name: check.example.com, failurePolicy: Fail, sideEffects: None, admissionReviewVersions: [v1],
				clientConfig: {url: "https://127.0.0.1:1/"}, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods],
				operations: [CREATE]}], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: webhook}}}]}`)
			i.patch("alice", i.of("apps/v1", "deployments/web"), scaled)
			i.awaitEvent("FailedCreate")
			return ""
		}, []string{"dave", "create", "validatingwebhookconfigurations.admissionregistration.k8s.io/check", "requests"},
			[]string{"event", "FailedCreate", "failed calling webhook"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			i := &incident{t, config, c.name}
			pool := "shared"
			if c.name == "drained-node" {
				pool = "drained"
			}
			i.deploy(pool)
			object := c.stage(i)
			if object == "" {
				object = "deployment/web"
			}
			out, _ := succeed(t, "timeline", object, "-n", c.name, "--kubeconfig", filepath.Join(server.dir, "admin.kubeconfig"))
			t.Log("\n" + out)
			for _, words := range [][]string{c.want, c.also} {
				if !hasLine(out, words) {
					t.Errorf("no row has %q", words)
				}
			}
			if c.name == "wrong-selector" {
				i.isShownToATenant(server.dir, c.want)
			}
			if rows := strings.Count(out, "\n"); rows > 26 || strings.Contains(out, "not asked") {
				t.Errorf("%d rows, which are more than a screen, or not all", rows)
			}
		})
	}
}

// isShownToATenant expects a row with words in the timeline of a user who may view the namespace, and what else there
// would be.
func (i *incident) isShownToATenant(dir string, words []string) {
	i.Helper()
	for _, role := range []string{"view", "byre:history-viewer"} {
		i.create("setup", i.of("rbac.authorization.k8s.io/v1", "rolebindings"), fmt.Sprintf(`{metadata: {generateName: tenant-},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "%s"},
			subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}]}`, role))
	}
	const left = "not asked: changes of cluster-scoped objects, secrets (no right to list)\n"
	var out string
	storetest.Eventually(i.T, "the tenant may view the namespace", func() bool {
		_, out, _ = call("timeline", "deployment/web", "-n", i.namespace, "--as", "tenant", "--kubeconfig",
			filepath.Join(dir, "admin.kubeconfig"))
		return strings.HasSuffix(out, left)
	})
	if !hasLine(out, words) || strings.Contains(out, "secrets/") || strings.Contains(out, "nodes/") {
		i.Errorf("a tenant is shown\n%s", out)
	}
}

// hasLine reports whether a line of a text has all words.
func hasLine(text string, words []string) bool {
	for line := range strings.Lines(text) {
		has := true
		for _, word := range words {
			has = has && strings.Contains(line, word)
		}
		if has {
			return true
		}
	}
	return len(words) == 0
}
