package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"byre/sqlstore/storetest"
)

const (
	deploymentController = "system:serviceaccount:kube-system:deployment-controller"
	replicaSetController = "system:serviceaccount:kube-system:replicaset-controller"
	garbageCollector     = "system:serviceaccount:kube-system:generic-garbage-collector"
)

// TestControllers_ActUnderTheirOwnNames runs a Deployment on a server with all controllers and
// the scheduler, where a policy lets only service accounts of kube-system create Pods. History
// in SQL, managed fields, the audit log, and priority and fairness tell one controller from the
// other. What else these controllers do is asked of the same server.
func TestControllers_ActUnderTheirOwnNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	rules := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: None, users: ['system:apiserver']}\n- {level: Metadata}\n"
	if err := os.WriteFile(policy, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir, "--with-scheduler", "--with-controller-manager", "--audit-policy-file", policy,
		"--audit-log-path", log)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	createReadyNode(t, client, "node1")
	t.Run("eviction by taints of devices", func(t *testing.T) { testDeviceTaintEviction(t, client) })
	t.Run("a Pod of the last Job", func(t *testing.T) { testPodOfTheLastJob(t, client) })
	letOnlyControllersCreatePods(t, client)
	deployments := client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), webDeployment("example.com/web:1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	storetest.EventuallyDone(t, "two bound Pods", func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return false, err
		}
		pods = list.Items
		return len(pods) == 2 && pods[0].Spec.NodeName == "node1" && pods[1].Spec.NodeName == "node1", nil
	})
	if manager := pods[0].ManagedFields[0].Manager; manager != "kube-controller-manager" {
		t.Errorf("the fields of a Pod are managed by %q", manager)
	}
	t.Run("migration of a resource", func(t *testing.T) { testStorageVersionMigration(t, client) })
	if err := deployments.Delete(t.Context(), "web",
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the ReplicaSet is collected", func(ctx context.Context) (bool, error) {
		list, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})

	expectHistory(t, filepath.Join(dir, "byre.db"), []string{
		"create deployments byre-admin", "create replicasets " + deploymentController, "create pods " + replicaSetController,
		"create pods system:kube-scheduler", "delete replicasets " + garbageCollector,
	})
	expectAudited(t, log, deploymentController, replicaSetController, garbageCollector, "system:kube-scheduler",
		"system:kube-controller-manager")
	_, metrics := server.mustGet(t, "/metrics")
	for _, schema := range []string{"kube-system-service-accounts", "kube-scheduler", "kube-controller-manager",
		"system-leader-election"} {
		if !strings.Contains(metrics, fmt.Sprintf(`apiserver_flowcontrol_dispatched_requests_total{flow_schema=%q`, schema)) {
			t.Errorf("no request has the FlowSchema %s", schema)
		}
	}
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), "deployment-controller",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
}

// letOnlyControllersCreatePods returns when the policy is in force.
func letOnlyControllersCreatePods(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	api := client.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: `request.userInfo.username.startsWith("system:serviceaccount:kube-system:")`}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "pods", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitAccount(t, client, "default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	storetest.EventuallyDone(t, "the policy denies an administrator's Pod", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return strings.Contains(err.Error(), "ValidatingAdmissionPolicy"), nil
		}
		return false, err
	})
}

// expectHistory expects changes with a verb, a resource and a user, in the namespace default.
func expectHistory(t *testing.T, path string, want []string) {
	t.Helper()
	const query = `SELECT DISTINCT verb || ' ' || resource || ' ' || who FROM changes WHERE namespace = 'default'`
	got := strings.Split(strings.TrimSpace(tool(t, "sqlite3", "-readonly", path, query)), "\n")
	for _, change := range want {
		if !slices.Contains(got, change) {
			t.Errorf("no change %q among\n%s", change, strings.Join(got, "\n"))
		}
	}
}

// expectAudited expects events of the users, with a user agent of upstream's form.
func expectAudited(t *testing.T, path string, users ...string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	agents := map[string]string{}
	for line := range strings.Lines(string(data)) {
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		agents[event.User.Username] = event.UserAgent
	}
	for _, name := range users {
		component := "kube-controller-manager/v1.37."
		if name == "system:kube-scheduler" {
			component = "kube-scheduler/v1.37."
		}
		if agent, ok := agents[name]; !ok || !strings.HasPrefix(agent, component) {
			t.Errorf("%s has the user agent %q; in the audit log are %v", name, agent, slices.Sorted(maps.Keys(agents)))
		}
	}
}

// TestControllers_HoldTheLeasesOfUpstream: beside a server that does the work of a
// kube-controller-manager and of a kube-scheduler, a real one waits, because the server holds
// its Lease. When the server is killed, it takes its Leases again at once.
func TestControllers_HoldTheLeasesOfUpstream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var before map[string]string
	for range 2 {
		server := startServer(t, dir, "--with-scheduler", "--with-controller-manager")
		client := kubernetes.NewForConfigOrDie(server.config(t))
		holders := map[string]string{}
		for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
			storetest.EventuallyDone(t, "the server holds the Lease "+name, func(ctx context.Context) (bool, error) {
				lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return false, nil
				}
				if err != nil || lease.Spec.HolderIdentity == nil {
					return false, err
				}
				holders[name] = *lease.Spec.HolderIdentity
				return strings.Contains(holders[name], "_byre-") && holders[name] != before[name], nil
			})
			if leads(t, client, name) {
				t.Errorf("another process took the Lease %s", name)
			}
		}
		before = holders
		if err := server.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-server.exited
	}
}

// leads makes one attempt at a Lease as kube-controller-manager and kube-scheduler do.
func leads(t *testing.T, client kubernetes.Interface, name string) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	led := make(chan struct{}, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &observedLock{cancel: cancel, Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: "host_0c5e"},
		}},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { led <- struct{}{} }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	elector.Run(ctx)
	return len(led) > 0
}

// observedLock cancels the election after its second look at the Lease.
type observedLock struct {
	resourcelock.Interface
	cancel context.CancelFunc
	looks  int
}

func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.looks++; l.looks == 2 {
		defer l.cancel()
	}
	return l.Interface.Get(ctx)
}

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
			expectRows(t, endpoint,
				`SELECT op, verb, subresource, manager, who, real_user, resource FROM changes WHERE `+isChange+` ORDER BY revision`,
				"create|create||kubectl-create|jane|root|configmaps",
				"create|create||kubectl-create|root||deployments",
				"update|patch|scale|kubectl|jane|root|deployments",
				"update|patch|status|kubectl|jane|root|deployments",
				"create|apply||deployer|jane|root|configmaps",
				"delete|delete|||jane|root|configmaps")
			expectRows(t, endpoint,
				`SELECT verb, subresource, manager, who, real_user, resource FROM objects WHERE `+isChange+` ORDER BY revision`,
				"patch|status|kubectl|jane|root|deployments",
				"apply||deployer|jane|root|configmaps")
			storetest.Eventually(t, "the Event has expired", func() bool {
				return len(rows(t, endpoint, `SELECT 1 FROM changes WHERE resource = 'events' AND op = 'delete'`)) > 0
			})
			expectRows(t, endpoint,
				`SELECT verb, subresource, manager, who, real_user FROM changes WHERE resource = 'events' AND op = 'delete'`,
				"expire|||system:byre|")
			if status := p.stop(t); status != 0 {
				t.Fatalf("stopped with %d", status)
			}
			expectCarried(t, dir, endpoint)
			expectRows(t, endpoint, `SELECT DISTINCT verb, who FROM changes WHERE "group" = 'byre' AND verb <> 'create'`)
			expectRows(t, endpoint, `SELECT * FROM changes WHERE verb = '' OR who = ''`)
			expectRows(t, endpoint, `SELECT * FROM objects WHERE verb = '' OR who = ''`)
			if own := rows(t, endpoint,
				`SELECT DISTINCT verb FROM changes WHERE "group" = 'byre' OR who = 'system:apiserver'`); len(own) == 0 {
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
		_, err := jane.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}}, created)
		return err == nil, nil //nolint:nilerr // RBAC has not yet seen the binding
	})
	if _, err := root.AppsV1().Deployments("default").Create(t.Context(), webDeployment("example.com/web:1"),
		created); err != nil {
		t.Fatal(err)
	}
	for _, patch := range [][2]string{{"scale", `{"spec":{"replicas":3}}`}, {"status", `{"status":{"replicas":3}}`}} {
		if _, err := jane.AppsV1().Deployments("default").Patch(t.Context(), "web", types.MergePatchType, []byte(patch[1]),
			metav1.PatchOptions{}, patch[0]); err != nil {
			t.Fatal(err)
		}
	}
	applied := corev1ac.ConfigMap("applied", "default").WithData(map[string]string{"a": "b"})
	if _, err := jane.CoreV1().ConfigMaps("default").Apply(t.Context(), applied,
		metav1.ApplyOptions{FieldManager: "deployer"}); err != nil {
		t.Fatal(err)
	}
	if err := jane.CoreV1().ConfigMaps("default").Delete(t.Context(), "made", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"},
		InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := root.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectCarried expects the columns of authors in what a restored backup and a copy have, and
// that a check reads them.
func expectCarried(t *testing.T, dir, endpoint string) {
	t.Helper()
	const authors = `SELECT verb, subresource, manager, who, real_user, audit_id, resource, name FROM changes ORDER BY revision`
	const writers = `SELECT verb, subresource, manager, who, real_user, generation, resource, name FROM objects ORDER BY revision`
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
		tool(t, "sqlite3", path,
			`UPDATE current_objects SET real_user = 'eve' WHERE name = 'web'; UPDATE undo_log SET subresource = '' WHERE subresource = 'scale'`)
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
