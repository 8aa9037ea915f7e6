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

// closeTimeout bounds each of the two steps in which pgx closes a connection that it has
// given up: it asks the server to cancel the statement, and reads what is under way.
// Invariant: such a connection leaves its place in its pool within two of these. pgx
// itself takes up to 15 seconds where the server is silent; the writer, which has one
// place, would write nothing meanwhile, though another host may have taken over.
const closeTimeout = time.Second

var errNoCancel = errors.New("a commit is not cancelled")

// beforeConnect is a function of the type of pgxpool.Config.BeforeConnect.
type beforeConnect = func(context.Context, *pgx.ConnConfig) error

// closeSoon returns a function for pgxpool.Config.BeforeConnect that keeps the invariant
// of closeTimeout. mayCancel says whether the server is asked to cancel a statement that
// is given up.
//
// The server is not asked on the writer's connection. A cancelled COMMIT stops to wait
// for its synchronous standby, and its changes become visible although they are not
// replicated. Without the request it goes on waiting, invisible, after the client has
// gone.
//
// before is called first; it may change the configuration.
func closeSoon(mayCancel bool, before beforeConnect) beforeConnect {
	return func(ctx context.Context, config *pgx.ConnConfig) error {
		if err := before(ctx, config); err != nil {
			return err
		}
		var connected atomic.Bool
		dial := config.DialFunc
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			// After the connection is made, pgx dials for cancel requests only.
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

// closingConn is a connection on which pgx sets a deadline in the future only when it
// closes it.
type closingConn struct{ net.Conn }

// SetDeadline implements net.Conn.
func (c closingConn) SetDeadline(t time.Time) error {
	if latest := time.Now().Add(closeTimeout); t.After(latest) {
		t = latest
	}
	return c.Conn.SetDeadline(t)
}

// batchWait is the wait for the answer of the batch under way, if there is one.
//
// Invariant: a batch does not wait for a server that is known to be silent. A read that
// began after the batch and got no answer ends the wait; the outcome is unknown then.
// Otherwise the writer would wait for as long as a COMMIT may take, while another host
// has taken over. Where a COMMIT waits for its synchronous standby, reads are answered.
type batchWait struct {
	mu    sync.Mutex
	began time.Time
	// giveUp is nil where no batch is under way.
	giveUp context.CancelFunc
}

// begin records that a batch is sent. giveUp ends the wait for its answer.
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

// sessionInterval is how often watchSession asks.
const sessionInterval = time.Second

// watchSession ends the wait for a batch whose session has nothing to do: the network has
// swallowed the batch or its answer, while other connections work. On such a connection it
// asks the server, the first time after Options.ReadTimeout, until the returned function is
// called. A session that works, or waits for a lock or for a synchronous standby, is left
// alone.
//
// Behind a pooler nobody knows the session. There the batch ends at its deadline.
func (d *Driver) watchSession(ctx context.Context, conn *pgxpool.Conn, giveUp func()) (stop func()) {
	if !d.hasSession() {
		return func() {}
	}
	pid := conn.Conn().PgConn().PID()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	timer := time.AfterFunc(d.options.ReadTimeout, func() {
		defer close(ended)
		for ctx.Err() == nil {
			if d.isDone(ctx, pid) {
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

// isDone reports whether the server says that a session has nothing to do.
func (d *Driver) isDone(ctx context.Context, pid uint32) (done bool) {
	err := d.read(ctx, func(ctx context.Context, conn *pgxpool.Conn, _ *watchdog, _ position) error {
		return conn.QueryRow(ctx, isDone, int64(pid)).Scan(&done)
	})
	return err == nil && done
}
