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
	u := url.URL{Scheme: "postgres", User: url.User("byre"), Host: strings.Join(hosts, ","), Path: "/" + p.database,
		RawQuery: "sslmode=disable"}
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
func (p *Proxy) copy(
	to, from net.Conn, isFirst *bool, inspect func(message []byte), pass func(message []byte, out *pending) bool,
) {
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

// Point is a moment in the execution of a statement, as the proxy sees it.
type Point int

// The points. A statement that fails has only Sent.
const (
	// Sent: the client has sent the statement, and the server has not received it. The
	// server has received what the client sent before.
	Sent Point = iota
	// Answered: the server has executed the statement, and the client has not received the
	// answer.
	Answered
	// Delivered: the proxy has written the answer to the client's connection.
	Delivered
)

// Action is what the proxy does with a connection at a failpoint.
type Action int

// The actions.
const (
	// Forward forwards as before.
	Forward Action = iota
	// Drop closes the connection on both sides.
	Drop
	// Swallow keeps the connection open on both sides and forwards nothing more.
	Swallow
)

// Failpoint is a point of a statement at which a Proxy calls a function and then executes the
// Action that the function returns.
type Failpoint struct {
	// Statement is a part of the statement's text.
	Statement string
	// After is a part of the text of an earlier statement of the same transaction;
	// empty means any transaction.
	After string
	Point Point
	// Skip is how often the point is passed before the failpoint triggers.
	Skip int
	// Do is called when a connection reaches the point. The proxy forwards nothing on that
	// connection in that direction until it returns.
	Do func() Action
}

// Set sets a failpoint, which triggers once. The channel is closed when Do has returned.
func (p *Proxy) Set(failpoint Failpoint) (triggered <-chan struct{}) {
	set := &setFailpoint{Failpoint: failpoint, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failpoints = append(p.failpoints, set)
	return set.done
}

// Unset removes all failpoints that have not triggered.
func (p *Proxy) Unset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failpoints = nil
}

type setFailpoint struct {
	Failpoint
	done chan struct{}
}

// take removes and returns the failpoint that a statement triggers at a point, or nil.
func (p *Proxy) take(point Point, s statement) *setFailpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, failpoint := range p.failpoints {
		if failpoint.Point == point && strings.Contains(s.text, failpoint.Statement) &&
			(failpoint.After == "" || strings.Contains(s.before, failpoint.After)) {
			if failpoint.Skip > 0 {
				failpoint.Skip--
				continue
			}
			p.failpoints = append(p.failpoints[:i:i], p.failpoints[i+1:]...)
			return failpoint
		}
	}
	return nil
}

// statement is a statement that a client has sent, or the end of a pipeline.
type statement struct {
	text string
	// before has the texts of the earlier statements of the same transaction.
	before string
	// isSimple says that it came by the simple query protocol, in which one message may
	// have several answers. isSync says that it is no statement but a Sync, the end of a
	// pipeline.
	isSimple, isSync bool
}

// wire follows the messages of one connection, to know which statement each answer belongs
// to. See https://www.postgresql.org/docs/current/protocol-message-formats.html.
type wire struct {
	mu sync.Mutex
	// prepared has the texts of prepared statements by name, portals those of bound
	// statements by the name of the portal.
	prepared, portals map[string]string
	// transaction has the texts of the statements since BEGIN.
	transaction string
	// sent are the statements that the server has not answered yet.
	sent []statement
	// delivering is the statement that was answered last, until ReadyForQuery comes.
	delivering *statement
}

func newWire() *wire {
	return &wire{prepared: map[string]string{}, portals: map[string]string{}}
}

// client follows a message of the client. If the message executes a statement, client returns
// the statement.
func (w *wire) client(message []byte) (s statement, isStatement bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := message[5:]
	switch message[0] {
	case 'P': // Parse
		name, rest := cutText(body)
		w.prepared[name], _ = cutText(rest)
	case 'B': // Bind
		portal, rest := cutText(body)
		name, _ := cutText(rest)
		w.portals[portal] = w.prepared[name]
	case 'E': // Execute
		portal, _ := cutText(body)
		return w.execute(w.portals[portal], false), true
	case 'Q': // Query
		text, _ := cutText(body)
		return w.execute(text, true), true
	case 'S': // Sync
		w.sent = append(w.sent, statement{isSync: true})
	}
	return statement{}, false
}

func (w *wire) execute(text string, isSimple bool) statement {
	if strings.HasPrefix(strings.ToUpper(strings.TrimSpace(text)), "BEGIN") {
		w.transaction = ""
	}
	s := statement{text: text, before: w.transaction, isSimple: isSimple}
	w.transaction += text + "\n"
	w.sent = append(w.sent, s)
	return s
}

// server follows a message of the server. If the message brings a statement to a point, server
// returns the statement and the point.
func (w *wire) server(message []byte) (s statement, point Point, isAnswer bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch message[0] {
	case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
		if len(w.sent) == 0 || w.sent[0].isSync {
			return s, Answered, false
		}
		s = w.sent[0]
		if !s.isSimple {
			w.sent = w.sent[1:]
		}
		w.delivering = &s
		return s, Answered, true
	case 'Z': // ReadyForQuery
		for i, sent := range w.sent {
			if sent.isSync || sent.isSimple {
				w.sent = w.sent[i+1:]
				break
			}
		}
		if w.delivering != nil {
			s, w.delivering = *w.delivering, nil
			return s, Delivered, true
		}
	}
	return s, Answered, false
}

// cutText cuts a text that ends with a zero byte from the beginning of b.
func cutText(b []byte) (text string, rest []byte) {
	before, rest, _ := bytes.Cut(b, []byte{0})
	return string(before), rest
}

// trigger executes a failpoint and reports whether the connection stays open.
func (p *Proxy) trigger(failpoint *setFailpoint, c *connection) bool {
	action := failpoint.Do()
	close(failpoint.done)
	switch action {
	case Drop:
		c.client.Close()
		c.server.Close()
		return false
	case Swallow:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns[c.client], p.conns[c.server] = true, true
	case Forward:
	}
	return true
}
