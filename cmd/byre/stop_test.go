package main

import (
	"context"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"byre/sqlstore/storetest"
)

// A watch ends without an error. "timeout" sends its signal to the process and to its group: that is one signal.
func TestShutdown_WatchesEndCleanly(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir())
	client := kubernetes.NewForConfigOrDie(server.config(t))
	w, err := client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	started := time.Now()
	for range 2 {
		if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			t.Errorf("the watch ended with %v", event.Object)
		}
	}
	if status := server.wait(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	// A server that waits for a watch waits for --request-timeout, a minute.
	if took := time.Since(started); took > 40*time.Second {
		t.Errorf("stopping took %v with nothing but a watch open", took)
	}
}

// During the delay, on which load balancers rely, the server is not ready and still serves. A second SIGTERM ends it.
func TestShutdown_ServesDuringTheDelayUntilASecondSIGTERM(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--shutdown-delay-duration=10m")
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	config := server.config(t)
	storetest.EventuallyDone(t, "/readyz fails", func(ctx context.Context) (bool, error) {
		status, body, err := get(ctx, config, "/readyz")
		return status == http.StatusInternalServerError && strings.Contains(body, "[-]shutdown failed"), err
	})
	for path, want := range map[string]int{"/livez": http.StatusOK, "/api/v1/namespaces/default": http.StatusOK} {
		if status, body := server.mustGet(t, path); status != want {
			t.Errorf("%s during the delay: %d %s", path, status, body)
		}
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Errorf("a write during the delay: %v", err)
	}
	storetest.Eventually(t, "a later SIGTERM ends the process", func() bool {
		_ = server.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		select {
		case <-server.exited:
			return true
		default:
			return false
		}
	})
	if status := server.wait(t); status != 1 {
		t.Errorf("exit status is %d", status)
	}
}

// "timeout" sends its signal to the process and to its group.
func TestShutdown_ASignalSentTwiceIsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, over := make(chan os.Signal), make(chan struct{})
		begun, second := 0, make(chan bool, 1)
		go func() { second <- awaitSecond(signals, over, func() { begun++ }) }()
		for range 3 {
			signals <- syscall.SIGTERM
		}
		time.Sleep(sameSignal - time.Millisecond)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if begun != 1 || len(second) > 0 {
			t.Errorf("%d shutdowns were begun, and the process has ended: %v", begun, len(second) > 0)
		}
		time.Sleep(time.Millisecond)
		signals <- syscall.SIGTERM
		if !<-second {
			t.Error("the second signal does not end the process")
		}
	})
}
