package pgtest

import (
	"encoding/binary"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// cancelRequest is the code of the message that asks to cancel a statement.
const cancelRequest = 80877102

// Proxy stands between clients and a server on a loopback port, and can behave
// like a host that died silently.
type Proxy struct {
	listener net.Listener
	database string
	network  string
	address  string
	running  sync.WaitGroup

	mu     sync.Mutex
	silent bool
	cut    bool
	// conns are the open connections; true says that it stays silent for good.
	conns   map[net.Conn]bool
	cancels int
	// roundTrips counts the requests: bytes of a client that follow on those of the
	// server.
	roundTrips int
	// closed has room for one token: a client has closed its connection.
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

// Silence keeps connections open and accepts new ones, but forwards nothing.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// Forward serves new connections again. Those that there were stay silent:
// what they sent is lost.
func (p *Proxy) Forward() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = false
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
	p.conns[client], p.conns[server] = p.silent, p.silent
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
	var back sync.WaitGroup
	isAnswered := true // guarded by mu
	back.Go(func() {
		p.copy(client, server, func([]byte) { isAnswered = true })
		client.Close()
	})
	isFirst := true
	p.copy(server, client, func(message []byte) {
		if isFirst {
			p.inspect(message)
		}
		if isAnswered {
			p.roundTrips++
		}
		isFirst, isAnswered = false, false
	})
	select {
	case p.closed <- struct{}{}:
	default:
	}
	server.Close()
	back.Wait()
}

// copy forwards until either side closes; of a silent connection it swallows all. It
// calls inspect under mu with what it has read.
func (p *Proxy) copy(to, from net.Conn, inspect func([]byte)) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		inspect(buffer[:n])
		silent := p.conns[from]
		p.mu.Unlock()
		if silent {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// inspect looks at the first message of a connection, under mu.
func (p *Proxy) inspect(message []byte) {
	if len(message) >= 8 && binary.BigEndian.Uint32(message[4:]) == cancelRequest {
		p.cancels++
	}
}
