package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"byre/apiserver/server"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// byre compact deletes the history at once: through the running server, and of a database that no
// server uses. What is younger than --keep stays.
func TestCompact_WithAndWithoutAServer(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		server := startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		made, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out, _ := succeed(t, "compact", "--data-dir", dir, "--keep=1h")
		if !strings.Contains(out, "all younger than --keep 1h0m0s: --keep 0 deletes them too") {
			t.Errorf("compact of a young history: %s", out)
		}
		resume := metav1.ListOptions{ResourceVersion: made.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact}
		if _, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), resume); err != nil {
			t.Errorf("what is younger than --keep is gone: %v", err)
		}
		if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		succeed(t, "compact", "--data-dir", dir, "--keep=0s")
		expectFailure(t, "--keep must not be negative", "compact", "--data-dir", dir, "--keep=-1s")
		// The feed of a server learns of a compaction with the next change.
		storetest.EventuallyDone(t, "the history is gone", func(ctx context.Context) (bool, error) {
			_, err := kube.CoreV1().ConfigMaps("default").List(ctx, resume)
			return err != nil, nil
		})
		if len(flags) == 0 {
			expectWhyNotAsked(t, dir)
		}
		server.stop(t)
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		if out, _ := succeed(t, "compact", "--endpoint", endpoint, "--keep=0s"); !strings.HasPrefix(out,
			"compacted up to revision ") {
			t.Errorf("compact says %q", out)
		}
		if s := readJSONStatus(t, "status", "--data-dir", t.TempDir(), "--endpoint",
			endpoint); s.Database.CompactedRevision == 0 || s.Database.CompactedRevision != s.Database.Revision {
			t.Errorf("afterwards %+v", s.Database)
		}
	})
}

// A compaction of one resource leaves the past of the others: a list reads it, and a watch resumes
// from it, on a server that has none of it in memory. In a new epoch no resource has it.
func TestCompact_LeavesThePastOfOtherResources(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir, restored := t.TempDir(), "sqlite://"+t.TempDir()+"/byre.db"
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		server := startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		made, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changed := made.DeepCopy()
		changed.Data = map[string]string{"a": "b"}
		if _, err := kube.CoreV1().ConfigMaps("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		for range 3 {
			if lease, err = kube.CoordinationV1().Leases("default").Create(t.Context(), lease,
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := kube.CoordinationV1().Leases("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			lease.ObjectMeta = metav1.ObjectMeta{Name: "a"}
		}
		succeed(t, "compact", "--data-dir", dir, "--resource=leases.coordination.k8s.io")
		server.stop(t)
		server = startServer(t, dir, append([]string{"--controllers="}, flags...)...)
		kube = kubernetes.NewForConfigOrDie(server.config(t))

		at := metav1.ListOptions{ResourceVersion: made.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1}
		from := metav1.ListOptions{ResourceVersion: made.ResourceVersion}
		listed, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), at)
		if err != nil || len(listed.Items) != 1 || len(listed.Items[0].Data) != 0 {
			t.Errorf("list of what is kept: %+v, %v", listed, err)
		}
		event, err := firstEvent(kube.CoreV1().ConfigMaps("default").Watch(t.Context(), from))
		if configMap, ok := event.Object.(*corev1.ConfigMap); err != nil || event.Type != watch.Modified || !ok ||
			configMap.Data["a"] != "b" {
			t.Errorf("watch of what is kept: %+v, %v", event, err)
		}
		expectGone := func(what string, err error) {
			t.Helper()
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err = kube.CoordinationV1().Leases("default").List(t.Context(), at)
		expectGone("list of what is compacted", err)
		_, err = firstEvent(kube.CoordinationV1().Leases("default").Watch(t.Context(), from))
		expectGone("watch of what is compacted", err)
		server.stop(t)

		succeed(t, "restore", "--from", endpoint, "--endpoint", restored)
		kube = kubernetes.NewForConfigOrDie(startServer(t, dir, "--controllers=", "--endpoint", restored).config(t))
		_, err = kube.CoreV1().ConfigMaps("default").List(t.Context(), at)
		expectGone("list in a new epoch", err)
		_, err = firstEvent(kube.CoreV1().ConfigMaps("default").Watch(t.Context(), from))
		expectGone("watch in a new epoch", err)
		_, err = kube.CoreV1().Secrets("default").List(t.Context(), at)
		expectGone("list of a resource without changes in a new epoch", err)
		_, err = firstEvent(kube.AppsV1().Deployments("default").Watch(t.Context(), from))
		expectGone("watch of a resource without objects in a new epoch", err)
	})
}

// firstEvent returns the first event of a watch. An event that is an error is returned as an error.
func firstEvent(watching watch.Interface, err error) (watch.Event, error) {
	if err != nil {
		return watch.Event{}, err
	}
	defer watching.Stop()
	event := <-watching.ResultChan()
	if event.Type == watch.Error {
		return event, apierrors.FromObject(event.Object)
	}
	return event, nil
}

// expectWhyNotAsked: where the server can't be asked and has its database locked, the error says why it can't be asked.
func expectWhyNotAsked(t *testing.T, dir string) {
	t.Helper()
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: "of nobody"}
	}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	expectFailure(t,
		"): no server can be asked with admin.kubeconfig: the server has asked for the client to provide credentials",
		"compact", "--data-dir", dir)
	expectFailure(t, "): name its --data-dir instead of --endpoint", "compact", "--endpoint", "sqlite://"+dir+"/byre.db")
}

// newCompaction returns a compaction whose progress has a line for each request.
func newCompaction() (c *compaction, out, progress *bytes.Buffer) {
	out, progress = &bytes.Buffer{}, &bytes.Buffer{}
	c = &compaction{out: out, progress: newProgress(progress, "deleting history"),
		request: server.CompactRequest{Keep: time.Hour}}
	now := c.progress.start
	c.progress.clock = func() time.Time {
		now = now.Add(25 * time.Second)
		return now
	}
	return c, out, progress
}

// script returns a server that gives answers, one after the other, and the last one again.
func script(t *testing.T, answers ...server.CompactResult) func(server.CompactRequest) (server.CompactResult, error) {
	upTo := int64(0)
	return func(request server.CompactRequest) (server.CompactResult, error) {
		if request.UpTo != upTo {
			t.Errorf("request up to %d, want what the last answer has: %d", request.UpTo, upTo)
		}
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		upTo = answer.UpTo
		return answer, nil
	}
}

// byre compact shows how many changes are left, then how much space is returned, and says what the file keeps.
func TestCompact_ShowsItsProgress(t *testing.T) {
	t.Parallel()
	c, out, progress := newCompaction()
	const gib = 1 << 30
	err := c.repeat(t.Context(), script(t,
		server.CompactResult{UpTo: 9, Older: 1000, BeforeBytes: 6 * gib, Deleted: 400, SizeBytes: 6 * gib,
			UsedBytes: 4 * gib},
		server.CompactResult{UpTo: 9, Deleted: 600, IsDeleted: true, SizeBytes: 5 * gib, UsedBytes: gib,
			CompactedRevision: 9},
		server.CompactResult{UpTo: 9, IsDeleted: true, SizeBytes: 4 * gib, UsedBytes: gib, CompactedRevision: 9},
	))
	if err == nil {
		err = c.print()
	}
	if err != nil {
		t.Fatal(err)
	}
	const wantProgress = "deleting history [############                  ] 40%, 600 changes left, 16 a second, 2048.0 MiB free in the file\n" +
		"returning space: 1024.0 MiB returned, 4096.0 MiB left in the file\n" +
		"returning space: 2048.0 MiB returned, 3072.0 MiB left in the file\n"
	if progress.String() != wantProgress {
		t.Errorf("progress:\n%s\nwant\n%s", progress, wantProgress)
	}
	const wantOut = "compacted up to revision 9: 1000 changes are deleted; the database has 4096.0 MiB, 2048.0 MiB less\n" +
		"the file keeps 3072.0 MiB for what is written next, and the server returns it little by little: stop it and run \"byre compact\" again to return it at once\n"
	if out.String() != wantOut {
		t.Errorf("output:\n%s\nwant\n%s", out, wantOut)
	}
}

// A compaction that has nothing to delete but what is younger says so, names the remedy of a full disk, and returns the
// space of what was deleted before.
func TestCompact_SaysThatAllIsYounger(t *testing.T) {
	t.Parallel()
	c, out, _ := newCompaction()
	err := c.repeat(t.Context(), script(t,
		server.CompactResult{UpTo: 9, Younger: 70, BeforeBytes: 3 << 20, SizeBytes: 2 << 20, IsDeleted: true},
		server.CompactResult{UpTo: 9, SizeBytes: 1 << 20, IsDeleted: true, Done: true}))
	if err == nil {
		err = c.print()
	}
	const want = "nothing is deleted: the history has 70 changes, all younger than --keep 1h0m0s: --keep 0 deletes them too; " +
		"the database has 1.0 MiB, 2.0 MiB less\n"
	if err != nil || out.String() != want {
		t.Errorf("%v, %q", err, out)
	}
}

// A compaction that is interrupted, or fails, says that it can go on.
func TestCompact_FailsWithWhatToDo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, _, _ := newCompaction()
	err := c.repeat(ctx, func(server.CompactRequest) (server.CompactResult, error) {
		if c.deleted > 0 {
			cancel()
			return server.CompactResult{}, ctx.Err()
		}
		return server.CompactResult{UpTo: 9, Older: 100, Deleted: 40}, nil
	})
	if err == nil || err.Error() != "interrupted: 40 of about 100 changes are deleted: run the command again to go on" {
		t.Error(err)
	}

	c, _, _ = newCompaction()
	away := errors.New("the server has gone")
	err = c.repeat(t.Context(), func(server.CompactRequest) (server.CompactResult, error) {
		if c.deleted > 0 {
			return server.CompactResult{}, away
		}
		return server.CompactResult{UpTo: 9, Older: 100, Deleted: 40}, nil
	})
	if !errors.Is(err, away) ||
		!strings.HasPrefix(err.Error(), "40 of about 100 changes are deleted: run the command again to go on: ") {
		t.Error(err)
	}
}

// changesOf counts what is left of the history of a resource, and returns for how long it is kept.
func changesOf(t *testing.T, endpoint, resource string) (left int, retainedFor time.Duration) {
	t.Helper()
	if err := readDatabase(t.Context(), endpoint, func(s sqlstore.Snapshot) error {
		retainedFor = s.RetainedOf(sqlstore.Resource{Resource: resource}).RetainedFor
		for row, err := range s.Changes {
			if err != nil {
				return err
			}
			if row.Resource == resource && row.Namespace == "default" { // a server changes its own ConfigMaps
				left++
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return left, retainedFor
}

// byre compact leaves out the resources that keep their history for longer, and says so; it deletes
// the history of one resource that is named. Both hold with a server and without, whatever the
// server's --retention is.
func TestCompact_KnowsResources(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		dir := t.TempDir()
		endpoint := "sqlite://" + dir + "/byre.db"
		if len(flags) > 0 {
			endpoint = flags[1]
		}
		server := startServer(t, dir,
			append([]string{"--controllers=", "--retention=48h", "--retention-for=configmaps=90d",
				"--compaction-interval=100ms"}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		change := func() {
			t.Helper()
			meta := metav1.ObjectMeta{Name: "a"}
			if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: meta},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := kube.CoreV1().Secrets("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(what string, configMaps, secrets bool) {
			t.Helper()
			c, _ := changesOf(t, endpoint, "configmaps")
			s, _ := changesOf(t, endpoint, "secrets")
			if c > 0 != configMaps || s > 0 != secrets {
				t.Errorf("%s: the history has %d changes of configmaps, %d of secrets", what, c, s)
			}
		}
		const leftOut = "left out, because they keep their history for longer: configmaps; delete that with --resource NAME, or '*' for all\n"
		compactWith := func(want string, args ...string) {
			t.Helper()
			if out, _ := succeed(t, append([]string{"compact"}, args...)...); !strings.HasPrefix(out,
				want+"compacted up to revision ") {
				t.Errorf("%q says %q", args, out)
			}
		}
		change()
		compactWith("", "--data-dir", dir, "--resource=secrets")
		expect("compact --resource=secrets", true, false)
		change()
		compactWith(leftOut, "--data-dir", dir, "--keep=0s")
		expect("compact --keep=0s", true, false)
		expectFailure(t, `no resource "config" has ever had an object`, "compact", "--data-dir", dir, "--resource=config")
		expectFailure(t, "did you mean configmaps?", "compact", "--data-dir", dir, "--resource=configmap")
		compactWith("", "--data-dir", dir, "--resource=configmaps")
		expect("compact --resource=configmaps", false, false)
		change()
		storetest.EventuallyDone(t, "the retention is recorded", func(context.Context) (bool, error) {
			_, retainedFor := changesOf(t, endpoint, "configmaps")
			return retainedFor == 90*24*time.Hour, nil
		})
		server.stop(t)

		compactWith("", "--endpoint", endpoint, "--resource=secrets")
		expect("compact --resource=secrets of a database", true, false)
		expectFailure(t, "(older changes of secrets are deleted)", "restore", "--from", endpoint, "--data-dir", t.TempDir(),
			"--at=1")
		compactWith(leftOut, "--endpoint", endpoint, "--keep=0s")
		expect("compact --keep=0s of a database", true, false)
		expectFailure(t, "did you mean configmaps?", "compact", "--endpoint", endpoint, "--resource=configmap")
		compactWith("", "--endpoint", endpoint, "--resource=*", "--keep=0s")
		expect("compact --resource=* of a database", false, false)
	})
}

// Where no server tells its --retention, it is the time for which most resources are kept.
func TestCompact_FindsTheRetention(t *testing.T) {
	t.Parallel()
	const day, never = 24 * time.Hour, -time.Second
	for _, c := range []struct {
		recorded []time.Duration
		want     time.Duration
	}{
		{nil, 0},
		{[]time.Duration{0}, 0},
		{[]time.Duration{90 * day, 0, 2 * day, never}, 2 * day},
		{[]time.Duration{never, 0, never}, never},
		{[]time.Duration{day, 7 * day, 0, 0, 0, 7 * day, 90 * day}, 7 * day},
	} {
		var histories []sqlstore.History
		for _, age := range c.recorded {
			histories = append(histories, sqlstore.History{RetainedFor: age})
		}
		if got := commonRetention(histories); got != c.want {
			t.Errorf("of %v: %v, want %v", c.recorded, got, c.want)
		}
	}
}

// A server warns of names of resources in flags that it does not know, and names the nearest.
func TestServe_WarnsOfUnknownResources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startServer(t, dir, "--controllers=")
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	if err := kubernetes.NewForConfigOrDie(first.config(t)).Discovery().RESTClient().Post().
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(definition)).Do(
		t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	first.stop(t)
	second := startServer(t, dir, "--controllers=", "--volatile=leaes,events",
		"--retention-for=deployments.app=90d,widgets.example.com=2d,widget.example.com=3d,*=36h,services=2d,zzzzzz=2d")
	for name, nearest := range map[string]string{
		"leaes": "leases", "deployments.app": "deployments.apps", "widget.example.com": "widgets.example.com", "zzzzzz": "",
		"events": "-", "widgets.example.com": "-", "*": "-", "services": "-",
	} {
		want := fmt.Sprintf("resource=%q nearest=%q", name, nearest)
		if log := second.log.String(); strings.Contains(log, want) != (nearest != "-") ||
			strings.Contains(log, fmt.Sprintf("resource=%q", name)) != (nearest != "-") {
			t.Errorf("%s: the log has\n%s", name, log)
		}
	}
}
