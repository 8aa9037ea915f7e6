package replication

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is a lease that this process has, or had.
type Lease struct {
	object *LeaseObject
	clock  Clock
	// until is when it becomes invalid, by the clock; 0 after it is lost or released.
	until atomic.Int64
	// handOver is closed when another process is to take the lease.
	handOver chan struct{}
	// mayFork is that of MayFork.
	mayFork bool

	// writing is held while the object is written. It guards state and etag, which are what the object has,
	// as far as that is known.
	writing sync.Mutex
	state   LeaseState
	etag    string
	// position is that of Serve; nil before.
	position func() (revision int64, txid uint64)

	// folder is what SetFolder has set.
	folder atomic.Pointer[string]
	// standby is what a standby has told last.
	standby atomic.Pointer[told]
}

// told is what a standby has told, and when that was first seen, by the clock.
type told struct {
	Standby
	at time.Duration
}

// Standby returns what a standby has told last of its copy while this process served, and how long ago that was; zero if
// none has told anything new.
func (l *Lease) Standby() (s Standby, age time.Duration) {
	if t := l.standby.Load(); t != nil && t.at > 0 {
		return t.Standby, l.clock() - t.at
	}
	return s, 0
}

// readStandby reads what a standby has told. The first one may be an old text.
func (l *Lease) readStandby(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := l.object.ReadStandby(ctx)
	t := l.standby.Load()
	switch {
	case err != nil:
	case t == nil:
		l.standby.Store(&told{Standby: s})
	case t.Standby != s:
		l.standby.Store(&told{s, l.clock()})
	}
}

// ErrLeaseLost means that another process may have the lease.
var ErrLeaseLost = errors.New("this server could not renew its lease in time, and another one may serve: it stops at once, and follows when it is started again")

// Check fails with ErrLost if the lease is not valid any more. Then it fails forever: extend finds what Check has stored.
func (l *Lease) Check() error {
	for {
		until := l.until.Load()
		switch {
		case int64(l.clock()) < until:
			return nil
		case l.until.CompareAndSwap(until, 0):
			return ErrLeaseLost
		}
	}
}

// extend makes the lease valid from when a renewal was sent. It fails with ErrLost if the lease has ended before: what
// asked Check meanwhile was told so.
func (l *Lease) extend(sent time.Duration) error {
	until := l.until.Load()
	if int64(l.clock()) >= until || !l.until.CompareAndSwap(until, int64(sent+l.state.Duration()*3/5)) {
		l.until.Store(0)
		return ErrLeaseLost
	}
	return nil
}

// MayFork reports whether another process may have acknowledged commits after the Position with which this one has taken
// the lease: the last holder has not served, or has neither released the lease, nor had the lock of this process.
func (l *Lease) MayFork() bool { return l.mayFork }

// State is the lease as it was last read or written.
func (l *Lease) State() LeaseState {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.state
}

// HandOver is closed when another process is to take the lease.
func (l *Lease) HandOver() <-chan struct{} { return l.handOver }

// SetFolder says that a copy has begun, from which a new holder goes on. It tries again until the object has it,
// the lease is lost, or ctx ends. Serve was called before.
func (l *Lease) SetFolder(ctx context.Context, name string) error {
	l.folder.Store(&name)
	return l.insist(ctx, func(*LeaseState) {})
}

// Run renews the lease until ctx ends, and then returns nil, or until it is lost: then it returns ErrLost.
func (l *Lease) Run(ctx context.Context, logger *slog.Logger) error {
	state := l.State()
	interval := state.Duration() / 5
	pause, isFailing := interval, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, max(0, l.left()))):
		}
		if err := l.Check(); err != nil {
			return err
		}
		err := l.renew(ctx, func(*LeaseState) {})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLeaseLost):
			return err
		case err == nil:
			pause = interval
			l.readStandby(ctx, interval/3) // the next renewal waits for it
		default:
			pause = interval / 3
		}
		if err != nil && !isFailing {
			logger.WarnContext(ctx, "lease: it could not be renewed, and is tried again: the server stops if that fails for longer", "err", err, "left", l.left().String())
		}
		isFailing = err != nil
	}
}

// left is for how long the lease is valid.
func (l *Lease) left() time.Duration { return time.Duration(l.until.Load()) - l.clock() }

// renew writes the object with a change, which is made again if another process has changed the object
// without taking the lease. It fails with ErrLost if another one has taken it.
func (l *Lease) renew(ctx context.Context, change func(*LeaseState)) (err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.state.Duration()/5)
	defer cancel()
	for range 2 {
		next := l.state
		if folder := l.folder.Load(); folder != nil {
			next.Folder = *folder
		}
		if l.position != nil {
			next.Position.Lineage = next.Holder
			next.Position.Revision, next.Position.TXID = l.position()
		}
		change(&next)
		next.Renewals++
		sent := l.clock()
		var etag string
		if etag, err = l.object.write(ctx, next, l.etag); err == nil {
			l.state, l.etag = next, etag
			if next.Released {
				return nil
			}
			return l.extend(sent)
		}
		if err := l.reread(ctx); err != nil {
			return err
		}
	}
	return err
}

// reread reads what the object has after a write has failed, which may have been made nevertheless.
func (l *Lease) reread(ctx context.Context) error {
	s, etag, err := l.object.read(ctx)
	if err != nil {
		return err
	}
	if etag == "" || s.Holder != l.state.Holder {
		l.until.Store(0)
		return ErrLeaseLost
	}
	if s.HandOverTo != "" && l.state.HandOverTo == "" {
		close(l.handOver)
	}
	l.state, l.etag = s, etag
	return nil
}

// Serve says that commits will follow, by a server with keys (State.Keys). Each renewal then asks for the position
// that a new holder must have. The database has the lineage State.Holder. Serve tries again until the lease is lost or
// ctx ends.
func (l *Lease) Serve(ctx context.Context, keys string, position func() (revision int64, txid uint64)) error {
	l.writing.Lock()
	l.position = position
	l.writing.Unlock()
	return l.insist(ctx, func(s *LeaseState) { s.Serving, s.Keys = true, keys })
}

// insist is renew until it succeeds, the lease is lost, or ctx ends.
func (l *Lease) insist(ctx context.Context, change func(*LeaseState)) error {
	for {
		err := l.renew(ctx, change)
		if err == nil || errors.Is(err, ErrLeaseLost) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
		if err := l.Check(); err != nil {
			return err
		}
	}
}

// Release lets another process take the lease at once. complete says that State.Folder has all commits: otherwise nothing
// is handed over. The lease is not valid any more, whether Release fails or not. Run has returned.
func (l *Lease) Release(ctx context.Context, complete bool) error {
	l.until.Store(0)
	return l.renew(ctx, func(s *LeaseState) {
		if s.Released = true; !complete {
			s.HandOverTo = ""
		}
	})
}
