package failover

import (
	"context"
	"net"
	"strings"
	"sync"
)

// link is a way over TCP from a node to an address, which can be cut. Unlike pgtest.Proxy it knows no protocol.
type link struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu    sync.Mutex
	isCut bool
	// mended is closed when the link is not cut any more.
	mended chan struct{}
	conns  map[net.Conn]bool
}

// newLink makes a link that ends with the test.
func (s *site) newLink(to string) *link {
	s.Helper()
	return s.newLinkAt("127.0.0.1:0", to)
}

// newLinkAt is newLink whose end has an address.
func (s *site) newLinkAt(address, to string) *link {
	s.Helper()
	l := &link{to: to, conns: map[net.Conn]bool{}}
	var err error
	if l.listener, err = new(net.ListenConfig).Listen(s.Context(), "tcp", address); err != nil {
		s.Fatal(err)
	}
	l.running.Go(l.accept)
	s.Cleanup(func() {
		if err := l.listener.Close(); err != nil {
			s.Error(err)
		}
		l.mend()
		l.running.Wait()
	})
	return l
}

// address is the node's end of the link.
func (l *link) address() string { return l.listener.Addr().String() }

// cut has the link swallow everything.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut, l.mended = true, make(chan struct{})
}

// mend has the link forward new connections. It closes those of before.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		close(l.mended)
	}
	l.isCut = false
	for conn := range l.conns {
		_ = conn.Close() // its other end may have closed it
	}
}

func (l *link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // the test has ended
		}
		l.running.Go(func() { l.serve(conn) })
	}
}

func (l *link) serve(near net.Conn) {
	defer near.Close()
	l.await()
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	far, err := new(net.Dialer).DialContext(ctx, "tcp", l.to)
	cancel()
	if err != nil {
		return
	}
	defer far.Close()
	for _, conn := range []net.Conn{near, far} {
		l.keep(conn, true)
		defer l.keep(conn, false)
	}
	var copying sync.WaitGroup
	copying.Go(func() { l.copy(far, near) })
	l.copy(near, far)
	copying.Wait()
}

// keep adds a connection to those that mend closes, or removes it.
func (l *link) keep(conn net.Conn, isOpen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isOpen {
		l.conns[conn] = true
	} else {
		delete(l.conns, conn)
	}
}

// await waits while the link is cut.
func (l *link) await() {
	l.mu.Lock()
	isCut, mended := l.isCut, l.mended
	l.mu.Unlock()
	if isCut {
		<-mended
	}
}

// copy copies until either connection ends, and closes both.
func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		l.await()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// links are the links from a node to its manager's store.
type links []*link

// addresses are the node's ends.
func (all links) addresses() string {
	var addresses []string
	for _, l := range all {
		addresses = append(addresses, l.address())
	}
	return strings.Join(addresses, ",")
}

func (all links) cut() {
	for _, l := range all {
		l.cut()
	}
}

func (all links) mend() {
	for _, l := range all {
		l.mend()
	}
}
