package transfer

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/cluster"
	"byre/e2e/programs"
	"byre/e2e/servers"
)

const encryption = `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, serviceaccounts, customresourcedefinitions.apiextensions.k8s.io]
  providers:
  - aesgcm: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}
  - identity: {}
- resources: [widgets.example.com]
  providers:
  - aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}
  - identity: {}
`

// TestEncrypted_StaysEncrypted moves values that are encrypted at rest there and back. No
// command is given a key.
func TestEncrypted_StaysEncrypted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "encryption.yaml")
	if err := os.WriteFile(config, []byte(encryption), 0o600); err != nil {
		t.Fatal(err)
	}
	flag := "--encryption-provider-config=" + config
	etcd := startEtcd(t, dir)
	stock := stockCluster(t, dir, etcd, flag)
	made := stock.Fill(t, objectCount(t))
	before := stock.Dump(t)
	if err := stock.Process.Stop(); err != nil {
		t.Fatal(err)
	}
	keys, revision := etcdKeys(t, etcd)
	snapshot := filepath.Join(dir, "cluster.db")
	saveSnapshot(t, etcd, snapshot)
	etcd.Kill()
	t.Logf("made %d objects; the server has %d; etcd has %d keys at revision %d", made, len(before), len(keys), revision)
	intoPostgres(t, before, maps.Clone(keys), revision, []string{flag}, "etcd", snapshot)
	data := filepath.Join(dir, "data")
	out := timed(t, programs.Byre, "import", "etcd", snapshot, "--data-dir", data)
	if !strings.Contains(out, " encrypted)") {
		t.Error("the import does not say how many are encrypted")
	}
	t.Log(out)

	checked := command(t, programs.Byre, "check", "--data-dir", data, flag)
	if found := regexp.MustCompile(`, (\d+) values encrypted, (\d+) of them decrypted: 0 findings`).FindStringSubmatch(
		checked); len(found) == 0 || found[1] == "0" || found[1] != found[2] {
		t.Errorf("the check says %s", checked)
	}

	byre := startByre(t, data, flag, "--controllers=")
	cluster.Compare(t, before, byre.Dump(t), revision)
	client, err := kubernetes.NewForConfig(byre.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	// One is written by byre: its plain text is JSON then, the others' protobuf.
	moved, err := client.CoreV1().Secrets("shop").Patch(t.Context(), "web", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"moved":"yes"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change, err := client.CoreV1().RESTClient().Get().AbsPath("/apis/history.byre.dev/v1/namespaces/shop/changes/" +
		moved.ResourceVersion).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(change), `"before":{`) ||
		!strings.Contains(string(change), `"path":"metadata.labels.moved"`) {
		t.Errorf("the change of an imported Secret: %s, %v", change, err)
	}
	// The import can't read the encrypted definitions, of which a write of an object requires the UID.
	custom, err := dynamic.NewForConfig(byre.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := custom.Resource(widgets).Namespace("office").Patch(t.Context(), "widget", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"moved":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	changed := byre.Dump(t)
	if err := byre.Stop(); err != nil {
		t.Fatal(err)
	}
	exported := filepath.Join(dir, "exported.db")
	t.Log(timed(t, programs.Byre, "export", "etcd", exported, "--data-dir", data))
	second := filepath.Join(dir, "second")
	command(t, programs.Etcdutl, "snapshot", "restore", exported, "--data-dir", filepath.Join(second, "etcd"))
	restored := startEtcd(t, second)
	back, last := etcdKeys(t, restored)
	for _, path := range []string{"/registry/secrets/office/web", "/registry/example.com/widgets/shop/widget"} {
		if value := string(back[path].value); !strings.HasPrefix(value, "k8s:enc:") || value != string(keys[path].value) {
			t.Errorf("%s is %q, was %q", path, value, keys[path].value)
		}
	}
	// A server deletes the APIServices that another has made of groups which it doesn't serve.
	for _, group := range []string{"history.byre.dev", "sql.byre.dev"} {
		delete(changed, "apiregistration.k8s.io/v1/apiservices//v1."+group)
	}
	cluster.Compare(t, changed, stockCluster(t, second, restored, flag).Dump(t), last)
}
