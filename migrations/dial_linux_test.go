package migrations

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel ends a connection whose server does not answer.
func TestDial_SetsSocketOptions(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config, err := ParseDSN("postgres://user@" + listener.Addr().String() + "/database")
	if err != nil {
		t.Fatal(err)
	}
	if config.ConnConfig.ConnectTimeout != connectTimeout || config.ConnConfig.ValidateConnect == nil {
		t.Errorf("connect_timeout %v, target_session_attrs set: %v", config.ConnConfig.ConnectTimeout,
			config.ConnConfig.ValidateConnect != nil)
	}
	conn, err := config.ConnConfig.DialFunc(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []struct {
		name               string
		level, opt, wanted int
	}{
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle.Seconds())},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval.Seconds())},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount},
	} {
		var value int
		var optErr error
		if err := raw.Control(func(fd uintptr) {
			value, optErr = unix.GetsockoptInt(int(fd), option.level, option.opt)
		}); err != nil || optErr != nil {
			t.Fatal(option.name, err, optErr)
		}
		if value != option.wanted {
			t.Errorf("%s is %d, want %d", option.name, value, option.wanted)
		}
	}
}
