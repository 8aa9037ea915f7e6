package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// secretText is what must not be readable in the database. It stands in an
// object of each resource that docs/operations/security.md encrypts.
const secretText = "a-password-nobody-may-see"

// plainText stands in an object that is not encrypted: the search must find it.
const plainText = "a-setting-for-all-to-see"

// sealedObjects are those with secretText.
const sealedObjects = `
apiVersion: v1
kind: Secret
metadata: {name: sealed, namespace: sealed}
stringData: {text: ` + secretText + `}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: sealed, namespace: sealed, annotations: {text: ` + secretText + `}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: sealed, namespace: sealed}
spec: {holderIdentity: ` + secretText + `}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: sealed, namespace: sealed}
spec: {text: ` + secretText + `}
`

const openObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: sealed, annotations: {text: ` + plainText + `}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: sealed, namespace: sealed}
data: {text: ` + plainText + `}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestEncryption_FollowsTheGuide follows docs/operations/security.md: each provider encrypts a
// resource; then one resource gets a new key and encryption is turned on for another; then
// the old key is removed.
func TestEncryption_FollowsTheGuide(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testEncryption(t, newSite(t), openDatabase(t, name))
		})
	}
}

func testEncryption(t *testing.T, site *site, db database) {
	flags := site.follow(t, "Encryption at rest", 0)
	const without, with = "- resources: [gadgets.example.com]", "- resources: [configmaps]"
	site.edit(t, "encryption.yaml", with, without)
	s := startByre(t, db, flags...)
	writeObjects(t, s, openObjects)
	storetest.EventuallySucceeds(t, "the definition", func() error {
		out, stderr, err := kubectl(t, s.Kubeconfig, "api-resources", "--api-group", "example.com", "-o", "name")
		if err != nil || !strings.Contains(out, "widgets") {
			return fmt.Errorf("%s%s, %w", out, stderr, err)
		}
		return nil
	})
	writeObjects(t, s, sealedObjects)
	mustBeSealed(t, db, map[string]string{
		"secrets":         "k8s:enc:secretbox:v1:key1:",
		"serviceaccounts": "k8s:enc:aesgcm:v1:key1:",
		"leases":          "k8s:enc:kms:v2:keeper:",
		"widgets":         "k8s:enc:kms:v2:keeper:",
	})
	if rows := mustQuery(t, db,
		"SELECT value FROM objects WHERE resource = 'configmaps' AND name = 'sealed'"); len(rows) != 1 ||
		!strings.Contains(rows[0], plainText) {
		t.Errorf("an object that must not be encrypted is stored as %q", rows)
	}
	mustNotHold(t, db)
	mustRead(t, s)
	if site.keeper.Used() == 0 {
		t.Error("the key service was not asked")
	}

	before, err := client(t, s).CoreV1().Secrets("sealed").Get(t.Context(), "sealed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	site.edit(t, "encryption.yaml", "- secretbox:\n      keys:\n",
		"- secretbox:\n      keys:\n      - {name: key2, secret: "+secondKey+"}\n", without, with)
	// A running server reads the file again after a minute at most. One wait of
	// a minute is enough: on the other database it is started again.
	if db.name == "postgres" {
		waitForNewKeys(t, s)
	} else {
		s = restart(t, s, db, flags)
	}
	rewrite(t, s, "secrets,configmaps")
	mustBeSealed(t, db, map[string]string{
		"secrets":    "k8s:enc:secretbox:v1:key2:",
		"configmaps": "k8s:enc:aescbc:v1:key1:",
	})
	mustRead(t, s)
	then, err := client(t, s).CoreV1().Secrets("sealed").List(t.Context(), metav1.ListOptions{
		ResourceVersion: before.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || len(then.Items) != 1 || string(then.Items[0].Data["text"]) != secretText {
		t.Errorf("before the new key there was %v (%v)", then, err)
	}
	mustBeSealedInHistory(t, db, before.ResourceVersion)
	mustNotHold(t, db)
	mustDecrypt(t, db, flags)

	site.edit(t, "encryption.yaml",
		"- secretbox:\n      keys:\n      - {name: key2, secret: "+secondKey+"}\n      - {name: key1, secret: "+firstKey+
			"}\n",
		"- secretbox:\n      keys:\n      - {name: key2, secret: "+secondKey+"}\n")
	mustRead(t, restart(t, s, db, flags))
}

func waitForNewKeys(t *testing.T, s *servers.Server) {
	t.Helper()
	storetest.EventuallySucceeds(t, "the new key", func() error {
		_, metrics := get(t, s, servers.AdminToken, "/metrics")
		if !strings.Contains(metrics, `apiserver_encryption_config_controller_automatic_reloads_total{apiserver_id_hash=`) {
			return errors.New("the configuration has not been read again")
		}
		return nil
	})
}

func restart(t *testing.T, s *servers.Server, db database, flags []string) *servers.Server {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	return startByreIn(t, filepath.Dir(s.Kubeconfig), db, flags...)
}

// writeObjects applies manifests, twice with a change between: what an update
// replaces is kept as well.
func writeObjects(t *testing.T, s *servers.Server, manifests string) {
	t.Helper()
	for _, text := range []string{manifests, strings.ReplaceAll(manifests, "text: ", "more: ")} {
		cmd := exec.CommandContext(t.Context(), programs.Kubectl.Path(), "--kubeconfig", s.Kubeconfig, "apply",
			"--server-side", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		cmd.Env = append(os.Environ(), "KUBECACHEDIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// rewrite writes all objects of a resource again as docs/operations/security.md says: once
// more where a controller has written in between, as it does when a server starts
// with another authority.
func rewrite(t *testing.T, s *servers.Server, resource string) {
	t.Helper()
	cache := t.TempDir()
	storetest.EventuallySucceeds(t, "all "+resource+" written again", func() error {
		cmd := exec.CommandContext(t.Context(), "sh", "-c",
			"kubectl get "+resource+" --all-namespaces -o json | kubectl replace -f -")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "KUBECACHEDIR="+cache,
			"PATH="+programs.Dir()+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		switch {
		case err == nil:
			return nil
		case strings.Contains(string(out), "Error from server (Conflict)"):
			return fmt.Errorf("%w: %s", err, out)
		}
		t.Fatalf("%v: %s", err, out)
		return nil
	})
}

// mustBeSealed looks for the prefixes of values as they are stored.
func mustBeSealed(t *testing.T, db database, prefixes map[string]string) {
	t.Helper()
	for resource, prefix := range prefixes {
		rows := mustQuery(t, db, fmt.Sprintf("SELECT value FROM objects WHERE resource = '%s' AND name = 'sealed'", resource))
		if len(rows) != 1 || !strings.HasPrefix(rows[0], `"`+prefix) {
			t.Errorf("%s: stored is %.60q, want %s", resource, rows, prefix)
		}
	}
}

// mustBeSealedInHistory looks at a Secret through the view.
func mustBeSealedInHistory(t *testing.T, db database, revision string) {
	t.Helper()
	rows := mustQuery(t, db,
		"SELECT value FROM history WHERE resource = 'secrets' AND name = 'sealed' AND revision = "+revision)
	if len(rows) != 1 || !strings.HasPrefix(rows[0], `"k8s:enc:secretbox:v1:key1:`) {
		t.Errorf("history at revision %s has %q", revision, rows)
	}
}

// mustRead finds the text in all objects by the API.
func mustRead(t *testing.T, s *servers.Server) {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(secretText))
	for resource, want := range map[string]string{"secrets": encoded, "configmaps": plainText,
		"serviceaccounts": secretText, "leases": secretText, "widgets": secretText} {
		stdout, stderr, err := kubectl(t, s.Kubeconfig, "get", resource, "-n", "sealed", "sealed", "-o", "yaml")
		if err != nil || !strings.Contains(stdout, want) {
			t.Errorf("%s: %v: %s%s", resource, err, stderr, stdout)
		}
	}
}

// mustDecrypt runs "byre check", which must be able to decrypt all values.
func mustDecrypt(t *testing.T, db database, flags []string) {
	t.Helper()
	at := slices.Index(flags, "--encryption-provider-config")
	args := append([]string{"check", "--endpoint", db.endpoint, "-o", "json"}, flags[at:at+2]...)
	out := byreCommand(t, args...)
	var result struct{ Encrypted, Decrypted int }
	answer := out[max(strings.IndexByte(out, '{'), 0):] // a slow check prints its progress before
	if err := json.Unmarshal([]byte(answer), &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if result.Decrypted == 0 || result.Decrypted != result.Encrypted {
		t.Errorf("byre check %q: %s", args, out)
	}
}

// mustNotHold searches the whole database for the text: on SQLite its files, with the
// write-ahead log, on PostgreSQL all rows.
func mustNotHold(t *testing.T, db database) {
	t.Helper()
	content := everything(t, db)
	if !bytes.Contains(content, []byte(plainText)) {
		t.Error("the search does not find what is not encrypted")
	}
	for _, text := range []string{secretText, base64.StdEncoding.EncodeToString([]byte(secretText))} {
		if at := bytes.Index(content, []byte(text)); at >= 0 {
			t.Errorf("%s can be read: ...%q", text, content[max(0, at-300):at])
		}
	}
}

func everything(t *testing.T, db database) []byte {
	t.Helper()
	if path, ok := strings.CutPrefix(db.endpoint, "sqlite://"); ok {
		files, err := filepath.Glob(path + "*")
		if err != nil || len(files) < 2 {
			t.Fatalf("the database's files are %v (%v)", files, err)
		}
		var content []byte
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, text...)
		}
		return content
	}
	var rows []string
	for _, query := range []string{"SELECT o::text FROM objects o", "SELECT c::text FROM changes c"} {
		rows = append(rows, mustQuery(t, db, query)...)
	}
	return []byte(strings.Join(rows, "\n"))
}
