package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/controllers"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestReplicas_LeaderHandsOver runs two servers of one host on one database, one of which leads and runs the controllers.
// When the leader is told to stop, it first removes its endpoint from the kubernetes Service and releases the controllers'
// Lease, and still serves. The other takes over.
func TestReplicas_LeaderHandsOver(t *testing.T) {
	t.Parallel()
	pki := t.TempDir()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", pki}
	first := startServer(t, t.TempDir(), append(flags, "--advertise-address=192.0.2.1", "--shutdown-delay-duration=10m")...)
	leader := waitForLeader(t, kubernetes.NewForConfigOrDie(first.config(t)), "")
	second := startServer(t, t.TempDir(), append(flags, "--advertise-address=192.0.2.2")...)
	client := kubernetes.NewForConfigOrDie(second.config(t))
	waitForEndpoints(t, client, "192.0.2.1", "192.0.2.2")

	makeAndDeleteNamespace(t, client, "before")
	// Of one identity Lease, each would take the renewals of the other for conflicts.
	storetest.Eventually(t, "byre status shows both", func() bool {
		return len(readJSONStatus(t, "status", "--data-dir", second.dir, "--cert-dir", pki).Replicas) == 2
	})
	expectReplicasInStatus(t, client, leader, "--data-dir", second.dir, "--cert-dir", pki)

	leases, err := client.CoordinationV1().Leases("kube-system").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=byre-controllers"})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Stop()
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitForEndpoints(t, client, "192.0.2.2")
	waitForLeader(t, client, leader)
	// A leader that stops releases its Lease, so that no other process has to wait until it expires.
	for event := range leases.ResultChan() {
		holder := ""
		if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Spec.HolderIdentity != nil {
			holder = *lease.Spec.HolderIdentity
		}
		if holder == leader {
			continue
		}
		if holder != "" {
			t.Errorf("%s took the Lease, which %s had not released", holder, leader)
		}
		break
	}
	for path, want := range map[string]int{"/readyz": http.StatusInternalServerError, "/livez": http.StatusOK, "/api/v1/namespaces/default": http.StatusOK} {
		if status, body := first.mustGet(t, path); status != want {
			t.Errorf("%s of the replica that left: %d %s", path, status, body)
		}
	}
	makeAndDeleteNamespace(t, client, "after")
}

// expectReplicasInStatus expects byre status to name each replica and the leader, and not to call a
// replica alive that was killed. The Leases of two other hosts are
// written here, one of them so that it is new for as long as the test takes.
func expectReplicasInStatus(t *testing.T, client kubernetes.Interface, leader string, flags ...string) {
	t.Helper()
	for host, seen := range map[string]time.Duration{"other": -time.Hour, "killed": 5 * time.Minute} {
		id, err := controllers.ServerID(host, "6443")
		if err != nil {
			t.Fatal(err)
		}
		renewed := metav1.NewMicroTime(time.Now().Add(-seen))
		_, err = client.CoordinationV1().Leases("kube-system").Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{
				"apiserver.kubernetes.io/identity": "kube-apiserver", corev1.LabelHostname: host,
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(id + "_1"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &renewed},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(leader, "_")
	lines := []string{
		`Replica +` + host + ` ` + id + `, last seen \d+s ago`,
		`Replica +other apiserver-\S+, last seen 0s ago`,
		`Replica +killed apiserver-\S+, NOT SEEN for \d+m\S*`,
		`Leader +byre-controllers: ` + host + ` ` + leader + `, renewed \d+s ago`,
	}
	// A server that starts deletes the Lease of its host and writes it again.
	storetest.EventuallyDone(t, "byre status names the replicas and the leader", func(context.Context) (bool, error) {
		_, text, errOut := call(append([]string{"status"}, flags...)...)
		for _, line := range lines {
			if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) {
				return false, fmt.Errorf("no line %s in\n%s%s", line, text, errOut)
			}
		}
		return true, nil
	})
}

// waitForLeader waits until another process than old runs the controllers.
func waitForLeader(t *testing.T, client kubernetes.Interface, old string) string {
	t.Helper()
	var holder string
	storetest.EventuallyDone(t, "a leader", func(ctx context.Context) (bool, error) {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "byre-controllers", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		holder = *lease.Spec.HolderIdentity
		return holder != "" && holder != old, nil
	})
	return holder
}

// makeAndDeleteNamespace creates a namespace and deletes it, for which a controller has to run.
func makeAndDeleteNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteNamespace(t, client, name)
}

func deleteNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	ctx := t.Context()
	if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the namespace is deleted", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// TestReplicas_TheOtherFinishesTheRolloutOfAKilledLeader kills the leader of two servers, which
// run the scheduler and the controllers of workloads too, in the middle of a rollout.
func TestReplicas_TheOtherFinishesTheRolloutOfAKilledLeader(t *testing.T) {
	t.Parallel()
	flags := []string{"--endpoint", pgtest.DSN(t), "--cert-dir", t.TempDir(), "--with-scheduler", "--with-controller-manager"}
	first := startServer(t, t.TempDir(), flags...)
	leader := waitForLeader(t, kubernetes.NewForConfigOrDie(first.config(t)), "")
	second := startServer(t, t.TempDir(), flags...)
	client := kubernetes.NewForConfigOrDie(second.config(t))
	createReadyNode(t, client, "node1")
	const oldImage, newImage = "example.com/web:1", "example.com/web:2"
	deployments := client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), webDeployment(oldImage), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRollout(t, client, oldImage)

	// The Deployment replaces one Pod at a time. It waits for the first new one, which is not
	// ready until a test says so.
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":%q}]}}}}`, newImage)
	if _, err := deployments.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "a new Pod is bound", func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName != "" && pod.Spec.Containers[0].Image == newImage
		}), err
	})
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	waitForLeader(t, client, leader)
	// It is promised within 5 s; a loaded machine takes longer.
	took := time.Since(killed)
	t.Logf("the other server leads %v after the leader was killed", took.Round(100*time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("the other server leads only %v after the leader was killed", took)
	}
	awaitRollout(t, client, newImage)
}

func webDeployment(image string) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0)),
			}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: image}}, TerminationGracePeriodSeconds: new(int64(0)),
				},
			},
		},
	}
}

// awaitRollout waits until the Deployment web has rolled an image out. It makes each Pod ready
// that is bound, as a kubelet would.
func awaitRollout(t *testing.T, client kubernetes.Interface, image string) {
	t.Helper()
	ready := []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
	storetest.EventuallyDone(t, "the rollout of "+image, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodRunning {
				continue
			}
			_, err := client.CoreV1().Pods("default").Patch(ctx, pod.Name, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status")
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		d, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		isOld := func(pod corev1.Pod) bool { return pod.Spec.Containers[0].Image != image }
		return d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 2 && d.Status.AvailableReplicas == 2 &&
			len(pods.Items) == 2 && !slices.ContainsFunc(pods.Items, isOld), nil
	})
}

// readOnlySite is a PostgreSQL with a hot standby, a server that writes, and one that only reads.
type readOnlySite struct {
	primary, standby *pgtest.Cluster
	flags            []string // of servers that write
	writer, reader   *serverProcess
}

func startReadOnlySite(t *testing.T) *readOnlySite {
	t.Helper()
	pgtest.DSN(t) // skips the test where there is no PostgreSQL
	primary, err := pgtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() }) // it may only tell the signal
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop() })
	s := &readOnlySite{primary: primary, standby: standby}
	// The Leases have the address that the servers listen on, which can't be an endpoint of the Service.
	s.flags = []string{
		"--endpoint", primary.DSN("postgres"), "--cert-dir", t.TempDir(),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
	}
	s.writer = startServer(t, t.TempDir(), s.flags...)
	s.flags[1] += "&application_name=reader"
	s.reader = startServer(t, t.TempDir(), append(s.flags, "--read-only-cache", standby.DSN("postgres"))...)
	return s
}

func TestReadOnly_ServesWhatAPrimaryHolds(t *testing.T) {
	t.Parallel()
	s := startReadOnlySite(t)
	t.Run("forwards writes and reads them", s.testForwarding)
	t.Run("forwards to the servers that are left", s.testServersThatAreLeft)
	t.Run("notices migrate down and restore", s.testRestore)
}

func (s *readOnlySite) testForwarding(t *testing.T) {
	config := s.reader.config(t)
	client := kubernetes.NewForConfigOrDie(config)
	maps := client.CoreV1().ConfigMaps("default")
	watcher, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); err != nil || got.ResourceVersion != made.ResourceVersion {
		t.Errorf("what was created: %+v, %v", got, err)
	}
	for i := range 20 {
		patch := fmt.Sprintf(`{"data":{"n":"%d"}}`, i)
		if _, err := maps.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := maps.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
		if err != nil || len(list.Items) != 1 || list.Items[0].Data["n"] != fmt.Sprint(i) {
			t.Fatalf("after patch %d: %+v, %v", i, list, err)
		}
	}
	made.Data = map[string]string{"stale": "yes"}
	if _, err := maps.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of what has changed: %v", err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was deleted: %v", err)
	}
	n := 0
	for event := range watcher.ResultChan() {
		if n++; event.Type == apiwatch.Deleted {
			break
		}
	}
	if n != 22 {
		t.Errorf("%d events, want 22", n)
	}
	s.expectRealUser(t, config)
	s.expectWarningOnce(t, config)
	s.expectNoTrace(t)
	if strings.Contains(s.reader.log.String(), "the standby can't be read") {
		t.Errorf("the reads went to the primary:\n%s", s.reader.log)
	}
	_, metrics := s.reader.mustGet(t, "/metrics")
	for _, want := range []string{"\nbyre_read_only_primary_reads_total 0\n", "\nbyre_read_only_replay_wait_seconds_count "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no metric %q", want)
		}
	}
}

// "byre migrate down" and "byre restore" don't notice a server that only reads. It answers 503 until another server
// has served what was restored, and then ends its watches.
func (s *readOnlySite) testRestore(t *testing.T) {
	config, endpoint, file := s.reader.config(t), s.primary.DSN("postgres"), filepath.Join(t.TempDir(), "byre.zst")
	writer := startServer(t, t.TempDir(), append([]string{"--endpoint", endpoint}, s.flags[2:]...)...)
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	var made *corev1.ConfigMap
	storetest.EventuallySucceeds(t, "the reader finds the server that writes", func() (err error) {
		made, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "restored"}}, metav1.CreateOptions{})
		return err
	})
	watcher, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	expectUnavailable := func(log string) {
		t.Helper()
		for _, path := range []string{"configmaps", "configmaps/restored", "secrets", "secrets?limit=1"} {
			if status, answer := s.reader.mustGet(t, "/api/v1/namespaces/default/"+path); status != http.StatusServiceUnavailable {
				t.Errorf("%s: %d %s", path, status, answer)
			}
		}
		storetest.Eventually(t, log, func() bool { return strings.Contains(s.reader.log.String(), log) })
	}
	succeed(t, "backup", "--endpoint", endpoint, file)
	writer.stop(t)
	succeed(t, "migrate", "down", "--endpoint", endpoint, "--yes-delete-all-data")
	expectUnavailable("byre migrate status")
	succeed(t, "restore", "--endpoint", endpoint, file)
	expectUnavailable("start a server that writes")
	startServer(t, t.TempDir(), append([]string{"--endpoint", endpoint}, s.flags[2:]...)...)
	storetest.EventuallySucceeds(t, "the restored object is read", func() error {
		got, err := maps.Get(t.Context(), "restored", metav1.GetOptions{})
		if err == nil && got.UID != made.UID {
			t.Errorf("another object: %+v", got)
		}
		return err
	})
	event := <-watcher.ResultChan()
	if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("the watch: %v %v", event.Type, err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a list at a revision of before: %v", err)
	}
	storetest.EventuallySucceeds(t, "the new server takes writes", func() error { return maps.Delete(t.Context(), "restored", metav1.DeleteOptions{}) })
}

// expectRealUser expects the history to name who impersonated the author of a change, and the author to have
// the rights of the one who was impersonated.
func (s *readOnlySite) expectRealUser(t *testing.T, config *rest.Config) {
	t.Helper()
	as := rest.CopyConfig(config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "alice"}
	alice := kubernetes.NewForConfigOrDie(as)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "impersonated"}}
	if _, err := alice.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("alice may create: %v", err)
	}
	as.Impersonate.Groups = []string{"system:masters"}
	masters := kubernetes.NewForConfigOrDie(as)
	if _, err := masters.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, changes := s.reader.mustGet(t, "/apis/history.byre.dev/v1/changes?fieldSelector=object.resource%3Dnamespaces,object.name%3Dimpersonated")
	if !strings.Contains(changes, `"who":"alice"`) || !strings.Contains(changes, `"realUser":"byre-admin"`) {
		t.Errorf("the changes do not tell who it was: %s", changes)
	}
}

// expectWarningOnce expects the answer to a forwarded request to be that of the server that writes, with each header
// once.
func (*readOnlySite) expectWarningOnce(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	body := strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w"},"unknown":1}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+"/api/v1/namespaces/default/configmaps?fieldValidation=Warn", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusCreated {
		t.Errorf("%d %s", response.StatusCode, answer)
	}
	for _, name := range []string{"Warning", "Audit-Id", "Cache-Control", "X-Kubernetes-Pf-Flowschema-Uid"} {
		if n := len(response.Header.Values(name)); n != 1 {
			t.Errorf("%s is there %d times: %v", name, n, response.Header)
		}
	}
}

// expectNoTrace expects the server that only reads to have one session on the primary, without a lock, and no
// identity Lease and no endpoint.
func (s *readOnlySite) expectNoTrace(t *testing.T) {
	t.Helper()
	if err := s.primary.Exec(t.Context(), `DO $$ BEGIN
ASSERT (SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'reader'), 'not one session';
ASSERT (SELECT count(*) = 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'reader'
        AND l.locktype <> 'virtualxid' AND l.mode <> 'AccessShareLock'), 'locks'; END $$`); err != nil {
		t.Error(err)
	}
	status := readJSONStatus(t, "status", "--data-dir", s.writer.dir, "--endpoint", s.primary.DSN("postgres"), "--cert-dir", s.flags[3])
	if len(status.Replicas) != 1 {
		t.Errorf("replicas: %+v", status.Replicas)
	}
}

// Writes go to another server when the first one is killed. Without any they may be repeated, and reads go on.
func (s *readOnlySite) testServersThatAreLeft(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(s.reader.config(t))
	create := func(ctx context.Context, name string) error {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := create(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	second := startServer(t, t.TempDir(), append([]string{"--endpoint", s.primary.DSN("postgres")}, s.flags[2:]...)...)
	storetest.Eventually(t, "both have a Lease", func() bool {
		identity := metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity"}
		leases, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), identity)
		return err == nil && len(leases.Items) == 2
	})
	if err := s.writer.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.writer.wait(t)
	storetest.EventuallySucceeds(t, "the other server takes writes", func() error { return create(t.Context(), "b") })
	if err := second.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second.wait(t)
	config := rest.CopyConfig(s.reader.config(t))
	plain, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "503 with Retry-After", func(ctx context.Context) (bool, error) {
		body := strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+"/api/v1/namespaces/default/configmaps", body)
		if err != nil {
			return false, err
		}
		req.Header.Set("Content-Type", "application/json")
		response, err := plain.Do(req)
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "1", nil
	})
	for _, name := range []string{"a", "b"} {
		if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("what is read meanwhile: %v", err)
		}
	}
}

func TestReadOnly_RefusesFlagsThatWrite(t *testing.T) {
	t.Parallel()
	dir, primary := t.TempDir(), "--endpoint=postgres://127.0.0.1:1/byre"
	for want, args := range map[string][]string{
		"needs PostgreSQL":                            {"--read-only-cache=postgres://127.0.0.1:1/byre"},
		"no controllers run":                          {primary, "--read-only-cache=postgres://127.0.0.1:1/byre", "--controllers=*"},
		"leave out --backup-schedule":                 {primary, "--read-only-cache=postgres://127.0.0.1:1/byre", "--backup-schedule=@daily", "--backup-to=" + dir},
		"name the primary with --endpoint, and a hot": {primary, "--read-only-cache=sqlite:///x"},
		"connection refused":                          {primary, "--read-only-cache=postgres://127.0.0.1:1/byre"},
	} {
		p := command(t, dir, serveArgs(dir, args...)...)
		if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), want) {
			t.Errorf("%v: status %d, want %q\n%s", args, status, want, p.log)
		}
	}
}
