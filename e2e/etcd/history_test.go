package etcd

import (
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// TestHistory_OfAStockCluster types the commands of docs/etcd.md from nothing to the history of an object that a
// stock kube-apiserver keeps in byre etcd, as protobuf: only the ports are others, and the flags of kube-apiserver.
func TestHistory_OfAStockCluster(t *testing.T) {
	programs.Night(t)
	if err := programs.Build(t.Context(), programs.APIServer, programs.Kubectl); err != nil {
		t.Fatal(err)
	}
	commands := stepsOf(t, "History of a stock cluster", 5)
	work, dsn := t.TempDir(), pgtest.DSN(t)
	etcd, err := servers.StartByreEtcd(t.Context(), work, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		etcd.Kill()
		etcd.Report(t)
	})
	stock, err := servers.Stock{Dir: filepath.Join(work, "stock"), Etcd: etcd, Aggregates: true, Args: []string{
		"--disable-admission-plugins=ServiceAccount", "--enable-aggregator-routing=false",
	}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stock.Kill()
		stock.Report(t)
	})
	if err := os.Symlink(programs.Byre.Path(), filepath.Join(work, "kubectl-byre")); err != nil {
		t.Fatal(err)
	}
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{
		"DATABASE=" + dsn, "KUBECONFIG=" + stock.Kubeconfig, "KUBECACHEDIR=" + filepath.Join(work, "cache"),
		"PATH=" + strings.Join([]string{work, programs.Dir(), filepath.Dir(programs.Byre.Path()), os.Getenv("PATH")}, ":"),
	}
	onPort := func(command string) string {
		return strings.Replace(command, "byre api ", "byre api --secure-port "+port+" ", 1)
	}
	run := func(command string, more ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", command)
		cmd.Dir, cmd.Env = work, slices.Concat(os.Environ(), env, more)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	admin := func(command string) string {
		t.Helper()
		out, err := run(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	mustHave := func(out string, patterns ...string) {
		t.Helper()
		for _, pattern := range patterns {
			if !regexp.MustCompile(`(?m)` + pattern).MatchString(out) {
				t.Errorf("there is no %s in\n%s", pattern, out)
			}
		}
	}

	for i, begin := range []string{"byre etcd --endpoint ", "kube-apiserver --etcd-servers "} {
		if !strings.HasPrefix(commands[i], begin) {
			t.Errorf("command %d is %q", i+1, commands[i])
		}
	}
	admin(onPort(commands[2]))
	api, err := servers.StartByreAPI(t.Context(), stock, work, strings.TrimSuffix(onPort(commands[3]), "&"), env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		api.Kill()
		api.Report(t)
	})
	admin("kubectl create deployment web --image nginx:1")
	admin("kubectl set image deployment/web nginx=nginx:2")
	admin("kubectl scale deployment/web --replicas 3")
	mustHave(admin(commands[4]),
		`^\d+ +\S+ +kubectl-set +spec\.template\.spec\.containers\[name=nginx\]\.image +"nginx:2"$`,
		`^\d+ +\S+ +kubectl +spec\.replicas +3$`,
		`^\d+ +\S+ +kubectl-create +spec\.selector\.matchLabels\.app +"web"$`)
	log := admin("kubectl byre log deployment/web")
	mustHave(log, `^\d+ .* create .*deployments\.apps/web`, `^\d+ .* update .*image: "nginx:1" → "nginx:2"`,
		`^\d+ .* update/scale .*spec\.replicas: 1 → 3`)
	mustHave(admin("kubectl byre diff deployment/web"), `^-  replicas: 1$`, `^\+  replicas: 3$`)
	// A definition and its instances, and a deletion.
	admin(`kubectl create -f - <<END
{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
 "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [
  {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
   "x-kubernetes-preserve-unknown-fields": true}}}]}}
END
kubectl wait --for condition=Established customresourcedefinition widgets.example.com
until kubectl get widgets; do :; done
kubectl create -f - <<END
{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "n": 1}
END
kubectl patch widget w --type merge -p '{"n": 2}' && kubectl delete widget w`)
	mustHave(admin("kubectl byre log widget/w"), `create .*widgets\.example\.com/w`, `update .*n: 1 → 2`,
		`delete .*widgets\.example\.com/w`)

	alice := "KUBECONFIG=" + filepath.Join(work, "alice.kubeconfig")
	if err := stock.WriteKubeconfig(filepath.Join(work, "alice.kubeconfig"), servers.AliceToken, "default"); err != nil {
		t.Fatal(err)
	}
	refused := func(command string) {
		t.Helper()
		if out, err := run(command, alice); err == nil || !strings.Contains(strings.ToLower(out), "forbidden") {
			t.Errorf("alice may %s: %v\n%s", command, err, out)
		}
	}
	refused("kubectl byre log -n default")
	refused("kubectl get --raw /apis/history.byre.dev/v1/changes")
	// The right to the history alone shows no change; that to the objects too shows theirs.
	admin("kubectl create rolebinding alice-history --clusterrole byre:history-viewer --user alice")
	if out, err := run("kubectl byre log -n default", alice); err != nil || strings.Contains(out, "web") {
		t.Errorf("who may list changes only sees %v\n%s", err, out)
	}
	admin("kubectl create role deployments --verb list,get --resource deployments.apps && " +
		"kubectl create rolebinding alice-deployments --role deployments --user alice")
	out, err := run("kubectl byre log -n default", alice)
	if err != nil || !strings.Contains(out, "deployments.apps/web") || strings.Contains(out, "widgets") {
		t.Errorf("who may list Deployments sees %v\n%s", err, out)
	}
	refused("kubectl get --raw /apis/history.byre.dev/v1/changes")

	// Without kube-apiserver's word nobody is a user.
	past, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"https://127.0.0.1:"+port+"/apis/history.byre.dev/v1/changes", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // of this host
	}}).Do(past)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("a request past kube-apiserver is answered with %s", res.Status)
	}
	if err := api.Stop(); err != nil {
		t.Errorf("stopped, byre api ends with %v", err)
	}
}

// stepsOf returns the commands of the first block below a heading of docs/etcd.md, of which there must be n.
func stepsOf(t *testing.T, heading string, n int) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(programs.Root(), "docs", "etcd.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	_, block, _ := strings.Cut(section, "```console\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		commands = append(commands, strings.TrimPrefix(strings.TrimSpace(line), "$ "))
	}
	if len(commands) != n {
		t.Fatalf("%q has the commands %q, and this test types %d", heading, commands, n)
	}
	return commands
}
