package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"byre/apiserver/process/pki"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// machine is one of two that share a bucket.
type machine struct {
	*serverProcess
	dir  string
	args []string
	env  []string
	// away cuts it off the bucket.
	away *atomic.Bool
}

const sharedURL = "s3://copies/cluster-1"

// pair returns two machines on which nothing runs yet.
func pair(t *testing.T) (a, b *machine) {
	t.Helper()
	service, keys := storetest.NewS3(t, "copies"), t.TempDir()
	var machines []*machine
	for range 2 {
		m := &machine{dir: t.TempDir(), away: new(atomic.Bool)}
		_, env := storetest.ServeS3(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m.away.Load() {
				w.WriteHeader(http.StatusForbidden) // minio-go does not repeat it
				return
			}
			service.ServeHTTP(w, r)
		}))
		m.env = slices.Concat(os.Environ(), env, []string{asProgram + "=1"})
		m.args = []string{"serve", "--data-dir", m.dir, "--cert-dir", keys, "--bind-address=127.0.0.1",
			"--secure-port=" + freePort(t),
			"--controllers=", "--replicate-to", sharedURL, "--standby"}
		machines = append(machines, m)
	}
	return machines[0], machines[1]
}

// run starts a command of the program on a machine.
func (m *machine) run(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = m.env
	return start(t, m.dir, cmd)
}

// serve starts the server of a machine.
func (m *machine) serve(t *testing.T) {
	t.Helper()
	m.serverProcess = m.run(t, m.args...)
}

// awaitStandby waits until the server has a copy.
func (m *machine) awaitStandby(t *testing.T) {
	t.Helper()
	storetest.Eventually(t, "it has a copy", func() bool {
		m.mustRun(t)
		log := m.log.String()
		return strings.Contains(log, "and this server has a copy") && strings.Contains(log, `"Standby" address=`)
	})
}

func (m *machine) configMaps(t *testing.T) typedcorev1.ConfigMapInterface {
	t.Helper()
	config := m.config(t)
	config.Timeout = time.Minute
	return kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
}

func createConfigMap(t *testing.T, configMaps typedcorev1.ConfigMapInterface, name string) *corev1.ConfigMap {
	t.Helper()
	made, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestStandby_TakesOverAfterACrash kills the holder, with an acknowledged write that the bucket does not have.
// The holder comes back and follows, and is then handed the lease while writes go on.
func TestStandby_TakesOverAfterACrash(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.serve(t)
	awaitReady(t, a.serverProcess)
	b.serve(t)
	b.awaitStandby(t)
	if code, text := b.mustGet(t, "/readyz"); code != 503 || !strings.HasPrefix(text, "standby: ") ||
		!strings.HasSuffix(text, " serves") {
		t.Errorf("/readyz of the standby: %d, %s", code, text)
	}
	if code, text := b.mustGet(t, "/livez"); code != 200 {
		t.Errorf("/livez of the standby: %d, %s", code, text)
	}
	if code, text := b.mustGet(t, "/metrics"); code != 200 ||
		!regexp.MustCompile(`(?m)^byre_standby_copy_timestamp_seconds 1\.\d+e\+09$`).MatchString(text) {
		t.Errorf("/metrics of the standby: %d, %s", code, text)
	}
	if code, text := b.mustGet(t, "/api/v1/pods"); code != 503 || !strings.Contains(text, `"kind":"Status"`) ||
		!strings.Contains(text, "ServiceUnavailable") {
		t.Errorf("a request to the standby: %d, %s", code, text)
	}

	configMaps := a.configMaps(t)
	first := createConfigMap(t, configMaps, "first")
	var tenth string
	for i := range 20 {
		if made := createConfigMap(t, configMaps, fmt.Sprint("copied-", i)); i == 9 {
			tenth = made.ResourceVersion
		}
	}
	awaitCopy(t, a.serverProcess)
	a.away.Store(true)
	createConfigMap(t, configMaps, "lost")
	killed := time.Now()
	_ = a.cmd.Process.Kill()
	<-a.exited
	awaitReady(t, b.serverProcess)
	t.Logf("the standby is ready %v after the crash", time.Since(killed).Round(100*time.Millisecond))
	configMaps = b.configMaps(t)
	list, err := configMaps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 21 {
		t.Errorf("%d ConfigMaps after the takeover, %v; want 21", len(list.Items), err)
	}
	watching, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err == nil {
		event := <-watching.ResultChan()
		err = apierrors.FromObject(event.Object)
		watching.Stop()
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from a revision of before: %v", err)
	}
	// The past is there.
	asked := &chronicle{T: t, config: b.config(t)}
	for revision, want := range map[string]string{first.ResourceVersion: "0", tenth: "10"} {
		if got := asked.csv("",
			"SELECT count(*) FROM configmaps('"+revision+"') WHERE name LIKE 'copied-%'"); !slices.Equal(got, []string{want}) {
			t.Errorf("ConfigMaps at revision %s: %q, want %s", revision, got, want)
		}
	}
	createConfigMap(t, configMaps, "by-the-second")
	if out, _ := succeed(t, "status", "--data-dir", b.dir, "--cert-dir",
		b.args[4]); !regexp.MustCompile(`(?m)^Lease +\S+ serves since `).MatchString(out) {
		t.Errorf("status: %s", out)
	}

	a.away.Store(false)
	a.serve(t)
	a.awaitStandby(t)
	var kept []string
	storetest.EventuallyDone(t, "the tail of the old holder is named in its log",
		func(context.Context) (_ bool, err error) {
			kept, err = filepath.Glob(filepath.Join(a.dir, "byre.db.diverged-*"))
			return len(kept) == 1 && strings.Contains(a.log.String(), kept[0]), err
		})
	if changes, _ := changesOf(t, "sqlite://"+kept[0], "configmaps"); changes != 22 {
		t.Errorf("what was kept has %d changes of ConfigMaps, want 22", changes)
	}
	handOver(t, b, a)
}

// TestStandby_LosesNothingInACrashWithReplicateSync kills the holder while a client writes: the other one has
// every write that was acknowledged.
func TestStandby_LosesNothingInACrashWithReplicateSync(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.args, b.args = append(a.args, "--replicate-sync"), append(b.args, "--replicate-sync")
	a.serve(t)
	awaitReady(t, a.serverProcess)
	b.serve(t)
	b.awaitStandby(t)
	configMaps := a.configMaps(t)
	acknowledged := make(chan string, 10_000)
	go func() {
		defer close(acknowledged)
		for i := 0; ; i++ {
			name := fmt.Sprint("under-way-", i)
			if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{}); err != nil {
				return
			}
			acknowledged <- name
		}
	}()
	storetest.Eventually(t, "the client writes", func() bool { return len(acknowledged) >= 20 })
	_ = a.cmd.Process.Kill()
	<-a.exited
	awaitReady(t, b.serverProcess)
	list, err := b.configMaps(t).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := make(map[string]bool)
	for _, item := range list.Items {
		has[item.Name] = true
	}
	for name := range acknowledged {
		if !has[name] {
			t.Errorf("%s is lost", name)
		}
	}
}

// handOver has a server hand over to another one while a client writes to whichever serves.
func handOver(t *testing.T, from, to *machine) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	acknowledged := make(map[string]bool)
	var writing sync.WaitGroup
	servers := []typedcorev1.ConfigMapInterface{from.configMaps(t), to.configMaps(t)}
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprint("under-way-", i)
			for _, server := range servers {
				if _, err := server.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
					metav1.CreateOptions{}); err == nil {
					acknowledged[name] = true
					break
				}
			}
		}
	})
	command := from.run(t, "takeover", "--replicate-to", sharedURL, "--yes")
	if code := command.wait(t); code != 0 || !strings.Contains(command.log.String(), " serves\n") {
		t.Errorf("byre takeover: %d, %s", code, command.log)
	}
	if code := from.wait(t); code != 1 || !strings.Contains(from.log.String(), "handed over to the standby") {
		t.Errorf("the old holder ended with %d", code)
	}
	awaitReady(t, to.serverProcess)
	createConfigMap(t, to.configMaps(t), "after")
	cancel()
	writing.Wait()
	list, err := to.configMaps(t).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		delete(acknowledged, item.Name)
	}
	if len(acknowledged) > 0 {
		t.Errorf("lost: %v", acknowledged)
	}
	// The old holder has nothing that the new one lacks.
	from.serve(t)
	from.awaitStandby(t)
	storetest.EventuallyDone(t, "its database is gone", func(context.Context) (bool, error) {
		_, err := os.Stat(filepath.Join(from.dir, "byre.db"))
		return errors.Is(err, fs.ErrNotExist), nil
	})
	if kept, err := filepath.Glob(filepath.Join(from.dir, "byre.db.diverged-*")); err != nil || len(kept) > 0 {
		t.Errorf("what the new holder has was kept: %q, %v", kept, err)
	}
}

// suspend stops all threads of a process.
func suspend(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "it is stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
			stat, err := os.ReadFile(file)
			return err != nil || !strings.Contains(string(stat), ") T ")
		})
	})
}

// TestStandby_AStoppedHolderAcknowledgesNothing stops the holder until the other one serves, and lets it go on
// with a request that has come meanwhile.
func TestStandby_AStoppedHolderAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.serve(t)
	awaitReady(t, a.serverProcess)
	b.serve(t)
	b.awaitStandby(t)
	old := a.configMaps(t)
	createConfigMap(t, old, "first")
	awaitCopy(t, a.serverProcess)
	suspend(t, a.cmd.Process)
	ctx := context.WithoutCancel(t.Context())
	late := map[string]func() error{
		"create": func() error {
			_, err := old.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
			return err
		},
		"get": func() error { _, err := old.Get(ctx, "first", metav1.GetOptions{}); return err },
		"list from memory": func() error {
			_, err := old.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			return err
		},
	}
	var answers sync.WaitGroup
	for what, request := range late {
		answers.Go(func() {
			if err := request(); err == nil {
				t.Errorf("the old holder has answered a %s that came after another one served", what)
			}
		})
	}
	awaitReady(t, b.serverProcess)
	createConfigMap(t, b.configMaps(t), "by-the-second")
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	answers.Wait()
	if code := a.wait(t); code != 1 || !strings.Contains(a.log.String(), "could not renew its lease in time") {
		t.Errorf("the old holder ended with %d", code)
	}
	if changes, _ := changesOf(t, "sqlite://"+a.dir+"/byre.db", "configmaps"); changes != 1 {
		t.Errorf("the old holder has %d changes of ConfigMaps, want 1", changes)
	}
	// A stop releases the lease: whoever is there takes it at once.
	a.serve(t)
	a.awaitStandby(t)
	if code := b.stop(t); code != 0 {
		t.Errorf("a stop: %d", code)
	}
	stopped := time.Now()
	awaitReady(t, a.serverProcess)
	t.Logf("the standby is ready %v after the end of a server that was stopped",
		time.Since(stopped).Round(100*time.Millisecond))
	if _, err := a.configMaps(t).Get(t.Context(), "by-the-second", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestStandby_StartsOnAFullDisk fills the disk of the server that has served last: it serves again, as one without a
// standby does, so that objects can be deleted.
func TestStandby_StartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"--replicate-sync=false", "--replicate-sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testStartOnAFullDisk(t, mode)
		})
	}
}

func testStartOnAFullDisk(t *testing.T, mode string) {
	t.Helper()
	disk := pgtest.NewDisk(t, 224)
	a, _ := pair(t)
	a.args = append(a.args, mode)
	a.dir = filepath.Join(disk.Dir, "data")
	a.args[2] = a.dir
	a.serve(t)
	awaitReady(t, a.serverProcess)
	if status := a.stop(t); status != 0 {
		t.Fatal(status, a.log)
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	for i := range 8 { // small files take what is left
		_ = os.WriteFile(filepath.Join(disk.Dir, fmt.Sprint("rest-", i)), make([]byte, 1024), 0o600)
	}
	a.serve(t)
	storetest.Eventually(t, "it serves", func() bool {
		a.mustRun(t)
		return strings.Contains(a.log.String(), "Serving")
	})
	if _, err := a.configMaps(t).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	storetest.Eventually(t, "it says that nothing is copied", func() bool {
		return strings.Contains(a.log.String(), "replication: the database can't be captured") &&
			strings.Contains(a.log.String(), "the disk is full")
	})
}

// TestStandby_RefusesOtherKeys starts a second server without the keys of the first one, and with its own: while
// the first one serves, and when it has ended.
func TestStandby_RefusesOtherKeys(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.serve(t)
	awaitReady(t, a.serverProcess)
	b.args[4] = t.TempDir() // --cert-dir
	for range 2 {
		b.serve(t)
		if status := b.wait(t); status != 1 || !strings.Contains(b.log.String(), b.args[4]+" has other keys than ") {
			t.Errorf("status %d, %s", status, b.log)
		}
		if _, _, err := pki.Ensure(pki.Config{Dir: b.args[4], Hosts: []string{"127.0.0.1"}, Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if status := a.stop(t); status != 0 {
		t.Fatal(status, a.log)
	}
	b.serve(t)
	storetest.Eventually(t, "it ends or serves", func() bool {
		return strings.Contains(b.log.String(), b.args[4]+" has other keys than ") ||
			strings.Contains(b.log.String(), "this server takes over")
	})
	if text := b.log.String(); strings.Contains(text, "this server takes over") {
		t.Fatalf("it takes over, and clients do not trust it: %s", text)
	}
	if status := b.wait(t); status != 1 {
		t.Errorf("status %d", status)
	}
}

func TestStandby_RefusesAPlaceWithoutALease(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--standby needs one --replicate-to, s3://BUCKET/PATH": {"--replicate-to", "file:///copies"},
		"--standby needs one --replicate-to":                   {},
		"--lease-duration must be at least 3s":                 {"--replicate-to", sharedURL, "--lease-duration=1s"},
	} {
		p := command(t, t.TempDir(), append([]string{"serve", "--standby", "--data-dir", t.TempDir()}, args...)...)
		if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), want) {
			t.Errorf("%v: status %d, %s", args, status, p.log)
		}
	}
	for _, args := range [][]string{{"--replicate-sync"},
		{"--replicate-sync", "--replicate-to", "file:///copies", "--volatile=leases"}} {
		p := command(t, t.TempDir(), append([]string{"serve", "--data-dir", t.TempDir()}, args...)...)
		if status := p.wait(t); status != 1 ||
			!strings.Contains(p.log.String(), "--replicate-sync needs one --replicate-to, and no --volatile") {
			t.Errorf("%v: status %d, %s", args, status, p.log)
		}
	}
	expectFailure(t, "name the place of the two servers with --replicate-to", "takeover")
	expectFailure(t, "want s3://BUCKET/PATH", "takeover", "--replicate-to", "file:///copies")
}
