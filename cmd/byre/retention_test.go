package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

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
		server := startServer(t, dir, append([]string{"--controllers=", "--retention=48h", "--retention-for=configmaps=90d", "--compaction-interval=100ms"}, flags...)...)
		kube := kubernetes.NewForConfigOrDie(server.config(t))
		change := func() {
			t.Helper()
			meta := metav1.ObjectMeta{Name: "a"}
			if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
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
			if out, _ := succeed(t, append([]string{"compact"}, args...)...); !strings.HasPrefix(out, want+"compacted up to revision ") {
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
		expectFailure(t, "(older changes of secrets are deleted)", "restore", "--from", endpoint, "--data-dir", t.TempDir(), "--at=1")
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
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(definition)).Do(t.Context()).Error(); err != nil {
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
		if log := second.log.String(); strings.Contains(log, want) != (nearest != "-") || strings.Contains(log, fmt.Sprintf("resource=%q", name)) != (nearest != "-") {
			t.Errorf("%s: the log has\n%s", name, log)
		}
	}
}
