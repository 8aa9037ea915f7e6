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

// What an answer's head may be, as in net/http, and how long to wait for a
// connection, as in client-go.
const (
	maxHeaderBytes   = 10 << 20
	dialTimeout      = 30 * time.Second
	keepAlive        = 30 * time.Second
	handshakeTimeout = 10 * time.Second
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// upgradeDialer dials connections that end with their context and whose head is
// bounded: upstream's proxy sees to neither. dial is nil for direct connections.
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
		upgraded.forget = context.AfterFunc(ctx, func() { _ = conn.Close() })
		return upgraded, nil
	}
}

// upgradedConn bounds the head of the first answer.
type upgradedConn struct {
	net.Conn
	// left is how much more of the head may come; negative after its end.
	left   int
	tail   []byte // the last bytes of the head so far
	forget func() bool
}

var (
	errHeaderTooLong = fmt.Errorf("the backend's response headers exceed %d bytes", maxHeaderBytes)
	endOfHead        = []byte("\r\n\r\n")
)

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left < 0 || n == 0 {
		return n, err
	}
	seen := append(c.tail, p[:n]...)
	if bytes.Contains(seen, endOfHead) {
		c.left, c.tail = -1, nil
		return n, err
	}
	c.tail = bytes.Clone(seen[max(0, len(seen)-len(endOfHead)+1):])
	if c.left -= n; c.left < 0 {
		return 0, errHeaderTooLong
	}
	return n, err
}

func (c *upgradedConn) Close() error {
	c.forget()
	return c.Conn.Close()
}
