package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The codes of the messages that a client may send first on a connection instead of a
// StartupMessage.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// Proxy forwards connections from a loopback port to a server. It can behave like a host that
// has failed without closing its connections.
type Proxy struct {
	listener net.Listener
	database string
	network  string
	address  string
	running  sync.WaitGroup

	mu        sync.Mutex
	blackhole bool
	cut       bool
	// delay is how long the proxy waits before it forwards what it has read, in either
	// direction.
	delay      time.Duration
	failpoints []*setFailpoint
	// conns are the open connections. The value is true if the proxy forwards nothing more
	// that it reads from the connection.
	conns   map[net.Conn]bool
	cancels int
	// roundTrips is how often a client has sent something first, or after an answer.
	roundTrips int
	// closed receives when a client has closed its connection. Its capacity is 1.
	closed chan struct{}
}

// NewProxy starts a proxy in front of the server of a DSN. It ends with the test.
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

// DSN returns the URL of the database through the proxy, with other proxies as further hosts.
func (p *Proxy) DSN(others ...*Proxy) string {
	hosts := []string{p.listener.Addr().String()}
	for _, other := range others {
		hosts = append(hosts, other.listener.Addr().String())
	}
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Host: strings.Join(hosts, ","), Path: "/" + p.database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Blackhole keeps connections open and accepts new ones, but forwards nothing that comes until
// Forward is called.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackhole = true
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// Forward ends Blackhole for new connections. Connections of before stay open, and the proxy
// forwards nothing on them: what was sent on them is lost.
func (p *Proxy) Forward() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackhole = false
}

// Lead has new connections forwarded to the server of another DSN, as a load balancer does after a failover.
func (p *Proxy) Lead(t testing.TB, dsn string) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
}

// Delay delays what either side sends, as a slow network does. 0 ends the delay.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Drop closes all connections. The proxy forwards new ones.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// Cut closes all connections and accepts no more.
func (p *Proxy) Cut() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for conn := range p.conns {
		conn.Close()
	}
}

// Cancels returns the number of cancel requests that clients have sent.
func (p *Proxy) Cancels() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cancels
}

// RoundTrips returns how often a client has sent something first, or after an answer.
func (p *Proxy) RoundTrips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

// Closed returns a channel that receives after a client has closed a connection.
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

// serve forwards one connection in both directions until either side closes it.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	network, address := p.network, p.address
	p.mu.Unlock()
	server, err := net.Dial(network, address)
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

// connection is a connection that the proxy forwards.
type connection struct {
	client, server net.Conn
	wire           *wire
	// isAnswered says that the server was the last to send. The proxy's mu guards it.
	isAnswered bool
}

// copyRequests forwards what the client sends until either side closes.
func (p *Proxy) copyRequests(c *connection) {
	isFirst := true
	p.copy(c.server, c.client, &isFirst, func(message []byte) {
		if isFirst && len(message) >= 8 && binary.BigEndian.Uint32(message[4:]) == cancelRequest {
			p.cancels++
		}
		if c.isAnswered {
			p.roundTrips++
		}
		c.isAnswered = false
	}, func(message []byte, out *pending) bool {
		if isFirst {
			if asksForEncryption(message) {
				_, err := c.client.Write([]byte{'N'})
				return err == nil
			}
			isFirst = false
		} else if s, isStatement := c.wire.client(message); isStatement {
			if failpoint := p.take(Sent, s); failpoint != nil && (!out.flush() || !p.trigger(failpoint, c)) {
				return false
			}
		}
		out.add(message)
		return true
	})
}

// copyAnswers forwards what the server sends until either side closes.
func (p *Proxy) copyAnswers(c *connection) {
	p.copy(c.client, c.server, new(bool), func([]byte) { c.isAnswered = true }, func(message []byte, out *pending) bool {
		s, point, isAnswer := c.wire.server(message)
		var failpoint *setFailpoint
		if isAnswer {
			failpoint = p.take(point, s)
		}
		if failpoint != nil && point == Answered && (!out.flush() || !p.trigger(failpoint, c)) {
			return false
		}
		out.add(message)
		return failpoint == nil || point != Delivered || out.flush() && p.trigger(failpoint, c)
	})
}

// copy reads messages from one side and forwards them to the other until either side closes. If the
// connection is in a black hole it drops what it reads. It calls inspect, under mu, with each message that it
// has read, and then pass, which adds the message to out and reports whether the connection stays open.
// isFirst says that the next message is the first one of a client.
func (p *Proxy) copy(to, from net.Conn, isFirst *bool, inspect func(message []byte), pass func(message []byte, out *pending) bool) {
	ended := make(chan struct{})
	defer close(ended)
	in := bufio.NewReaderSize(p.receive(from, ended), 64<<10)
	out := &pending{proxy: p, to: to, from: from}
	for {
		message, err := readMessage(in, *isFirst)
		if err != nil {
			return
		}
		p.mu.Lock()
		inspect(message)
		silent := p.conns[from]
		p.mu.Unlock()
		if silent {
			_, _ = io.Copy(io.Discard, in)
			return
		}
		if !pass(message, out) {
			return
		}
		if isLast := in.Buffered() == 0; (isLast || len(out.bytes) >= in.Size()) && !out.flush() {
			return
		}
	}
}

// way is what one side of a connection has sent and the other has not received. Reading it waits
// for what comes next.
type way struct {
	chunks <-chan chunk
	rest   []byte
}

type chunk struct {
	bytes []byte
	// arrival is when the other side receives the bytes.
	arrival time.Time
}

// receive reads from a connection until it is closed, or until ended is. What is sent later is under
// way at the same time, as with a server that is far.
func (p *Proxy) receive(from net.Conn, ended <-chan struct{}) io.Reader {
	chunks := make(chan chunk, 16)
	p.running.Go(func() {
		defer close(chunks)
		for buffer := make([]byte, 64<<10); ; {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			p.mu.Lock()
			arrival := time.Now().Add(p.delay)
			p.mu.Unlock()
			select {
			case chunks <- chunk{bytes.Clone(buffer[:n]), arrival}:
			case <-ended:
				return
			}
		}
	})
	return &way{chunks: chunks}
}

// Read implements io.Reader.
func (w *way) Read(b []byte) (int, error) {
	if len(w.rest) == 0 {
		next, ok := <-w.chunks
		if !ok {
			return 0, io.EOF
		}
		time.Sleep(time.Until(next.arrival))
		w.rest = next.bytes
	}
	n := copy(b, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// readMessage reads a message. isFirst says that it is the first one of a client, which has no type byte.
func readMessage(in *bufio.Reader, isFirst bool) ([]byte, error) {
	begin := 1
	if isFirst {
		begin = 0
	}
	header, err := in.Peek(begin + 4)
	if err != nil {
		return nil, err
	}
	message := make([]byte, begin+int(binary.BigEndian.Uint32(header[begin:])))
	_, err = io.ReadFull(in, message)
	return message, err
}

// pending holds the messages that the proxy is about to write to one side of a connection.
type pending struct {
	proxy    *Proxy
	to, from net.Conn
	bytes    []byte
}

func (o *pending) add(message []byte) { o.bytes = append(o.bytes, message...) }

// flush writes the pending messages, or drops them if the connection is in a black hole.
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

// asksForEncryption reports whether a client's first message asks for encryption, which the
// proxy refuses.
func asksForEncryption(message []byte) bool {
	if len(message) != 8 {
		return false
	}
	code := binary.BigEndian.Uint32(message[4:])
	return code == sslRequest || code == gssRequest
}
