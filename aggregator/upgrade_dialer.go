package aggregator

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// maxHeaderBytes bounds the header of an answer; as in net/http.
	maxHeaderBytes = 10 << 20
	// The rest is as in client-go.
	dialTimeout      = 30 * time.Second
	keepAlive        = 30 * time.Second
	handshakeTimeout = 10 * time.Second
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// upgradeDialer dials TLS connections that are closed when their context ends before the header of
// the first answer does, which has a bounded size. Upstream's proxy does neither. dial is nil
// for net.Dialer.
func upgradeDialer(config *tls.Config, dial dialer) dialer {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(conn, config)
		handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(handshake); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		upgraded := &upgradedConn{Conn: secure, left: maxHeaderBytes}
		upgraded.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
		return upgraded, nil
	}
}

// upgradedConn is a connection whose first answer has a header of bounded size.
type upgradedConn struct {
	net.Conn
	// left is how many more bytes the header may have; negative after its end.
	left int
	tail []byte      // the last bytes of the header so far
	stop func() bool // stops watching the context
}

var (
	errHeaderTooLong = fmt.Errorf("the backend's response headers exceed %d bytes", maxHeaderBytes)
	endOfHeader      = []byte("\r\n\r\n")
)

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left < 0 || n == 0 {
		return n, err
	}
	seen := append(c.tail, p[:n]...)
	if bytes.Contains(seen, endOfHeader) {
		c.stop()
		c.left, c.tail = -1, nil
		return n, err
	}
	c.tail = bytes.Clone(seen[max(0, len(seen)-len(endOfHeader)+1):])
	if c.left -= n; c.left < 0 {
		return 0, errHeaderTooLong
	}
	return n, err
}

func (c *upgradedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
