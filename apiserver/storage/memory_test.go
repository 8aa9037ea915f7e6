package storage

import (
	"context"
	"sort"
	"sync"
	"time"

	"byre/sqlstore"
)

type memory struct {
	mu        sync.Mutex
	rows      map[sqlstore.Key]sqlstore.Record
	log       []sqlstore.Change
	compacted int64
}

func (m *memory) rev() int64 { return int64(len(m.log)) }
func (m *memory) Commit(_ context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []sqlstore.Outcome
	for _, w := range batch {
		old, ok := m.rows[w.Key]
		switch {
		case w.Op == sqlstore.Create && ok:
			out = append(out, sqlstore.Outcome{Err: sqlstore.ErrExists})
			continue
		case w.Op != sqlstore.Create && !ok:
			out = append(out, sqlstore.Outcome{Err: sqlstore.ErrNotFound})
			continue
		case w.Op != sqlstore.Create && old.Revision != w.Replaces:
			out = append(out, sqlstore.Outcome{Err: &sqlstore.ConflictError{Current: old.Revision}})
			continue
		}
		rev := m.rev() + 1
		n := sqlstore.Record{Key: w.Key, UID: w.UID, Created: rev, Revision: rev, Form: w.Form, Expires: w.Expires, Value: w.Value}
		c := sqlstore.Change{Op: w.Op, Revision: rev, Time: time.Now(), Author: w.Author, New: n}
		if ok {
			o := old
			c.Old = &o
			n.Created = old.Created
			c.New.Created = old.Created
		}
		if w.Op == sqlstore.Delete {
			c.New.Value = nil
			delete(m.rows, w.Key)
		} else {
			m.rows[w.Key] = n
		}
		m.log = append(m.log, c)
		out = append(out, sqlstore.Outcome{Revision: rev, Created: n.Created})
	}
	return out, nil
}
func (m *memory) Get(_ context.Context, k sqlstore.Key) (sqlstore.Record, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.rows[k]
	if !ok {
		return r, m.rev(), sqlstore.ErrNotFound
	}
	return r, m.rev(), nil
}
func (m *memory) List(_ context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.Listed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := q.At
	if at == 0 {
		at = m.rev()
	}
	if at > m.rev() {
		return sqlstore.Listed{}, sqlstore.ErrFuture
	}
	if at < m.compacted {
		return sqlstore.Listed{}, sqlstore.ErrCompacted
	}
	rows := map[sqlstore.Key]sqlstore.Record{}
	for k, v := range m.rows {
		rows[k] = v
	}
	for i := len(m.log) - 1; i >= int(at); i-- {
		c := m.log[i]
		if c.Old == nil {
			delete(rows, c.New.Key)
		} else {
			rows[c.New.Key] = *c.Old
		}
	}
	var list []sqlstore.Record
	for k, v := range rows {
		if k.Group != q.Group || k.Resource != q.Resource || q.Namespace != "" && k.Namespace != q.Namespace || q.Name != "" && q.Name != k.Name {
			continue
		}
		if a := q.After; a != nil && (k.Namespace < a.Namespace || k.Namespace == a.Namespace && k.Name <= a.Name) {
			continue
		}
		list = append(list, v)
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
	})
	res := sqlstore.Listed{Revision: at}
	if q.Limit > 0 && len(list) > q.Limit {
		res.More, res.Remaining = true, int64(len(list)-q.Limit)
		list = list[:q.Limit]
	}
	for _, r := range list {
		if err := yield(r); err != nil {
			return res, err
		}
	}
	return res, nil
}
func (m *memory) Changes(_ context.Context, after int64, limit int) ([]sqlstore.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after < m.compacted {
		return nil, sqlstore.ErrCompacted
	}
	if after >= m.rev() {
		return nil, nil
	}
	l := m.log[after:]
	if len(l) > limit {
		l = l[:limit]
	}
	return append([]sqlstore.Change(nil), l...), nil
}
func (m *memory) State(context.Context) (sqlstore.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sqlstore.State{Revision: m.rev(), Compacted: m.compacted, Epoch: "1"}, nil
}
func (m *memory) Compact(_ context.Context, upTo int64, _ int) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = max(m.compacted, min(upTo, m.rev()))
	return true, nil
}
func (m *memory) Expired(_ context.Context, now time.Time, limit int) ([]sqlstore.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []sqlstore.Record
	for _, r := range m.rows {
		if !r.Expires.IsZero() && r.Expires.Before(now) {
			out = append(out, r)
		}
	}
	return out, nil
}
func (m *memory) Close() error { return nil }
