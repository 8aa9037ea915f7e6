package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// closeTimeout bounds each of the two steps in which pgx closes a connection whose context
// has ended: it asks the server to cancel the statement, and it reads the rest of the answer.
//
// Invariant: a connection that pgx closes leaves its pool within two closeTimeouts.
// closeSoon and closingConn keep it. pgx alone takes up to 15 seconds if the server does not
// answer. The pool of the writer has one connection: meanwhile the process could not write,
// even if another host has taken over.
const closeTimeout = time.Second

var errNoCancel = errors.New("a commit is not cancelled")

// beforeConnect is the type of pgxpool.Config.BeforeConnect.
type beforeConnect = func(context.Context, *pgx.ConnConfig) error

// closeSoon returns a function for pgxpool.Config.BeforeConnect that keeps the invariant
// of closeTimeout. mayCancel says whether pgx may ask the server to cancel the statement of
// a connection that it closes. The function calls before first, which may change the
// configuration.
//
// mayCancel is false for the writer's connection. A cancelled COMMIT stops waiting for its
// synchronous standby, and its changes become visible although they are not replicated.
// Without a cancel request the COMMIT keeps waiting after the client has gone, and its
// changes stay invisible until the standby has them.
func closeSoon(mayCancel bool, before beforeConnect) beforeConnect {
	return func(ctx context.Context, config *pgx.ConnConfig) error {
		if err := before(ctx, config); err != nil {
			return err
		}
		var connected atomic.Bool
		dial := config.DialFunc
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			// Once the connection is made, pgx dials only for cancel requests.
			isCancel := connected.Load()
			if isCancel && !mayCancel {
				return nil, errNoCancel
			}
			if isCancel {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, closeTimeout)
				defer cancel()
			}
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if isCancel {
				if err := conn.SetDeadline(time.Now().Add(closeTimeout)); err != nil {
					return nil, errors.Join(err, conn.Close())
				}
			}
			return closingConn{conn}, nil
		}
		config.AfterConnect = func(context.Context, *pgconn.PgConn) error {
			connected.Store(true)
			return nil
		}
		return nil
	}
}

// closingConn bounds deadlines in the future by closeTimeout. pgx sets such a deadline only
// when it closes the connection.
type closingConn struct{ net.Conn }

// SetDeadline implements net.Conn.
func (c closingConn) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeTimeout); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}

// batchWait is the wait for the answer to the batch under way, if there is one.
//
// Invariant: the driver does not wait for the answer to a batch from a server that does not
// answer reads. A read that began after the batch and got no answer calls endIfBefore, and
// the outcome of the batch is unknown. Otherwise the writer would wait for as long as a
// COMMIT may take, although another host may have taken over. While a COMMIT waits for its
// synchronous standby, the server answers reads, and the wait continues.
type batchWait struct {
	mu    sync.Mutex
	began time.Time
	// giveUp ends the wait; nil if no batch is under way.
	giveUp context.CancelFunc
}

// begin records that a batch is being sent. giveUp ends the wait for its answer.
func (w *batchWait) begin(giveUp context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began, w.giveUp = time.Now(), giveUp
}

// end records that the wait for the batch is over.
func (w *batchWait) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.giveUp = nil
}

// endIfBefore ends the wait for a batch that began before a time.
func (w *batchWait) endIfBefore(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.giveUp != nil && w.began.Before(t) {
		w.giveUp()
	}
}

// sessionInterval is the time between two questions of watchSession.
const sessionInterval = time.Second

// watchSession calls giveUp, which ends the wait for a batch, when the session of the batch
// has nothing to do: then the network has lost the batch or its answer. watchSession asks the
// server on another connection, the first time after Options.ReadTimeout, until the caller
// calls stop. It does not give up a batch whose session works, or waits for a lock or for a
// synchronous standby.
//
// Behind a pooler the driver does not know the session. There it waits for a batch until its
// deadline.
func (s *server) watchSession(ctx context.Context, conn *pgxpool.Conn, giveUp func()) (stop func()) {
	if !s.hasSession() {
		return func() {}
	}
	pid := conn.Conn().PgConn().PID()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	timer := time.AfterFunc(s.options.ReadTimeout, func() {
		defer close(ended)
		for ctx.Err() == nil {
			if done, err := s.isDone(ctx, pid); err == nil && done {
				giveUp()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(sessionInterval):
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-ended
		}
	}
}

// isDone reports whether the server says that a session has had nothing to do for a second,
// or does not exist. It asks on a connection that waits for no table.
func (s *server) isDone(ctx context.Context, pid uint32) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	err = s.feedPool().QueryRow(ctx, isDone, int64(pid)).Scan(&done)
	return done, err
}

// isWorking reports whether the server says that a session of it works or waits. Any answer is
// enough behind a pooler, where the driver does not know the session, and for a read that got no
// connection (0).
func (s *server) isWorking(ctx context.Context, pid uint32) bool {
	done, err := s.isDone(ctx, pid)
	return err == nil && (!done || pid == 0 || !s.hasSession())
}
