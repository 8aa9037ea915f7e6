package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// tunedObjects, tunedBytes and tunedLists are the work of BenchmarkTuner.
	tunedObjects = 10_000
	tunedBytes   = 8000
	tunedLists   = 5
	// tunedRest is how long the server is left to itself before the work, so that the tuner
	// takes the start to be over, and afterwards.
	tunedRest = 8 * time.Second
)

// BenchmarkTuner defends apiserver/process/memory.go: byre stores 10,000 objects of 8 kB and
// lists them five times in JSON and in protobuf, paced by the tuner, and as a control with
// GOGC=100, which the tuner leaves alone. Both release memory after the burst. It reports
// the processor time, the peak of the resident set, and the resident set after a rest. It
// builds the program; one iteration is enough (-benchtime=1x).
func BenchmarkTuner(b *testing.B) {
	program := sync.OnceValue(func() string { return buildProgram(b, filepath.Join(b.TempDir(), "byre")) })
	for name, env := range map[string][]string{"tuned": nil, "control": {"GOGC=100"}} {
		b.Run(name, func(b *testing.B) {
			path := program()
			for b.Loop() {
				p := startLoaded(b, path, env)
				used := childTime(b, p)
				peak := statusBytes(b, p, "VmHWM:")
				leaveAlone(b, p)
				b.ReportMetric(used.Seconds(), "cpu-s")
				b.ReportMetric(float64(peak>>20), "MB-peak")
				b.ReportMetric(float64(statusBytes(b, p, "VmRSS:")>>20), "MB-after")
				_ = p.cmd.Process.Kill()
				<-p.exited
			}
		})
	}
}

// startLoaded starts a server and sends it the work.
func startLoaded(b *testing.B, program string, env []string) *serverProcess {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "data")
	cmd := exec.Command(program, serveArgs(dir)...)
	cmd.Env = append(os.Environ(), env...)
	p := start(b, dir, cmd)
	awaitReady(b, p)
	leaveAlone(b, p)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		b.Fatal(err)
	}
	config.QPS = -1
	if err := loadServer(b.Context(), kubernetes.NewForConfigOrDie(config)); err != nil {
		b.Fatal(err)
	}
	return p
}

// leaveAlone leaves a server to itself for some time.
func leaveAlone(b *testing.B, p *serverProcess) {
	b.Helper()
	select {
	case <-p.exited:
		b.Fatal("byre exited")
	case <-time.After(tunedRest):
	}
}

func loadServer(ctx context.Context, client *kubernetes.Clientset) error {
	creates, creating := errgroup.WithContext(ctx)
	creates.SetLimit(16)
	data := map[string]string{"k": strings.Repeat("0123456789", tunedBytes/10)}
	for i := range tunedObjects {
		creates.Go(func() error {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}, Data: data}
			_, err := client.CoreV1().ConfigMaps("default").Create(creating, object, metav1.CreateOptions{})
			return err
		})
	}
	if err := creates.Wait(); err != nil {
		return err
	}
	for range tunedLists {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			_, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/configmaps").SetHeader("Accept", accept).DoRaw(ctx)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// childTime returns the processor time that a process has used.
func childTime(b *testing.B, p *serverProcess) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	// The fields 14 and 15 of proc(5), in hundredths of a second; the name, field 2, is
	// in parentheses.
	_, after, _ := strings.Cut(string(stat), ") ")
	var user, system int64
	fields := strings.Fields(after)
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
