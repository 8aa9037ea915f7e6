package pgtest

import (
	"bytes"
	"strings"
	"sync"
)

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
		if failpoint.Point == point && strings.Contains(s.text, failpoint.Statement) && (failpoint.After == "" || strings.Contains(s.before, failpoint.After)) {
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
