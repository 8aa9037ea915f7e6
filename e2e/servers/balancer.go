package servers

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// Balancer is one TCP address before several servers. It passes each connection on to
// the next server that accepts one, and knows nothing of what is sent: TLS ends in the
// server. When a server dies its connections end, and clients that connect again reach
// another one.
type Balancer struct {
	listener net.Listener
	servers  []string
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu   sync.Mutex
	next int
}

// StartBalancer listens on a free port of 127.0.0.1. The servers are host:port; they
// need not run yet.
func StartBalancer(ctx context.Context, servers ...string) (*Balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Balancer{listener: listener, servers: servers}
	b.ctx, b.cancel = context.WithCancel(ctx)
	b.running.Go(b.accept)
	return b, nil
}

// URL is that of the address.
func (b *Balancer) URL() string { return "https://" + b.listener.Addr().String() }

// Close ends all connections and waits for that.
func (b *Balancer) Close() error {
	b.cancel()
	err := b.listener.Close()
	b.running.Wait()
	return err
}

func (b *Balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.running.Go(func() { b.serve(client) })
	}
}

func (b *Balancer) serve(client net.Conn) {
	defer client.Close()
	server, err := b.dial()
	if err != nil {
		return // the client sees that its connection ends
	}
	defer server.Close()
	stop := context.AfterFunc(b.ctx, func() { _ = errors.Join(client.Close(), server.Close()) })
	defer stop()
	var copies sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		copies.Go(func() {
			// Whichever side ends the connection ends it for the other one too.
			_, _ = io.Copy(pair[0], pair[1])
			_ = errors.Join(client.Close(), server.Close())
		})
	}
	copies.Wait()
}

// dial connects to the next server that accepts connections.
func (b *Balancer) dial() (conn net.Conn, err error) {
	b.mu.Lock()
	first := b.next
	b.next++
	b.mu.Unlock()
	for i := range b.servers {
		if conn, err = new(net.Dialer).DialContext(b.ctx, "tcp", b.servers[(first+i)%len(b.servers)]); err == nil {
			return conn, nil
		}
	}
	return nil, err
}
