package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestReplicas_ShareOneDatabase runs two byre processes on one PostgreSQL.
func TestReplicas_ShareOneDatabase(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, "postgres")
	a := startByre(t, db)
	b := startReplica(t, db, a)
	const ns = "shared"
	createNamespace(t, client(t, a), ns)

	t.Run("every replica sees the same dense revisions", func(t *testing.T) { testSameRevisions(t, db, ns, a, b) })
	t.Run("a read sees what another replica just wrote", func(t *testing.T) { testReadYourWrites(t, ns, a, b) })
	t.Run("a write to RBAC is in force within a second", func(t *testing.T) { testRulesOnReplicas(t, a, b) })
	t.Run("a stopped replica does not hold up the other", func(t *testing.T) { testStoppedReplica(t, ns, a, b) })
}

// startReplica starts one more byre on the same database, with the same keys.
func startReplica(t *testing.T, db database, first *servers.Server) *servers.Server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "replica")
	if err := os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Dir(first.CAFile))); err != nil {
		t.Fatal(err)
	}
	s, err := servers.Byre{Dir: dir, Endpoint: db.endpoint}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("the replica ended with: %v", err)
		}
	})
	return s
}

func testSameRevisions(t *testing.T, db database, ns string, replicas ...*servers.Server) {
	const each8 = 200
	list, err := client(t, replicas[0]).CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var watches []watch.Interface
	for _, s := range replicas {
		w, err := client(t, s).CoreV1().ConfigMaps(ns).Watch(t.Context(),
			metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	each(t, 8, func(ctx context.Context, w int) error {
		c := client(t, replicas[w%len(replicas)])
		for i := range each8 {
			if err := createConfigMap(ctx, c, ns, fmt.Sprintf("w%d-%d", w, i)); err != nil {
				return err
			}
		}
		return nil
	})
	want := mustQuery(t, db,
		fmt.Sprintf(
			"SELECT revision, name FROM changes WHERE resource = 'configmaps' AND namespace = '%s' AND revision > %s ORDER BY revision", ns, list.ResourceVersion))
	// A controller creates one more ConfigMap in a new namespace.
	if len(want) != 8*each8 && len(want) != 8*each8+1 {
		t.Fatalf("%d creates left %d changes", 8*each8, len(want))
	}
	for i, w := range watches {
		if got := collect(t, w, len(want)); !slices.Equal(got, want) {
			t.Errorf("the watch on replica %d saw another history than the database has", i)
		}
	}
	checkDense(t, db)
}

func collect(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	timeout := time.After(storetest.Patience)
	var rows []string
	for len(rows) < n {
		select {
		case event, open := <-w.ResultChan():
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !open || !ok {
				t.Fatalf("after %d events: %v", len(rows), event)
			}
			rows = append(rows, cm.ResourceVersion+"\t"+cm.Name)
		case <-timeout:
			t.Fatalf("the watch showed %d of %d changes", len(rows), n)
		}
	}
	return rows
}

func testReadYourWrites(t *testing.T, ns string, a, b *servers.Server) {
	writer, reader := client(t, a), client(t, b)
	for i := range 100 {
		name := "fresh-" + strconv.Itoa(i)
		if err := createConfigMap(t.Context(), writer, ns, name); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatalf("the other replica: %v", err)
		}
		writer, reader = reader, writer
	}
}

// testStoppedReplica stops one replica in the middle of its writes, time and
// again, so that it now and then holds the writers' lock.
func testStoppedReplica(t *testing.T, ns string, stopped, other *servers.Server) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written := make(chan struct{})
	var busy sync.WaitGroup
	for w := range 8 {
		c := client(t, stopped)
		busy.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				// Errors are expected, since the replica is stopped.
				_ = createConfigMap(ctx, c, ns, fmt.Sprintf("busy-%d-%d", w, i))
				select {
				case written <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	c := client(t, other)
	for round := range 20 {
		for range 10 + round {
			<-written
		}
		if err := stopped.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		name := "meanwhile-" + strconv.Itoa(round)
		if err := createConfigMap(t.Context(), c, ns, name); err != nil {
			t.Errorf("while the other replica is stopped: %v", err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("a write waited for the stopped replica for %v", took)
		}
		if err := stopped.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		// It must not answer with the state that it had read before it was stopped.
		if _, err := client(t, stopped).CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("the replica that goes on: %v", err)
		}
	}
	cancel()
	busy.Wait()
}

func createConfigMap(ctx context.Context, c kubernetes.Interface, ns, name string) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{})
	return err
}
