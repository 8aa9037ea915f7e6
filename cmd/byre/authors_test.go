package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/sqlstore/storetest"
)

// TestChanges_NameWhoAndHow has an administrator act as jane, by each kind of request. The views
// tell both users, the verb, the subresource and the field manager. byre's own changes have a
// verb. The documentation has all verbs. Whatever carries the rows to another database carries these
// columns.
func TestChanges_NameWhoAndHow(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, flags := t.TempDir(), flags(t)
			endpoint := "sqlite://" + filepath.Join(dir, "byre.db")
			if i := slices.Index(flags, "--endpoint"); i >= 0 {
				endpoint = flags[i+1]
			}
			p := startServer(t, dir, append(flags, "--event-ttl=1s", "--controllers=")...)
			actAsJane(t, p)
			const isChange = `resource IN ('configmaps', 'deployments') AND namespace = 'default' AND name IN ('applied', 'made', 'web')`
			expectRows(t, endpoint, `SELECT op, verb, subresource, manager, who, real_user, resource FROM changes WHERE `+isChange+` ORDER BY revision`,
				"create|create||kubectl-create|jane|root|configmaps",
				"create|create||kubectl-create|root||deployments",
				"update|patch|scale|kubectl|jane|root|deployments",
				"update|patch|status|kubectl|jane|root|deployments",
				"create|apply||deployer|jane|root|configmaps",
				"delete|delete|||jane|root|configmaps")
			expectRows(t, endpoint, `SELECT verb, subresource, manager, who, real_user, resource FROM objects WHERE `+isChange+` ORDER BY revision`,
				"patch|status|kubectl|jane|root|deployments",
				"apply||deployer|jane|root|configmaps")
			storetest.Eventually(t, "the Event has expired", func() bool {
				return len(rows(t, endpoint, `SELECT 1 FROM changes WHERE resource = 'events' AND op = 'delete'`)) > 0
			})
			expectRows(t, endpoint, `SELECT verb, subresource, manager, who, real_user FROM changes WHERE resource = 'events' AND op = 'delete'`,
				"expire|||system:byre|")
			if status := p.stop(t); status != 0 {
				t.Fatalf("stopped with %d", status)
			}
			expectCarried(t, dir, endpoint)
			// The backup is recorded in a row, or in a file beside SQLite's.
			expectRows(t, endpoint, `SELECT DISTINCT verb, who FROM changes WHERE "group" = 'byre' AND verb <> 'create'`,
				map[string][]string{"postgres": {"backup|byre"}}[name]...)
			expectRows(t, endpoint, `SELECT * FROM changes WHERE verb = '' OR who = ''`)
			expectRows(t, endpoint, `SELECT * FROM objects WHERE verb = '' OR who = ''`)
			if own := rows(t, endpoint, `SELECT DISTINCT verb FROM changes WHERE "group" = 'byre' OR who = 'system:apiserver'`); len(own) == 0 {
				t.Error("no changes by byre itself")
			}
			documented := packaged(t, "docs/operations/sql.md")
			_, documented, _ = strings.Cut(documented, "\n| `verb` | |\n")
			documented, _, _ = strings.Cut(documented, "\n\n")
			for _, verb := range rows(t, endpoint, `SELECT DISTINCT verb FROM changes`) {
				if !regexp.MustCompile("(?m)^\\| [^|]*`" + verb + "`[^|]* \\|").MatchString(documented) {
					t.Errorf("docs/operations/sql.md does not name the verb %s", verb)
				}
			}
		})
	}
}

// actAsJane makes changes of several kinds, most of them as jane.
func actAsJane(t *testing.T, p *serverProcess) {
	t.Helper()
	text, _ := succeed(t, "kubeconfig", "--data-dir", p.dir, "--user=root", "--group=system:masters")
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = "kubectl/v1.37.2 (linux/amd64)"
	root := kubernetes.NewForConfigOrDie(config)
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "jane"
	jane := kubernetes.NewForConfigOrDie(config)

	_, err = root.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created := metav1.CreateOptions{FieldManager: "kubectl-create"}
	storetest.EventuallyDone(t, "jane may create ConfigMaps", func(ctx context.Context) (bool, error) {
		_, err := jane.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}}, created)
		return err == nil, nil //nolint:nilerr // RBAC has not yet seen the binding
	})
	if _, err := root.AppsV1().Deployments("default").Create(t.Context(), webDeployment("example.com/web:1"), created); err != nil {
		t.Fatal(err)
	}
	for _, patch := range [][2]string{{"scale", `{"spec":{"replicas":3}}`}, {"status", `{"status":{"replicas":3}}`}} {
		if _, err := jane.AppsV1().Deployments("default").Patch(t.Context(), "web", types.MergePatchType, []byte(patch[1]), metav1.PatchOptions{}, patch[0]); err != nil {
			t.Fatal(err)
		}
	}
	applied := corev1ac.ConfigMap("applied", "default").WithData(map[string]string{"a": "b"})
	if _, err := jane.CoreV1().ConfigMaps("default").Apply(t.Context(), applied, metav1.ApplyOptions{FieldManager: "deployer"}); err != nil {
		t.Fatal(err)
	}
	if err := jane.CoreV1().ConfigMaps("default").Delete(t.Context(), "made", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := root.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectCarried expects the columns of authors in what a restored backup and a copy have, and
// that a check reads them.
func expectCarried(t *testing.T, dir, endpoint string) {
	t.Helper()
	const authors = `SELECT verb, subresource, manager, who, real_user, audit_id, resource, name FROM changes WHERE name <> 'last-backup' ORDER BY revision`
	const writers = `SELECT verb, subresource, manager, who, real_user, generation, resource, name FROM objects WHERE name <> 'last-backup' ORDER BY revision`
	file := filepath.Join(dir, "backup.zst")
	succeed(t, "backup", "--endpoint", endpoint, file)
	changes, objects := rows(t, endpoint, authors), rows(t, endpoint, writers)
	for kind, restored := range emptyDatabases(t) {
		succeed(t, "restore", "--endpoint", restored, file)
		copied := emptyDatabases(t)[kind]
		succeed(t, "copy", "--from", endpoint, "--to", copied)
		expectRows(t, copied, authors, changes...)
		for _, target := range []string{restored, copied} {
			expectRows(t, target, writers, objects...)
			if out, _ := succeed(t, "check", "--endpoint", target); !strings.Contains(out, " 0 findings") {
				t.Error(out)
			}
		}
		if kind != "sqlite" {
			continue
		}
		// SQLite's rows have checksums, those of who wrote them too.
		path := strings.TrimPrefix(copied, "sqlite://")
		tool(t, "sqlite3", path, `UPDATE current_objects SET real_user = 'eve' WHERE name = 'web'; UPDATE undo_log SET subresource = '' WHERE subresource = 'scale'`)
		_, out, _ := call("check", "--endpoint", copied)
		if n := strings.Count(out, "deployments.apps default/web: the row does not have its checksum"); n != 2 {
			t.Errorf("a check of changed authors: %s", out)
		}
	}
}

// rows returns the rows of a query by the database's own shell, with | between columns.
func rows(t *testing.T, endpoint, query string) []string {
	t.Helper()
	var out string
	if path, ok := strings.CutPrefix(endpoint, "sqlite://"); ok {
		out = tool(t, "sqlite3", "-readonly", path, query)
	} else {
		out = tool(t, "psql", "-AtX", endpoint, "-c", query)
	}
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")[:strings.Count(out, "\n")]
}

// expectRows shows what differs between the rows of a query and want.
func expectRows(t *testing.T, endpoint, query string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, rows(t, endpoint, query), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: %s", query, diff)
	}
}
