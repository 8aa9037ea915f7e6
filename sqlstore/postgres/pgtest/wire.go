package pgtest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
)

// Point is a moment in the life of a statement, as the proxy sees it.
type Point int

// The moments. A statement that fails has only the first.
const (
	// Sent: the client has sent the statement, and the server has not got it. The
	// server has got what the client sent before.
	Sent Point = iota
	// Answered: the server has done the statement, and the client has not got the answer.
	Answered
	// Delivered: the client has the answer, as far as the kernel can say.
	Delivered
)

// Fate is what becomes of a connection after a trap.
type Fate int

// The fates.
const (
	// Forward goes on as if nothing had happened.
	Forward Fate = iota
	// Drop closes the connection on both sides.
	Drop
	// Swallow keeps it open on both sides and forwards nothing more.
	Swallow
)

// Trap is a moment at which a Proxy does something.
type Trap struct {
	// Statement is a part of the text of the statement that is meant.
	Statement string
	// After is a part of the text of an earlier statement of the same transaction;
	// empty means any transaction.
	After string
	Point Point
	// Skip is how many such moments pass before the one that is meant.
	Skip int
	// Do is called when a connection gets there. Nothing is forwarded on that connection
	// in that direction until it returns.
	Do func() Fate
}

// Set sets a trap. It catches one statement. The channel is closed when Do has returned.
func (p *Proxy) Set(trap Trap) (caught <-chan struct{}) {
	set := &setTrap{Trap: trap, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, set)
	return set.done
}

// Unset takes back all traps that have caught nothing.
func (p *Proxy) Unset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = nil
}

type setTrap struct {
	Trap
	done chan struct{}
}

// take removes the trap that a statement at a point runs into.
func (p *Proxy) take(point Point, s statement) *setTrap {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, trap := range p.traps {
		if trap.Point == point && strings.Contains(s.text, trap.Statement) && (trap.After == "" || strings.Contains(s.before, trap.After)) {
			if trap.Skip > 0 {
				trap.Skip--
				continue
			}
			p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
			return trap
		}
	}
	return nil
}

// statement is one that a client has sent.
type statement struct {
	text string
	// before are the statements of the same transaction before it.
	before string
	// isSimple says that it came by the simple protocol, whose one message may have
	// several answers; isSync that it is none, but the end of a pipeline.
	isSimple, isSync bool
}

// wire follows what one connection says, message by message.
// https://www.postgresql.org/docs/current/protocol-message-formats.html
type wire struct {
	mu sync.Mutex
	// prepared are the texts of statements by name, portals those of bound ones.
	prepared, portals map[string]string
	// transaction holds the statements since BEGIN.
	transaction string
	// sent are the statements that the server has not answered yet.
	sent []statement
	// delivering is a statement whose answer is followed by ReadyForQuery.
	delivering *statement
}

func newWire() *wire {
	return &wire{prepared: map[string]string{}, portals: map[string]string{}}
}

// client follows a message of the client; the statement is one that it executes.
func (w *wire) client(message []byte) (s statement, isStatement bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := message[5:]
	switch message[0] {
	case 'P': // Parse
		name, rest := word(body)
		w.prepared[name], _ = word(rest)
	case 'B': // Bind
		portal, rest := word(body)
		name, _ := word(rest)
		w.portals[portal] = w.prepared[name]
	case 'E': // Execute
		portal, _ := word(body)
		return w.execute(w.portals[portal], false), true
	case 'Q': // Query
		text, _ := word(body)
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

// server follows a message of the server. The statement is the one whose answer the
// message is; point says which moment that is.
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

// word cuts a text that ends with a zero byte.
func word(b []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	return string(text), rest
}

// cutMessage cuts the first message of a stream; nil where it is not there wholly. The
// first message of a client has no type.
func cutMessage(stream []byte, isFirst bool) (message, rest []byte) {
	begin := 1
	if isFirst {
		begin = 0
	}
	if len(stream) < begin+4 {
		return nil, stream
	}
	size := begin + int(binary.BigEndian.Uint32(stream[begin:]))
	if len(stream) < size {
		return nil, stream
	}
	return stream[:size], stream[size:]
}

// spring does what a trap says and reports whether the connection goes on.
func (p *Proxy) spring(trap *setTrap, c *connection) bool {
	fate := trap.Do()
	close(trap.done)
	switch fate {
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
