package process_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/apiserver/process"
)

// listen opens systemd's end of the socket. A socket's path must be short, so it is not
// below t.TempDir.
func listen(t *testing.T) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return conn
}

func receive(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	message := make([]byte, 4096)
	n, err := conn.Read(message)
	if err != nil {
		t.Fatal(err)
	}
	return string(message[:n])
}

func TestNotify_SendsTheState(t *testing.T) {
	conn := listen(t)
	process.NotifyReady("Serving on 127.0.0.1:6443")
	if got := receive(t, conn); got != "READY=1\nSTATUS=Serving on 127.0.0.1:6443" {
		t.Errorf("ready: %q", got)
	}
	process.NotifyStopping()
	if got := receive(t, conn); !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("stopping: %q", got)
	}
}

// The watchdog is notified only while the server answers.
func TestWatchdog_IsSilentWhileTheServerIsNotAlive(t *testing.T) {
	conn := listen(t)
	t.Setenv("WATCHDOG_USEC", "3000")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var checks int
	alive := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- process.RunWatchdog(ctx, func(context.Context) error {
			checks++
			if checks < 5 {
				return errors.New("stuck")
			}
			if checks == 5 {
				close(alive)
			}
			return nil
		})
	}()
	for _, want := range []string{"WATCHDOG_USEC=3000", "WATCHDOG=1"} {
		if got := receive(t, conn); got != want {
			t.Errorf("the watchdog gets %q, want %q", got, want)
		}
	}
	select {
	case <-alive:
	default:
		t.Error("a sign of life of a server that was stuck")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	got := receive(t, conn)
	for got == "WATCHDOG=1" {
		got = receive(t, conn)
	}
	if got != "WATCHDOG_USEC=0" {
		t.Errorf("the watchdog gets %q at the end", got)
	}
}

func TestWatchdog_EndsWhereNobodyExpectsIt(t *testing.T) {
	for _, limit := range []string{"", "soon"} {
		t.Setenv("WATCHDOG_USEC", limit)
		if err := process.RunWatchdog(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Errorf("WATCHDOG_USEC=%q: %v", limit, err)
		}
	}
}
