package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSystemd_IsNotifiedOfStartLifeAndStop reads the socket that systemd reads for
// Type=notify and WatchdogSec=.
func TestSystemd_IsNotifiedOfStartLifeAndStop(t *testing.T) {
	dir, err := os.MkdirTemp("", "notify") // a socket's path is short
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
	t.Setenv("WATCHDOG_USEC", "30000000")
	data := t.TempDir()
	server := command(t, data, "serve", "--data-dir", data, "--bind-address=127.0.0.1", "--secure-port=0")
	receive := func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 4096)
		n, err := conn.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}
	if got := receive(); !strings.HasPrefix(got, "READY=1\nSTATUS=Serving on 127.0.0.1:") {
		t.Fatalf("the first message is %q", got)
	}
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz after READY=1: %d %s", status, body)
	}
	if got := receive(); got != "WATCHDOG=1" {
		t.Errorf("the second message is %q", got)
	}
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
	got := receive()
	for got == "WATCHDOG=1" { // a slow machine sends several
		got = receive()
	}
	if !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("the last message is %q", got)
	}
}
