package pgtest

import (
	"encoding/binary"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The codes of the messages that come first on a connection and are no start.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// Proxy stands between clients and a server on a loopback port, and can behave
// like a host that died silently.
type Proxy struct {
	listener net.Listener
	database string
	network  string
	address  string
	running  sync.WaitGroup

	mu        sync.Mutex
	blackhole bool
	cut       bool
	// delay is how long each chunk waits, in either direction.
	delay      time.Duration
	failpoints []*setFailpoint
	// conns are the open connections; true says that nothing more is forwarded on it.
	conns   map[net.Conn]bool
	cancels int
	// roundTrips counts the requests: bytes of a client that follow on those of the
	// server.
	roundTrips int
	// closed receives when a client has closed its connection. Its capacity is 1.
	closed chan struct{}
}

// NewProxy starts a proxy before the server of a DSN; it ends with the test.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{database: config.Database, conns: map[net.Conn]bool{}, closed: make(chan struct{}, 1)}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		p.Cut()
		p.running.Wait()
	})
	return p
}

// DSN is the URL of the proxy's database, with the other proxies as further hosts.
func (p *Proxy) DSN(others ...*Proxy) string {
	hosts := []string{p.listener.Addr().String()}
	for _, other := range others {
		hosts = append(hosts, other.listener.Addr().String())
	}
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Host: strings.Join(hosts, ","), Path: "/" + p.database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Blackhole keeps connections open and accepts new ones, but forwards nothing until Forward.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackhole = true
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// Forward forwards new connections again. Nothing more is forwarded on the others: what they
// sent is lost.
func (p *Proxy) Forward() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackhole = false
}

// Delay delays what either side sends by a time, as a slow network does; 0 ends that.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Drop closes all connections. New ones are served.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// Cut closes all connections and takes no more.
func (p *Proxy) Cut() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for conn := range p.conns {
		conn.Close()
	}
}

// Cancels is the number of cancel requests seen.
func (p *Proxy) Cancels() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cancels
}

// RoundTrips is how often a client has sent something after an answer, or first.
func (p *Proxy) RoundTrips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

// Closed receives after a client has closed a connection.
func (p *Proxy) Closed() <-chan struct{} { return p.closed }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection, both ways.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial(p.network, p.address)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	cut := p.cut
	p.conns[client], p.conns[server] = p.blackhole, p.blackhole
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	if cut {
		return
	}
	c := &connection{client: client, server: server, wire: newWire(), isAnswered: true}
	var back sync.WaitGroup
	back.Go(func() {
		p.copyAnswers(c)
		client.Close()
	})
	p.copyRequests(c)
	select {
	case p.closed <- struct{}{}:
	default:
	}
	server.Close()
	back.Wait()
}

// connection is one that the proxy forwards.
type connection struct {
	client, server net.Conn
	wire           *wire
	// isAnswered says that the server spoke last. The proxy's mu guards it.
	isAnswered bool
}

// copyRequests forwards what the client says until either side closes.
func (p *Proxy) copyRequests(c *connection) {
	isFirst := true
	p.copy(c.server, c.client, func(chunk []byte) {
		if isFirst {
			p.inspect(chunk)
		}
		if c.isAnswered {
			p.roundTrips++
		}
		c.isAnswered = false
	}, func(stream []byte, out *pending) (rest []byte, ok bool) {
		for message, rest := cutMessage(stream, isFirst); message != nil; message, rest = cutMessage(stream, isFirst) {
			stream = rest
			if isFirst {
				if asksForEncryption(message) {
					if _, err := c.client.Write([]byte{'N'}); err != nil {
						return nil, false
					}
					continue
				}
				isFirst = false
			} else if s, isStatement := c.wire.client(message); isStatement {
				if failpoint := p.take(Sent, s); failpoint != nil && (!out.flush() || !p.trigger(failpoint, c)) {
					return nil, false
				}
			}
			out.add(message)
		}
		return stream, out.flush()
	})
}

// copyAnswers forwards what the server says until either side closes.
func (p *Proxy) copyAnswers(c *connection) {
	p.copy(c.client, c.server, func([]byte) { c.isAnswered = true }, func(stream []byte, out *pending) (rest []byte, ok bool) {
		for message, rest := cutMessage(stream, false); message != nil; message, rest = cutMessage(stream, false) {
			stream = rest
			s, point, isAnswer := c.wire.server(message)
			var failpoint *setFailpoint
			if isAnswer {
				failpoint = p.take(point, s)
			}
			if failpoint != nil && point == Answered && (!out.flush() || !p.trigger(failpoint, c)) {
				return nil, false
			}
			out.add(message)
			if failpoint != nil && point == Delivered && (!out.flush() || !p.trigger(failpoint, c)) {
				return nil, false
			}
		}
		return stream, out.flush()
	})
}

// copy forwards until either side closes; of a silent connection it swallows all. It
// calls inspect under mu with what it has read. pass forwards the whole messages of a
// stream and returns what is left.
func (p *Proxy) copy(to, from net.Conn, inspect func([]byte), pass func(stream []byte, out *pending) (rest []byte, ok bool)) {
	chunk := make([]byte, 64<<10)
	var stream []byte
	out := &pending{proxy: p, to: to, from: from}
	for {
		n, err := from.Read(chunk)
		if err != nil {
			return
		}
		p.mu.Lock()
		inspect(chunk[:n])
		silent, delay := p.conns[from], p.delay
		p.mu.Unlock()
		if silent {
			continue
		}
		if delay > 0 {
			time.Sleep(delay)
		}
		rest, ok := pass(append(stream, chunk[:n]...), out)
		if !ok {
			return
		}
		stream = append(stream[:0], rest...)
	}
}

// pending is what one side of a connection gets next.
type pending struct {
	proxy    *Proxy
	to, from net.Conn
	bytes    []byte
}

func (o *pending) add(message []byte) { o.bytes = append(o.bytes, message...) }

// flush forwards what is pending, unless the connection has become silent.
func (o *pending) flush() bool {
	o.proxy.mu.Lock()
	silent := o.proxy.conns[o.from]
	o.proxy.mu.Unlock()
	var err error
	if !silent && len(o.bytes) > 0 {
		_, err = o.to.Write(o.bytes)
	}
	o.bytes = o.bytes[:0]
	return err == nil
}

// inspect looks at the first message of a connection, under mu.
func (p *Proxy) inspect(message []byte) {
	if len(message) >= 8 && binary.BigEndian.Uint32(message[4:]) == cancelRequest {
		p.cancels++
	}
}

// asksForEncryption reports whether a client's first message does, which the proxy
// refuses.
func asksForEncryption(message []byte) bool {
	if len(message) != 8 {
		return false
	}
	code := binary.BigEndian.Uint32(message[4:])
	return code == sslRequest || code == gssRequest
}
