package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/bucket"
	"byre/sqlstore/replication"
	"byre/sqlstore/storetest"
)

// awaitCopy waits until a server's copy is complete at a time after this call.
func awaitCopy(t *testing.T, p *serverProcess) {
	t.Helper()
	called := time.Now()
	storetest.EventuallyDone(t, "the copy is complete", func(ctx context.Context) (bool, error) {
		_, metrics, err := get(ctx, p.config(t), "/metrics")
		if err != nil {
			return false, err
		}
		return gauge(metrics, "byre_replication_lag_seconds") == 0 &&
			gauge(metrics, "byre_replication_last_success_timestamp_seconds") > float64(called.UnixNano())/1e9, nil
	})
}

// gauge returns the value of a metric that there is once; -1 if there is none.
func gauge(metrics, name string) float64 {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name+"{") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			if err == nil {
				return value
			}
		}
	}
	return -1
}

// TestReplicate_RestoresWhatWasCopiedBeforeAKill kills a server under writes, loses its directory,
// and restores from the copy, now and at a moment.
func TestReplicate_RestoresWhatWasCopiedBeforeAKill(t *testing.T) {
	t.Parallel()
	dir, copies, pki := filepath.Join(t.TempDir(), "first"), t.TempDir(), t.TempDir()
	url := "file://" + copies
	first := startServer(t, dir, "--controllers=", "--cert-dir", pki, "--replicate-to", url)
	configMaps := kubernetes.NewForConfigOrDie(first.config(t)).CoreV1().ConfigMaps("default")
	create := func(name string) *corev1.ConfigMap {
		t.Helper()
		made, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	made := create("a")
	if err := configMaps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("b")
	for i := range 50 {
		create("load-" + strconv.Itoa(i))
	}
	awaitCopy(t, first)
	if code, _ := first.mustGet(t, "/readyz/replication"); code != 200 {
		t.Errorf("/readyz/replication: %d", code)
	}
	if out, _ := succeed(t, "status", "--data-dir", dir, "--cert-dir", pki); !strings.Contains(out, url+", ") {
		t.Errorf("status: %s", out)
	}
	_ = first.cmd.Process.Kill()
	<-first.exited
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}

	past := filepath.Join(t.TempDir(), "past")
	succeed(t, "restore", "--from", url, "--at", made.ResourceVersion, "--data-dir", past)
	succeed(t, "restore", "--from", url, "--data-dir", dir)
	if status, _, errOut := call("restore", "--from", url, "--data-dir", dir); status != 1 {
		t.Errorf("a restore into a database that has objects: status %d, %s", status, errOut)
	}
	if changes, _ := changesOf(t, "sqlite://"+dir+"/byre.db", "configmaps"); changes < 53 {
		t.Errorf("the history has %d changes of ConfigMaps, want at least 53", changes)
	}
	second := startServer(t, dir, "--controllers=", "--cert-dir", pki, "--replicate-to", url)
	configMaps = kubernetes.NewForConfigOrDie(second.config(t)).CoreV1().ConfigMaps("default")
	if list, err := configMaps.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) < 51 {
		t.Errorf("the restored server has %d ConfigMaps, %v; want all 51", len(list.Items), err)
	}
	watching, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err == nil {
		event := <-watching.ResultChan()
		err = apierrors.FromObject(event.Object)
		watching.Stop()
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from a revision of before: %v", err)
	}
	// A stop loses nothing: the copy of the second server replaces that of the first.
	create("last")
	if code := second.stop(t); code != 0 {
		t.Errorf("stop: %d", code)
	}
	last := filepath.Join(t.TempDir(), "last")
	succeed(t, "restore", "--from", url, "--data-dir", last)
	for dir, want := range map[string]string{past: "a", last: "last"} {
		third := startServer(t, dir, "--controllers=", "--cert-dir", pki)
		configMaps = kubernetes.NewForConfigOrDie(third.config(t)).CoreV1().ConfigMaps("default")
		if _, err := configMaps.Get(t.Context(), want, metav1.GetOptions{}); err != nil {
			t.Errorf("restored to %s: %v", dir, err)
		}
		if _, err := configMaps.Get(t.Context(), "b", metav1.GetOptions{}); (err == nil) != (want == "last") {
			t.Errorf("restored to %s: ConfigMap b: %v", dir, err)
		}
		third.stop(t)
	}
}

// TestReplicate_ServesWhileTheDestinationIsAway writes while the destination does not exist: the
// server stays ready, and says what is missing.
func TestReplicate_ServesWhileTheDestinationIsAway(t *testing.T) {
	t.Parallel()
	dir, away := t.TempDir(), filepath.Join(t.TempDir(), "away")
	p := startServer(t, dir, "--controllers=", "--replicate-to", "file://"+away)
	storetest.EventuallyDone(t, "the log names it", func(context.Context) (bool, error) {
		return strings.Contains(p.log.String(), "there is no directory "+away), nil
	})
	configMaps := kubernetes.NewForConfigOrDie(p.config(t)).CoreV1().ConfigMaps("default")
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, text := p.mustGet(t, "/readyz?verbose"); code != 200 || strings.Contains(text, "replication") {
		t.Errorf("/readyz: %d, %s", code, text)
	}
	_, metrics := p.mustGet(t, "/metrics")
	if gauge(metrics, "byre_replication_lag_seconds") <= 0 || gauge(metrics, "byre_replication_failures_total") <= 0 {
		t.Error("the metrics do not tell the lag and the failures")
	}
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	awaitCopy(t, p)
	p.stop(t)
}

func TestReplicate_RefusesWhatItCannotCopy(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--replicate-to copies SQLite alone": {"--endpoint", "postgres://byre@localhost/byre",
			"--replicate-to", "file:///copies"},
		"--replicate-to may be given twice at most": {"--replicate-to", "file:///a", "--replicate-to",
			"file:///b", "--replicate-to", "file:///c"},
		`--replicate-to "/a": want file:///PATH or s3://BUCKET/PATH`: {"--replicate-to", "/a"},
	} {
		p := command(t, t.TempDir(), append([]string{"serve", "--data-dir", t.TempDir()}, args...)...)
		if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), want) {
			t.Errorf("%v: status %d, %s", args, status, p.log)
		}
	}
}

// TestTakeOver_NeedsAStandbyThatHasACopy plays the two servers. Without a standby that follows the copy of the holder,
// the holder is not asked to stop. With one, that one takes the lease.
func TestTakeOver_NeedsAStandbyThatHasACopy(t *testing.T) {
	storetest.ServeS3Here(t, storetest.NewS3(t, "copies"))
	object, err := replication.LeaseOf(sharedURL, bucket.S3{})
	if err != nil {
		t.Fatal(err)
	}
	newCandidate := func() *replication.Candidate {
		c, err := replication.NewCandidate(object, 10*time.Second, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	take := func(ctx context.Context, c *replication.Candidate) *replication.Lease {
		if _, _, isFree, err := c.Look(ctx); err != nil || !isFree {
			return nil
		}
		l, err := c.Take(ctx, "folder", replication.Position{})
		if err == nil {
			err = l.Serve(ctx, "keys", func() (int64, uint64) { return 7, 7 })
		}
		if err != nil {
			t.Error(err)
		}
		return l
	}
	held := take(t.Context(), newCandidate())
	var out bytes.Buffer
	command := &cobra.Command{}
	command.SetOut(&out)
	command.SetErr(&out)
	standby := newCandidate()
	told := replication.Standby{Name: standby.Holder(), Folder: "folder",
		Position: replication.Position{Revision: 7, TXID: 7}}
	if err := object.WriteStandby(t.Context(), told); err != nil { // it told that once, and is gone
		t.Fatal(err)
	}
	err = takeOver(t.Context(), command, object, true)
	if err == nil || !strings.Contains(err.Error(), standby.Holder()+" had revision 7") ||
		!strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("without a standby: %v", err)
	}
	if s, _, err := object.Read(t.Context()); err != nil || s.HandOverTo != "" || s.Released {
		t.Errorf("the holder was asked to stop: %+v, %v", s, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	var playing sync.WaitGroup
	playing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ { // the standby
			told.Position.Revision++
			_ = object.WriteStandby(ctx, told)
			if take(ctx, standby) != nil {
				return
			}
		}
	})
	playing.Go(func() {
		for ctx.Err() == nil { // the holder
			s, _, err := object.Read(ctx)
			if err == nil && s.HandOverTo == standby.Holder() {
				_ = held.Release(ctx, true) // its first write finds that the object was changed
				return
			}
		}
	})
	if err := takeOver(ctx, command, object, true); err != nil ||
		!strings.Contains(out.String(), standby.Holder()+" serves\n") {
		t.Errorf("with a standby: %v, %s", err, out.String())
	}
	playing.Wait()
}
