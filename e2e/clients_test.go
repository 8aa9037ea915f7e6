package e2e

import (
	"context"
	"net"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/e2e/servers"
)

// client is an administrator's, without limits of its own.
func client(t *testing.T, s *servers.Server) kubernetes.Interface {
	t.Helper()
	return clientFor(t, s.Config(servers.AdminToken))
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func createNamespace(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// cutter is a dialer whose connections can be cut, as a broken network would.
type cutter struct {
	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
}

// through makes the client dial through the cutter.
func (c *cutter) through(config *rest.Config) *rest.Config {
	c.conns = map[*net.TCPConn]struct{}{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns[conn.(*net.TCPConn)] = struct{}{}
		return conn, nil
	}
	return config
}

// cut resets every connection and says how many there were.
func (c *cutter) cut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.conns)
	for conn := range c.conns {
		// Without lingering the peer sees a reset. An error means that one end has closed
		// the connection already.
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	clear(c.conns)
	return n
}
