package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"byre/sqlstore"
)

const (
	// defaultFlushInterval is how long a volatile change may be in memory only: not longer
	// than a candidate waits before it takes over a Lease that it has just seen (15 s by
	// client-go's default), so that a holder whose renewals a crash has undone finds out
	// before another process takes the Lease.
	defaultFlushInterval = 15 * time.Second
	// reservedRevisions is how many revisions are reserved at a time.
	reservedRevisions = 1_000_000
	// mostVolatileChanges and mostVolatileBytes bound what is in memory only; a batch that
	// would exceed them is committed, and all before it.
	mostVolatileChanges = 10_000
	mostVolatileBytes   = 16 << 20
)

// memory holds the changes of volatile resources that are not in the database yet.
//
// Invariant: they are the end of the history. The database holds every change up to
// flushed, memory every one after it: each transaction begins with what memory holds. So
// what is lost when the process ends are the last changes, all of them volatile, and a
// change that is durable has all before it in the database.
//
// Invariant: the revision of a change in memory is at most reserved, which the database
// holds. A start that finds it there skips up to it, so that no revision is given twice.
//
// The fields change while both Driver.writing and mu are held, mu until the transaction
// that flushes them has ended: else a read of the database could see what follows on a
// change while another read still finds that change in memory.
type memory struct {
	isVolatile func(sqlstore.Key) bool

	mu      sync.RWMutex
	flushed int64
	changes []volatileChange
	// oldest is when the first of changes was made.
	oldest time.Time
	// current are the records of the keys that the changes are of; nil for a deleted one.
	current map[sqlstore.Key]*sqlstore.Record
	bytes   int

	// reserved and isFailing are Driver.writing's alone. isFailing is true if the last
	// transaction failed. Until one succeeds, nothing is acknowledged from memory;
	// otherwise clients would not learn that the database takes no writes.
	reserved  int64
	isFailing bool
}

// volatileChange is a change with the write that it is made by in the database.
type volatileChange struct {
	sqlstore.Change
	write sqlstore.Write
}

func newMemory(isVolatile func(sqlstore.Key) bool, flushed int64) *memory {
	return &memory{isVolatile: isVolatile, flushed: flushed, current: make(map[sqlstore.Key]*sqlstore.Record)}
}

// takes reports whether a batch may be acknowledged from memory.
func (m *memory) takes(batch []sqlstore.Write, last int64) bool {
	bytes := m.bytes
	for i := range batch {
		if !m.isVolatile(batch[i].Key) {
			return false
		}
		bytes += len(batch[i].Value)
	}
	return len(batch) > 0 && !m.isFailing && bytes <= mostVolatileBytes &&
		len(m.changes)+len(batch) <= mostVolatileChanges && last+int64(len(batch)) <= m.reserved
}

// last is the revision of the last change, while mu is held.
func (m *memory) last() int64 { return m.flushed + int64(len(m.changes)) }

// find returns the record under a key as of the revision last, nil if it is deleted.
// known is false if memory has no change of the key; the database then has the record of
// that revision or a newer one.
func (m *memory) find(key sqlstore.Key) (record *sqlstore.Record, known bool, last int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	record, known = m.current[key]
	return record, known, m.last()
}

// covered is like find for a list: all that it reads is in the database as it was at the
// revision last, or newer.
func (m *memory) covered(q sqlstore.Query) (isCovered bool, last int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for key := range m.current {
		if key.Group == q.Group && key.Resource == q.Resource && key.Owner == q.Owner {
			return false, 0
		}
	}
	return q.At <= m.flushed || len(m.changes) == 0, m.last()
}

// hasChanged reports whether memory has another state of a record.
func (m *memory) hasChanged(r sqlstore.Record) bool {
	_, known, _ := m.find(r.Key)
	return known
}

// holdsExpired reports whether a record in memory has expired.
func (m *memory) holdsExpired(now time.Time) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, record := range m.current {
		if record != nil && !record.Expires.IsZero() && !record.Expires.After(now) {
			return true
		}
	}
	return false
}

// after returns the changes after a revision, as Driver.Changes does. known is false where
// the database has the first of them.
func (m *memory) after(revision int64, limit, size int) (changes []sqlstore.Change, known bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if revision < m.flushed || len(m.changes) == 0 {
		return nil, false
	}
	for i := range m.changes {
		if m.changes[i].Revision <= revision {
			continue
		}
		if len(changes) == limit {
			break
		}
		changes = append(changes, m.changes[i].Change)
		if size > 0 {
			if size -= m.changes[i].Size(); size <= 0 {
				break
			}
		}
	}
	return changes, true
}

// covers reports whether the database holds all up to a revision.
func (m *memory) covers(revision int64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.changes) == 0 || revision <= m.flushed
}

// commitToMemory applies the writes as a transaction would, and gives them revisions.
func (d *Driver) commitToMemory(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	m, state := d.memory, *d.state.Load()
	outcomes := make([]sqlstore.Outcome, len(batch))
	now := d.options.Clock().UTC().Truncate(time.Microsecond)
	var changes []volatileChange
	for i := range batch {
		w := &batch[i]
		current, err := d.currentRecord(ctx, w.Key)
		if err != nil {
			return nil, err
		}
		if outcomes[i].Err = precondition(w, current); outcomes[i].Err != nil {
			continue
		}
		state.Revision++
		change := changed(w, current, state.Revision, now)
		outcomes[i] = sqlstore.Outcome{Revision: change.Revision, Time: now, Created: change.New.Created, OldBytes: change.OldBytes}
		if change.Old != nil {
			outcomes[i].UID = change.Old.UID
		}
		changes = append(changes, volatileChange{change, *w})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.changes) == 0 {
		m.oldest = time.Now()
	}
	for _, c := range changes {
		m.changes = append(m.changes, c)
		m.bytes += len(c.New.Value)
		if record := c.New; c.Op == sqlstore.Delete {
			m.current[c.New.Key] = nil
		} else {
			m.current[c.New.Key] = &record
		}
	}
	d.state.Store(&state)
	return outcomes, nil
}

// currentRecord returns the record under a key, or nil.
func (d *Driver) currentRecord(ctx context.Context, key sqlstore.Key) (*sqlstore.Record, error) {
	record, _, err := d.Get(ctx, key)
	if errors.Is(err, sqlstore.ErrNotFound) {
		return nil, nil
	}
	return &record, err
}

// precondition is the error of a write that finds a record, or nil for none.
func precondition(w *sqlstore.Write, current *sqlstore.Record) error {
	switch {
	case w.Op == sqlstore.Create && current != nil:
		return sqlstore.ErrExists
	case w.Op == sqlstore.Create:
		return nil
	case current == nil:
		return sqlstore.ErrNotFound
	case current.Revision != w.Replaces:
		return &sqlstore.ConflictError{Current: current.Revision}
	}
	return nil
}

// changed is the change that a write makes, as it would be read from the database.
func changed(w *sqlstore.Write, old *sqlstore.Record, revision int64, now time.Time) sqlstore.Change {
	c := sqlstore.Change{
		Op: w.Op, Revision: revision, Time: now, Author: w.Author,
		New: sqlstore.Record{Key: w.Key, Created: revision, Revision: revision},
	}
	if old != nil {
		c.New.Created, c.Old, c.OldBytes = old.Created, old, int64(len(old.Value))
	}
	if w.Op == sqlstore.Delete {
		c.New.UID = old.UID
		return c
	}
	c.New.UID, c.New.Form, c.New.Value = w.UID, w.Form, w.Value
	if !w.Expires.IsZero() {
		c.New.Expires = w.Expires.UTC().Truncate(time.Microsecond)
	}
	return c
}

// transaction flushes memory and runs f in one transaction. After it the database holds
// everything up to state.
func (d *Driver) transaction(state *sqlstore.State, f func() error) error {
	m := d.memory
	if m == nil {
		return d.writer.transaction(f)
	}
	isFlush := len(m.changes) > 0
	if isFlush {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	reserve := m.reserved
	err := d.writer.transaction(func() error {
		for i := range m.changes {
			if err := d.writer.replay(&m.changes[i]); err != nil {
				return err
			}
		}
		if err := f(); err != nil || m.reserved-state.Revision >= reservedRevisions/2 {
			return err
		}
		reserve = state.Revision + reservedRevisions
		_, err := d.writer.reserve.Exec(reserve)
		return err
	})
	m.isFailing = err != nil
	if err != nil {
		return err
	}
	if !isFlush {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	m.reserved, m.flushed, m.changes, m.bytes = reserve, state.Revision, nil, 0
	clear(m.current)
	return nil
}

// replay makes a change in the database that memory has acknowledged.
func (w *writer) replay(c *volatileChange) error {
	stamp := formatTime(c.Time)
	var o sqlstore.Outcome
	var err error
	if c.Op == sqlstore.Create {
		o, err = w.create(&c.write, c.Revision, stamp)
	} else {
		o, err = w.replace(&c.write, c.Revision, stamp)
	}
	if err == nil && o.Err != nil {
		err = fmt.Errorf("%w: revision %d of %v can't be flushed: %w", sqlstore.ErrDatabase, c.Revision, c.New.Key, o.Err)
	}
	return err
}

// flush commits what memory holds.
func (d *Driver) flush() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.writer.closed {
		return sqlstore.ErrClosed
	}
	return d.translate(d.flushLocked())
}

// flushDue flushes if a change has been in memory for Options.FlushInterval, and returns after
// what time to look again. A transaction that was made for another change has flushed the
// earlier ones: each flush writes whole pages, so that one flush less is worth the wait.
func (d *Driver) flushDue() (next time.Duration, err error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	switch {
	case d.writer.closed:
		return d.options.FlushInterval, sqlstore.ErrClosed
	case d.memory == nil || len(d.memory.changes) == 0:
		return d.options.FlushInterval, nil
	}
	if age := time.Since(d.memory.oldest); age < d.options.FlushInterval {
		return d.options.FlushInterval - age, nil
	}
	return d.options.FlushInterval, d.translate(d.flushLocked())
}

func (d *Driver) flushLocked() error {
	if d.memory == nil || len(d.memory.changes) == 0 {
		return nil
	}
	err := d.transaction(d.state.Load(), func() error { return nil })
	d.walGrew()
	return err
}

// flushBefore flushes if a read of the database would miss changes.
func (d *Driver) flushBefore(isMissed func(*memory) bool) error {
	if d.memory == nil || !isMissed(d.memory) {
		return nil
	}
	return d.flush()
}

// openMemory skips the revisions that an earlier process may have given to changes in its
// memory only, and reserves revisions for this process.
func (d *Driver) openMemory(ctx context.Context, state *sqlstore.State) error {
	reserved, err := d.readers.reserved(ctx)
	if err != nil {
		return err
	}
	if reserved > state.Revision {
		if err := d.writer.transaction(func() error {
			_, err := d.writer.skip.Exec()
			return err
		}); err != nil {
			return err
		}
		if *state, err = d.readers.state(ctx); err != nil {
			return err
		}
	}
	if d.options.Volatile != nil {
		d.memory = newMemory(d.options.Volatile, state.Revision)
	}
	return nil
}

// closeMemory flushes, and clears the reservation, so that the next start skips no
// revision.
func (d *Driver) closeMemory() error {
	if d.memory == nil || d.writer == nil || d.writer.closed {
		return nil
	}
	return d.translate(d.transaction(d.state.Load(), func() error {
		d.memory.reserved = d.state.Load().Revision + reservedRevisions
		_, err := d.writer.reserve.Exec(0)
		return err
	}))
}

// durable is the last revision that the database holds.
func (d *Driver) durable() int64 {
	if d.memory == nil {
		return d.state.Load().Revision
	}
	d.memory.mu.RLock()
	defer d.memory.mu.RUnlock()
	return d.memory.flushed
}
