package packages

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

// TestKustomize_IsAcceptedAsItIs applies the base to byre with strict validation of fields,
// as an operator applies it to the cluster that runs the replicas.
func TestKustomize_IsAcceptedAsItIs(t *testing.T) {
	t.Parallel()
	manifests := renderBase(t)
	apply(t, manifests)
	deployment := deploymentOf(t, manifests)
	if n := *deployment.Spec.Replicas; n != 3 {
		t.Errorf("%d replicas", n)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	for _, v := range container.Env {
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil &&
			strings.Contains(strings.Join(container.Args, " "), "$("+v.Name+")") {
			t.Errorf("every user of the node can read the secret %s in the arguments", v.Name)
		}
	}
	// The flags are byre's.
	flags := []string{}
	for _, arg := range container.Args {
		flags = append(flags, strings.NewReplacer("$(POD_IP)", "10.0.0.1", "$(POD_NAMESPACE)", "default").Replace(arg))
	}
	mustRun(t, programs.Byre.Path(), append(flags, "--version")...)
}

// TestHelm_RendersWhatKustomizeDoes compares the objects of the chart with those of the base.
func TestHelm_RendersWhatKustomizeDoes(t *testing.T) {
	t.Parallel()
	if os.Getenv("E2E_PACKAGES") == "" {
		t.Skip("make packages-test builds helm first")
	}
	if err := programs.Build(t.Context(), programs.Helm); err != nil {
		t.Fatal(err)
	}
	chart := filepath.Join(repository, "packaging", "helm", "byre")
	mustRun(t, programs.Helm.Path(), "lint", "--strict", chart)
	rendered := mustRun(t, programs.Helm.Path(), "template", "byre", chart, "--namespace", "default")
	apply(t, rendered)
	// Values that are not the defaults, and names with another release's.
	other := mustRun(t, programs.Helm.Path(), "template", "prod", chart, "--namespace", "default",
		"--set", "replicas=5,service.type=LoadBalancer,image.tag=x,externalHostname=api.example.com",
		"--set", "extraArgs={--v=2,--audit-log-path=-}", "--set", "imagePullSecrets[0].name=registry",
		"--set", "tolerations[0].operator=Exists", "--set", "nodeSelector.disk=ssd",
		"--set-string", "extraEnv[0].name=BYRE_V,extraEnv[0].value=3", "--set",
		"extraVolumes[0].name=policy,extraVolumes[0].configMap.name=policy",
		"--set", "extraVolumeMounts[0].name=policy,extraVolumeMounts[0].mountPath=/etc/byre")
	apply(t, other)
	if d := deploymentOf(t, other); d.Name != "prod-byre" ||
		!slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--external-hostname=api.example.com") {
		t.Errorf("%s with %q", d.Name, d.Spec.Template.Spec.Containers[0].Args)
	}

	alone := mustRun(t, programs.Helm.Path(), "template", "byre", chart, "--set",
		"replicas=1,serviceMonitor.enabled=true,serviceMonitor.labels.release=prometheus")
	if strings.Contains(alone, "kind: PodDisruptionBudget") {
		t.Error("a single replica has a PodDisruptionBudget, which would refuse every eviction or allow it anyway")
	}
	if !strings.Contains(alone, "kind: ServiceMonitor") || !strings.Contains(alone, "release: prometheus") ||
		strings.Contains(rendered, "kind: ServiceMonitor") {
		t.Errorf("the ServiceMonitor:\n%s", alone)
	}
	for _, value := range []string{"replica=3", "replicas=many", "goMemoryLimit=2GB", "service.type=External",
		"image.tags=x", "extraEnv[0].name=A,extraEnv[0].value=3"} {
		if out, err := exec.CommandContext(t.Context(), programs.Helm.Path(), "template", "byre", chart, "--set",
			value).CombinedOutput(); err == nil {
			t.Errorf("--set %s is accepted: %s", value, out)
		}
	}

	ours, theirs := deploymentOf(t, renderBase(t)), deploymentOf(t, rendered)
	for _, d := range []*appsv1.Deployment{ours, theirs} {
		d.Labels, d.Namespace = nil, ""
		delete(d.Spec.Selector.MatchLabels, "app.kubernetes.io/instance")
		delete(d.Spec.Template.Labels, "app.kubernetes.io/instance")
		for _, constraint := range d.Spec.Template.Spec.TopologySpreadConstraints {
			delete(constraint.LabelSelector.MatchLabels, "app.kubernetes.io/instance")
		}
	}
	if diff := cmp.Diff(ours, theirs); diff != "" {
		t.Errorf("the Deployment of the base (-) and of the chart (+):\n%s", diff)
	}
}

func renderBase(t *testing.T) string {
	t.Helper()
	return mustRun(t, programs.Kubectl.Path(), "kustomize", filepath.Join(repository, "packaging", "kustomize", "base"))
}

// apply applies manifests to a new server, which knows every field of them.
func apply(t *testing.T, manifests string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "manifests.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := servers.Byre{Dir: filepath.Join(dir, "data")}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	out := mustRun(t, programs.Kubectl.Path(), "--kubeconfig", server.Kubeconfig, "apply", "--server-side",
		"--validate=strict", "--filename", file)
	if n := strings.Count(out, "serverside-applied"); n != 3 || strings.Contains(out, "Warning") {
		t.Errorf("kubectl apply: %s", out)
	}
}

// deploymentOf returns the Deployment among manifests.
func deploymentOf(t *testing.T, manifests string) *appsv1.Deployment {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			t.Fatalf("no Deployment in %s", manifests)
		}
		if err != nil {
			t.Fatal(err)
		}
		var d appsv1.Deployment
		if err := json.Unmarshal(raw, &d); err == nil && d.Kind == "Deployment" {
			return &d
		}
	}
}
