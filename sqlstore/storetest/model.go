package storetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"byre/sqlstore"
)

// Model is a driver in memory, to which no other process writes. It holds the current records, and
// all changes with both of their states.
type Model struct {
	// Clock returns the time of changes.
	Clock func() time.Time

	mu      sync.Mutex
	state   sqlstore.State
	current map[sqlstore.Key]sqlstore.Record
	// generations are those of the current records.
	generations map[sqlstore.Key]int64
	// changes has the changes that are left, in order.
	changes []sqlstore.Change
	// compacted has History.ResumableAfter of each resource, and completeAfter its CompleteAfter.
	compacted, completeAfter map[sqlstore.Resource]int64
	// notes are those of Driver.Notes, by name.
	notes map[string]string
	// retainedFor has History.RetainedFor of each resource.
	retainedFor map[sqlstore.Resource]time.Duration
}

var (
	_ sqlstore.Driver    = (*Model)(nil)
	_ sqlstore.Exclusive = (*Model)(nil)
)

// Shared returns a driver that is not sqlstore.Exclusive, as if other processes wrote to its
// database.
func Shared(driver sqlstore.Driver) sqlstore.Driver { return struct{ sqlstore.Driver }{driver} }

// NewModel returns an empty Model.
func NewModel() *Model {
	return &Model{
		Clock:   time.Now,
		state:   sqlstore.State{Epoch: "model"},
		current: make(map[sqlstore.Key]sqlstore.Record),

		compacted:     make(map[sqlstore.Resource]int64),
		completeAfter: make(map[sqlstore.Resource]int64),
		notes:         make(map[string]string),
		retainedFor:   make(map[sqlstore.Resource]time.Duration),
		generations:   make(map[sqlstore.Key]int64),
	}
}

// Commit implements sqlstore.Driver.
func (m *Model) Commit(_ context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	outcomes := make([]sqlstore.Outcome, len(batch))
	now := m.Clock().UTC().Truncate(time.Microsecond)
	for i := range batch {
		outcomes[i] = m.apply(&batch[i], now)
	}
	return outcomes, nil
}

func (m *Model) apply(w *sqlstore.Write, now time.Time) sqlstore.Outcome {
	old, exists := m.current[w.Key]
	switch {
	case w.Requires != nil && !m.meets(w.Requires):
		return sqlstore.Outcome{Err: sqlstore.ErrRequired}
	case w.RequiresNone != nil && !m.isEmpty(*w.RequiresNone):
		return sqlstore.Outcome{Err: sqlstore.ErrInUse}
	case w.Op == sqlstore.Create && exists:
		return sqlstore.Outcome{Err: sqlstore.ErrExists}
	case w.Op != sqlstore.Create && !exists:
		return sqlstore.Outcome{Err: sqlstore.ErrNotFound}
	case old.Revision != w.Replaces:
		return sqlstore.Outcome{Err: &sqlstore.ConflictError{Current: old.Revision}}
	}
	m.compacted[w.Key.Of()] = m.compactedOf(w.Key.Of()) // the resource has a history now
	m.state.Revision++
	c := sqlstore.Change{
		Op: w.Op, Revision: m.state.Revision, Time: now, Author: w.Author,
		New: sqlstore.Record{Key: w.Key, Created: old.Created, Revision: m.state.Revision},
	}
	switch w.Op {
	case sqlstore.Create:
		c.New.Created = m.state.Revision
	default:
		c.Old, c.OldBytes = &old, int64(len(old.Value))
	}
	if w.Op == sqlstore.Delete {
		c.New.UID = old.UID
		delete(m.current, w.Key)
	} else {
		m.generations[w.Key] = w.Generation
		c.New.UID, c.New.Encoding, c.New.Value = w.UID, w.Encoding, w.Value
		if !w.Expires.IsZero() {
			c.New.Expires = w.Expires.UTC().Truncate(time.Microsecond)
		}
		m.current[w.Key] = c.New
	}
	m.changes = append(m.changes, c)
	return sqlstore.Outcome{Revision: c.Revision, Time: now, Created: c.New.Created, UID: old.UID, OldBytes: c.OldBytes}
}

func (m *Model) meets(r *sqlstore.Requirement) bool {
	found, exists := m.current[r.Key]
	generation := m.generations[r.Key]
	return exists && (found.UID == "" || found.UID == r.UID) && (generation == 0 || generation == r.Generation)
}

func (m *Model) isEmpty(r sqlstore.Resource) bool {
	for k := range m.current {
		if k.Of() == r {
			return false
		}
	}
	return true
}

// Get implements sqlstore.Driver.
func (m *Model) Get(_ context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.current[key]
	if !ok {
		return sqlstore.Record{}, m.state.Revision, sqlstore.ErrNotFound
	}
	return r, m.state.Revision, nil
}

// List implements sqlstore.Driver.
func (m *Model) List(
	_ context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	records, listed, err := m.list(q)
	if err != nil {
		return sqlstore.ListResult{}, err
	}
	for _, r := range records {
		if q.KeysOnly {
			r.Value = nil
		}
		if err := yield(r); err != nil {
			return sqlstore.ListResult{}, err
		}
	}
	return listed, nil
}

func (m *Model) list(q sqlstore.Query) ([]sqlstore.Record, sqlstore.ListResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := sqlstore.ListResult{Revision: cmp.Or(q.At, m.state.Revision)}
	end := m.compactedOf(q.Of())
	if q.Past {
		end = m.completeAfter[q.Of()]
	}
	switch {
	case listed.Revision > m.state.Revision:
		return nil, listed, sqlstore.ErrFuture
	case q.At != 0 && q.At < end:
		return nil, listed, sqlstore.ErrCompacted
	}
	if _, nonEmpty, err := q.Start(); err != nil || !nonEmpty {
		return nil, listed, err
	}
	var records []sqlstore.Record
	for _, r := range m.at(listed.Revision) {
		if isWithin(q.Range, r.Key) && !(q.Replaced && m.current[r.Key].Revision == r.Revision) {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b sqlstore.Record) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if q.Limit > 0 && len(records) > q.Limit {
		listed.More = true
		if q.Count {
			listed.Remaining = int64(len(records) - q.Limit)
		}
		records = records[:q.Limit]
	}
	return records, listed, nil
}

// at returns the records at a revision: the current ones, with the changes after it undone.
func (m *Model) at(revision int64) map[sqlstore.Key]sqlstore.Record {
	then := make(map[sqlstore.Key]sqlstore.Record, len(m.current))
	maps.Copy(then, m.current)
	for _, c := range slices.Backward(m.changes) {
		switch {
		case c.Revision <= revision:
			return then
		case c.Old == nil:
			delete(then, c.New.Key)
		default:
			then[c.New.Key] = *c.Old
		}
	}
	return then
}

func isWithin(r sqlstore.Range, k sqlstore.Key) bool {
	if k.Group != r.Group || k.Resource != r.Resource || k.Owner != r.Owner ||
		r.Namespace != "" && k.Namespace != r.Namespace || r.Name != "" && k.Name != r.Name {
		return false
	}
	return r.After == nil ||
		cmp.Or(strings.Compare(k.Namespace, r.After.Namespace), strings.Compare(k.Name, r.After.Name)) > 0
}

// Changes implements sqlstore.Driver.
func (m *Model) Changes(_ context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !q.Kept && (q.Of == nil && q.After < m.state.Compacted || q.Of != nil && q.After < m.compactedOf(*q.Of)) {
		return nil, sqlstore.ErrCompacted
	}
	all := m.changes
	if q.Before != 0 {
		all = slices.Clone(all)
		slices.Reverse(all)
	}
	var changes []sqlstore.Change
	read := 0
	for _, c := range all {
		if c.Revision > q.After && (q.Before == 0 || c.Revision < q.Before) && len(changes) < q.Limit &&
			(q.Size == 0 || read < q.Size) && q.Selects(c.New.Key) {
			if q.KeysOnly {
				c = withoutValues(c)
			}
			changes = append(changes, c)
			read += c.Size()
		}
	}
	return changes, nil
}

// withoutValues returns what a query of KeysOnly returns of a change.
func withoutValues(c sqlstore.Change) sqlstore.Change {
	keep := func(r sqlstore.Record) sqlstore.Record {
		return sqlstore.Record{Key: r.Key, UID: r.UID, Created: r.Created, Revision: r.Revision}
	}
	c.New, c.OldBytes = keep(c.New), 0
	if c.Old != nil {
		c.Old = new(keep(*c.Old))
		c.New.UID = c.Old.UID
	}
	return c
}

// State implements sqlstore.Driver.
func (m *Model) State(context.Context) (sqlstore.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.state
	state.Time = m.Clock()
	return state, nil
}

// Histories implements sqlstore.Driver.
func (m *Model) Histories(context.Context) (histories []sqlstore.History, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, compacted := range m.compacted {
		h := sqlstore.History{Resource: of, ResumableAfter: compacted, CompleteAfter: m.completeAfter[of],
			RetainedFor: m.retainedFor[of]}
		if i := slices.IndexFunc(m.changes, func(c sqlstore.Change) bool { return c.New.Key.Of() == of }); i >= 0 {
			h.First, h.FirstTime = m.changes[i].Revision, m.changes[i].Time
		}
		histories = append(histories, h)
	}
	return histories, nil
}

// Compacted implements sqlstore.Driver.
func (m *Model) Compacted(_ context.Context, of sqlstore.Resource) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.compactedOf(of), nil
}

func (m *Model) compactedOf(of sqlstore.Resource) int64 {
	if compacted, ok := m.compacted[of]; ok {
		return compacted
	}
	return m.state.Compacted
}

// RevisionAt implements sqlstore.Driver.
func (m *Model) RevisionAt(_ context.Context, moment time.Time) (last int64, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.changes {
		if !c.Time.After(moment) {
			last = c.Revision
		}
	}
	return last, nil
}

// Notes implements sqlstore.Driver.
func (m *Model) Notes(_ context.Context, prefix string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	notes := map[string]string{}
	for name, value := range m.notes {
		if strings.HasPrefix(name, prefix) {
			notes[name] = value
		}
	}
	return notes, nil
}

// SetNote implements sqlstore.Driver.
func (m *Model) SetNote(_ context.Context, name, old, value string) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notes[name] != old {
		return false, nil
	}
	if m.notes[name] = value; value == "" {
		delete(m.notes, name)
	}
	return true, nil
}

// SetRetainedFor implements sqlstore.Driver.
func (m *Model) SetRetainedFor(_ context.Context, ages map[sqlstore.Resource]time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.retainedFor, ages)
	return nil
}

// CountChanges implements sqlstore.Driver.
func (m *Model) CountChanges(
	_ context.Context, of sqlstore.Resource, upTo, limit int64,
) (count, oldest int64, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range slices.Backward(m.changes) {
		if c.New.Key.Of() == of && c.Revision <= upTo && count < limit {
			count, oldest = count+1, c.Revision
		}
	}
	return count, oldest, nil
}

// DeleteHistory implements sqlstore.Driver.
func (m *Model) DeleteHistory(_ context.Context, d sqlstore.Deletion) (deleted int, waited time.Duration, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	upTo, last := min(d.UpTo, m.state.Revision), int64(0)
	isOver := false
	m.changes = slices.DeleteFunc(m.changes, func(c sqlstore.Change) bool {
		if isOver || c.New.Key.Of() != d.Of {
			return false
		}
		if isOver = c.Revision > upTo || deleted == d.Limit || !d.Before.IsZero() && !c.Time.Before(d.Before); !isOver {
			last = c.Revision
			deleted++
		}
		return !isOver
	})
	if _, exists := m.compacted[d.Of]; exists && d.Before.IsZero() && deleted < d.Limit {
		last = upTo
	}
	m.state.Compacted = max(m.state.Compacted, last)
	if last > 0 {
		m.compacted[d.Of] = max(m.compacted[d.Of], last)
		m.completeAfter[d.Of] = max(m.completeAfter[d.Of], last)
	}
	return deleted, 0, nil
}

// BeginEpoch begins a new epoch as a driver does, so many revisions later.
func (m *Model) BeginEpoch(epoch string, gap int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Epoch, m.state.Revision = epoch, m.state.Revision+gap
	m.state.Compacted = m.state.Revision
	for of := range m.compacted {
		m.compacted[of] = m.state.Compacted
	}
}

// Expired implements sqlstore.Driver.
func (m *Model) Expired(_ context.Context, after, now time.Time, limit int) ([]sqlstore.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var expired []sqlstore.Record
	for _, r := range m.current {
		if r.Expires.After(after) && !r.Expires.After(now) {
			r.Encoding, r.Value = "", nil
			expired = append(expired, r)
		}
	}
	slices.SortFunc(expired, func(a, b sqlstore.Record) int { return a.Expires.Compare(b.Expires) })
	return expired[:min(limit, len(expired))], nil
}

// Usage implements sqlstore.Driver.
func (m *Model) Usage(context.Context) (sqlstore.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	byResource := map[sqlstore.ResourceUsage]sqlstore.ResourceUsage{}
	for k, r := range m.current {
		of := sqlstore.ResourceUsage{Group: k.Group, Resource: k.Resource, Owner: k.Owner}
		u := cmp.Or(byResource[of], of)
		u.Objects++
		u.Bytes += int64(len(r.Value))
		byResource[of] = u
	}
	return sqlstore.Usage{Revision: m.state.Revision, Resources: slices.Collect(maps.Values(byResource))}, nil
}

// Size implements sqlstore.Driver: an empty database, and the values of the objects.
func (m *Model) Size(context.Context) (size int64, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size = 8192
	for _, r := range m.current {
		size += int64(len(r.Value))
	}
	return size, nil
}

// Used implements sqlstore.Driver.
func (m *Model) Used(ctx context.Context) (int64, error) { return m.Size(ctx) }

// LastBackup implements sqlstore.Driver.
func (m *Model) LastBackup(context.Context) (sqlstore.LastBackup, error) {
	return sqlstore.LastBackup{}, sqlstore.ErrNotFound
}

// Maintain implements sqlstore.Driver.
func (m *Model) Maintain(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Probe implements sqlstore.Exclusive.
func (m *Model) Probe(context.Context) error { return nil }

// Space implements sqlstore.Exclusive.
func (m *Model) Space() (sqlstore.Space, error) { return sqlstore.Space{}, nil }

// InReserve implements sqlstore.Exclusive.
func (m *Model) InReserve() bool { return false }

// Shrink implements sqlstore.Exclusive.
func (m *Model) Shrink(context.Context, int) (done bool, err error) { return true, nil }

// Close implements sqlstore.Driver.
func (m *Model) Close() error { return nil }
