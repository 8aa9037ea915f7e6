package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keepAlivePeriod is how often an idle connection is probed; upstream's value
// (k8s.io/apiserver/pkg/server/options/serving.go).
const keepAlivePeriod = 3 * time.Minute

// Listen binds the address and port for HTTPS.
func Listen(ctx context.Context, o ServingOptions) (net.Listener, error) {
	config := net.ListenConfig{
		KeepAlive: keepAlivePeriod,
		Control: func(_, _ string, c syscall.RawConn) error {
			return errors.Join(
				setSocketOption(c, unix.SO_REUSEADDR, o.ShareAddress),
				setSocketOption(c, unix.SO_REUSEPORT, o.SharePort))
		},
	}
	return bind(ctx, config, o.BindAddress, o.Port, "--bind-address", "--secure-port")
}

// bind listens. Its errors name the flags to change.
func bind(ctx context.Context, config net.ListenConfig, ip net.IP, port int, ipFlag, portFlag string) (net.Listener, error) {
	address := net.JoinHostPort(ip.String(), strconv.Itoa(port))
	listener, err := config.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program: stop it, or choose another %s", address, portFlag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this machine has no address %s: check %s", ip, ipFlag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("not allowed to listen on %s: choose a %s above 1023", address, portFlag)
	}
	return listener, err
}

// setSocketOption sets a socket option if on is true, and otherwise keeps the system's
// default.
func setSocketOption(c syscall.RawConn, option int, on bool) error {
	if !on {
		return nil
	}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1)
	})
	return errors.Join(control, err)
}

// ListenInsecure binds --insecure-port. It returns nil if the port is off.
func ListenInsecure(ctx context.Context, o ServingOptions) (net.Listener, error) {
	if o.InsecurePort == 0 {
		return nil, nil
	}
	return bind(ctx, net.ListenConfig{KeepAlive: keepAlivePeriod}, o.InsecureBindAddress, o.InsecurePort, "--insecure-bind-address", "--insecure-port")
}
