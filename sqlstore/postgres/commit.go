package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"byre/sqlstore"
)

// errNoStandby means that the wait of a COMMIT for a synchronous standby was cancelled.
var errNoStandby = errors.New(
	"somebody has cancelled a COMMIT that waited for a synchronous standby, which may not have it")

// attempts is how often Commit sends a batch that does not get the writers' lock, or that loses
// a race against another transaction.
const attempts = 3

// Commit implements sqlstore.Driver. If the batch does not get the writers' lock within
// Options.LockTimeout, Commit terminates the session that holds it, if that session is idle,
// and tries again.
func (d *Driver) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	arguments := arrays(batch)
	for attempt := 1; ; attempt++ {
		before := d.lineage.last()
		outcomes, err := d.commit(ctx, batch, arguments, before)
		if errors.Is(err, errNotHeld) {
			err = d.followInstance(ctx, before)
			if err == nil && attempt < attempts {
				continue
			}
			if err == nil {
				err = fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errNotHeld)
			}
		}
		switch {
		case err == nil:
			return outcomes, nil
		case hasCode(err, codeReadOnly):
			// The server has become a standby. The new primary is on another host, which
			// new connections find.
			d.server.reset()
			return nil, err
		case hasLostRace(err) && attempt < attempts:
			continue
		case !hasCode(err, codeLockNotAvailable) || attempt == attempts:
			return nil, err
		}
		if err := d.server.terminateHolder(ctx); err != nil {
			return nil, err
		}
	}
}

// commit sends a batch as one pipeline and reads its results. The end of the caller's
// context does not end it, because pgx would then cancel the COMMIT; see closeSoon. The
// server's own time-outs bound the statements before the COMMIT, so that a batch that fails
// there certainly did not happen. commit stops waiting for a COMMIT that takes too long and
// does not cancel it; the outcome is unknown then.
func (d *Driver) commit(
	ctx context.Context, batch []sqlstore.Write, arguments []any, before lastSeen,
) ([]sqlstore.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		d.server.options.LockTimeout+d.server.options.CommitTimeout)
	defer cancel()
	conn, err := d.server.acquireWriter(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	d.waiting.begin(cancel)
	defer d.waiting.end()
	defer d.server.watchSession(ctx, conn, cancel)()

	var b pgx.Batch
	b.Queue(begin)
	if !d.server.hasSession() {
		b.Queue(configure, milliseconds(d.server.options.LockTimeout), true)
	}
	b.Queue(lock, milliseconds(d.server.options.CommitTimeout/2), before.instance)
	added := d.unknownResources(batch)
	if len(added) > 0 {
		b.Queue(addResources, append(names(added), before.instance)...)
	}
	var outcomes []sqlstore.Outcome
	var last lastSeen
	// isCommitting is true once the server has answered all statements before the COMMIT, isCommitted once it has
	// answered that: an error after it does not change the outcome.
	isCommitting, isCommitted := false, false
	b.Queue(applyBatch,
		append(append(arguments, before.revision, knownTime(before), before.uid, before.instance), others(batch)...)...,
	).Query(func(rows pgx.Rows) (err error) {
		outcomes, last, err = scanOutcomes(rows, batch)
		return err
	})
	b.Queue(unlimited).Exec(func(pgconn.CommandTag) error {
		isCommitting = true
		d.server.warned.Store(false)
		return nil
	})
	b.Queue(commit).Exec(func(tag pgconn.CommandTag) error {
		switch {
		case tag.String() != commit:
			return fmt.Errorf("commit ended as %q", tag)
		case d.server.warned.Load():
			// It has succeeded with a warning, because its wait for a synchronous standby was cancelled: a failover may
			// lose it.
			return errNoStandby
		}
		isCommitted = true
		return nil
	})
	if ctx.Err() != nil {
		return nil, d.server.silent()
	}
	if err = conn.SendBatch(ctx, &b).Close(); isCommitted {
		for _, r := range added {
			d.known.Store(r, true)
		}
		if last.revision > 0 {
			last.instance = before.instance
			d.lineage.advance(before, last)
		}
		return outcomes, nil
	}
	if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
		// If the ROLLBACK fails too, Release closes the connection.
		_, _ = conn.Exec(ctx, rollback)
	}
	if errors.Is(err, errNotHeld) {
		return nil, err
	}
	if errors.Is(err, context.Canceled) {
		err = context.DeadlineExceeded // batchWait or watchSession has ended the wait
	}
	return nil, d.server.translateCommit(err, isCommitting)
}

// acquireWriter acquires the connection that commits. If it fails, nothing was sent.
func (s *server) acquireWriter(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.ReadTimeout)
	defer cancel()
	conn, err := s.writes.Acquire(ctx)
	switch stat := s.writes.Stat(); {
	case err != nil && stat.AcquiredConns() == stat.MaxConns():
		return nil, fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, errBusy) // a batch under way has it
	case err != nil && ctx.Err() != nil:
		return nil, s.notConnected(s.writes)
	}
	return conn, s.translate(err)
}

func scanOutcomes(rows pgx.Rows, batch []sqlstore.Write) (outcomes []sqlstore.Outcome, last lastSeen, err error) {
	outcomes = make([]sqlstore.Outcome, len(batch))
	n := 0
	for ; rows.Next() && n < len(batch); n++ {
		o, w := &outcomes[n], &batch[n]
		if *o, err = scanOutcome(rows, w.Op); err != nil {
			return nil, last, err
		}
		if o.Err == nil {
			last = lastSeen{revision: o.Revision, time: o.Time, uid: o.UID}
			if w.Op == sqlstore.Create {
				last.uid = w.UID
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, last, err
	}
	if n != len(batch) {
		return nil, last, fmt.Errorf("%d outcomes of %d writes", n, len(batch))
	}
	return outcomes, last, nil
}

func scanOutcome(rows pgx.Rows, op sqlstore.Op) (o sqlstore.Outcome, err error) {
	var effective, holds bool
	var revision, current int64
	var refused string
	if err := rows.Scan(&effective, &revision, &o.Time, &current, &o.Created, &o.UID, &o.OldBytes, &refused,
		&holds); err != nil {
		return o, err
	}
	switch {
	case !holds:
		return o, errNotHeld
	case effective:
		o.Revision, o.Time = revision, o.Time.UTC()
		return o, nil
	case refused == "required":
		o = sqlstore.Outcome{Err: sqlstore.ErrRequired}
	case refused == "in use":
		o = sqlstore.Outcome{Err: sqlstore.ErrInUse}
	case op == sqlstore.Create:
		o = sqlstore.Outcome{Err: sqlstore.ErrExists}
	case current == 0:
		o = sqlstore.Outcome{Err: sqlstore.ErrNotFound}
	default:
		o = sqlstore.Outcome{Err: &sqlstore.ConflictError{Current: current}}
	}
	return o, nil
}

// arrays returns the writes as the arrays that are the first arguments of applyBatch.
func arrays(batch []sqlstore.Write) []any {
	var texts [16][]string
	for i := range texts {
		texts[i] = make([]string, len(batch))
	}
	replaces, generation := make([]int64, len(batch)), make([]int64, len(batch))
	for i := range batch {
		w := &batch[i]
		expires := ""
		if !w.Expires.IsZero() {
			expires = formatTime(w.Expires)
		}
		replaces[i], generation[i] = w.Replaces, w.Generation
		for n, column := range [...]string{
			string(w.Op), w.Key.Group, w.Key.Resource, w.Key.Owner.String(), w.Key.Namespace, w.Key.Name, w.UID, w.Encoding,
			expires, sqlstore.Text(w.Value),
			w.Author.Verb, w.Author.Subresource, w.Author.Manager, w.Author.User, w.Author.RealUser, w.Author.AuditID,
		} {
			texts[n][i] = column
		}
	}
	all := make([]any, 0, len(texts)+6) // with the last seen change
	for n, column := range texts {
		switch n {
		case 6:
			all = append(all, replaces)
		case 7:
			all = append(all, generation)
		}
		all = append(all, column)
	}
	return all
}

// unknownResources returns the resources of creates that this process has not created an object
// of before: they may have no id yet.
func (d *Driver) unknownResources(batch []sqlstore.Write) (unknown []sqlstore.Resource) {
	for i := range batch {
		of := batch[i].Key.Of()
		if batch[i].Op != sqlstore.Create || slices.Contains(unknown, of) {
			continue
		}
		if _, ok := d.known.Load(of); !ok {
			unknown = append(unknown, of)
		}
	}
	return unknown
}

// names returns resources as the arguments of addResources.
func names(resources []sqlstore.Resource) []any {
	var group, resource, owner []string
	for _, r := range resources {
		group, resource, owner = append(group, r.Group), append(resource, r.Resource), append(owner, r.Owner.String())
	}
	return []any{group, resource, owner}
}

// terminateHolder terminates an idle session that has held the writers' lock for nearly
// Options.LockTimeout.
func (s *server) terminateHolder(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.LockTimeout)
	defer cancel()
	// A little less than LockTimeout, so that a session that took the lock just before
	// this process began to wait is found.
	held := s.options.LockTimeout * 9 / 10
	_, err := s.writes.Exec(ctx, terminateHolder, held.String())
	return s.translate(err)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// formatTime returns a text that the server reads alike under every DateStyle and TimeZone.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// others returns what the writes of a batch require of other objects, as the last arguments of
// applyBatch. Most writes require nothing, and the others of a batch nearly always the same: each
// different requirement is sent once, and each write has its number.
func others(batch []sqlstore.Write) []any {
	requires, empties := make([]int64, len(batch)), make([]int64, len(batch))
	var required []sqlstore.Requirement
	var emptied []sqlstore.Resource
	for i := range batch {
		if r := batch[i].Requires; r != nil {
			requires[i] = number(&required, *r)
		}
		if r := batch[i].RequiresNone; r != nil {
			empties[i] = number(&emptied, *r)
		}
	}
	n := len(required)
	of, namespace, name := make([]sqlstore.Resource, n), make([]string, n), make([]string, n)
	uid, generation := make([]string, n), make([]int64, n)
	for i, r := range required {
		of[i], namespace[i], name[i], uid[i], generation[i] = r.Key.Of(), r.Key.Namespace, r.Key.Name, r.UID, r.Generation
	}
	all := append([]any{requires}, names(of)...)
	all = append(all, namespace, name, uid, generation, empties)
	return append(all, names(emptied)...)
}

// number returns the position of a value in list, beginning with 1. It appends the value if it
// is not there.
func number[T comparable](list *[]T, value T) int64 {
	i := slices.Index(*list, value)
	if i < 0 {
		i = len(*list)
		*list = append(*list, value)
	}
	return int64(i) + 1
}
