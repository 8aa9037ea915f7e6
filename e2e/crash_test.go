package e2e

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestCrash_KeepsAcknowledgedWrites kills byre in the middle of concurrent writes,
// again and again. What was acknowledged is there afterwards, at its revision; the
// revision has not gone back, and none is missing or given twice.
func TestCrash_KeepsAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCrash(t, openDatabase(t, name))
		})
	}
}

func testCrash(t *testing.T, db database) {
	const ns, rounds, enough = "crash", 4, 300
	byre := servers.Byre{Dir: filepath.Join(t.TempDir(), "data"), Endpoint: db.endpoint}
	acknowledged := map[string]string{}
	for round := range rounds {
		s, err := byre.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		c := client(t, s)
		if round == 0 {
			createNamespace(t, c, ns)
		}
		checkSurvivors(t, c, ns, acknowledged)
		checkDense(t, db)
		maps.Copy(acknowledged, writeUntilKilled(t, s, c, ns, round, enough))
	}
	s, err := byre.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkSurvivors(t, client(t, s), ns, acknowledged)
	checkDense(t, db)
	if err := s.Stop(); err != nil {
		t.Errorf("byre ended with: %v", err)
	}
}

// writeUntilKilled creates and updates from many clients at once, kills the
// server when enough was acknowledged, and returns name and revision of that.
func writeUntilKilled(
	t *testing.T, s *servers.Server, c kubernetes.Interface, ns string, round, enough int,
) map[string]string {
	t.Helper()
	var mu sync.Mutex
	acknowledged := map[string]string{}
	each(t, 16, func(ctx context.Context, w int) error {
		for i := 0; ; i++ {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("r%d-w%d-%d", round, w, i)}}
			written, err := c.CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{})
			if err != nil {
				select {
				case <-s.Done():
					return nil
				case <-time.After(storetest.Patience):
					return fmt.Errorf("a live server refused a write: %w", err)
				}
			}
			mu.Lock()
			acknowledged[written.Name] = written.ResourceVersion
			n := len(acknowledged)
			mu.Unlock()
			if n == enough {
				s.Kill()
			}
		}
	})
	return acknowledged
}

func checkSurvivors(t *testing.T, c kubernetes.Interface, ns string, acknowledged map[string]string) {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	for _, cm := range list.Items {
		there[cm.Name] = cm.ResourceVersion
	}
	for name, revision := range acknowledged {
		if there[name] != revision {
			t.Errorf("%s was acknowledged at %s and is at %q after the crash", name, revision, there[name])
		}
		if n, err := strconv.ParseInt(revision, 10, 64); err != nil || n > last {
			t.Errorf("revision %s was acknowledged, and the store is at %d after the crash (%v)", revision, last, err)
		}
	}
}

// checkDense checks that the changes' revisions have no gap.
func checkDense(t *testing.T, db database) {
	t.Helper()
	rows := mustQuery(t, db, "SELECT count(*), max(revision) - min(revision) + 1 FROM changes")
	if count, span := splitRow(t, rows[0]); count != span {
		t.Errorf("%s changes have %s revisions between the first and the last", count, span)
	}
}
