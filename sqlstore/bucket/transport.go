package bucket

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
)

// stallTimeout is how long a connection may wait until a byte comes or goes. A service, or what is between,
// that stops in the middle of a body would otherwise have a copy wait for ever.
const stallTimeout = time.Minute

// newTransport makes minio's transport, whose connections fail after a stall.
func newTransport(secure bool, stall time.Duration) (*http.Transport, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return stallConn{conn, stall}, nil
	}
	return t, nil
}

// stallConn is a connection on which neither direction may wait for longer than stall while nothing
// happens in the other one either: whoever sends a large body waits for the answer meanwhile.
type stallConn struct {
	net.Conn
	stall time.Duration
}

func (c stallConn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c stallConn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
