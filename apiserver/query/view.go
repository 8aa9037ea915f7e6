package query

import (
	"context"
	"slices"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// view is a table as the statement of one query names it. One goroutine uses it.
type view struct {
	*Table
	// name is the one that the statement uses.
	name string
	// edge is the edge over all tables that reads the table; empty if the statement or a view of the engine
	// names it.
	edge   string
	ctx    context.Context
	budget *budget
	past   *past
	cause  *cause
	// snapshot is what the watch cache has at the revision of the query, with all rows.
	snapshot watch.Snapshot
	// now is what the table shows where the statement names no moment. Both are set before the first
	// step of the statement.
	now *selection
	// then is what the table shows at the moments that the statement has named.
	then map[string]*selection
}

// selection is the rows of a table that the user of a query may list, at one revision.
//
// Invariant: the user may list each row that a method returns. The sources keep it.
type selection struct {
	*view
	source source
	// forbidden is why the user may list no row; empty if there may be some.
	forbidden string
	// rows are all rows, once a scan has read them.
	rows []*watch.Entry
	// hashes have the rows by the values of columns, for each column that a scan has compared.
	hashes map[hashed]map[string][]*watch.Entry
}

// hashed is what a hash is of: a column of the rows of a namespace, or of all if that is empty.
type hashed struct {
	column    int
	namespace string
}

// source reads the rows that the user of a query may list, at one revision, in the order of their keys.
type source interface {
	all() ([]*watch.Entry, error)
	in(namespace string) ([]*watch.Entry, error)
	// get returns nil if there is no row with a key, or none that the user may list.
	get(namespace, name string) (*watch.Entry, error)
}

// cached is the source of the last revision: the watch cache.
type cached struct {
	watch.Snapshot
	// namespaces are those in which the user may list, in order; nil means all.
	namespaces []string
}

func (c *cached) all() (rows []*watch.Entry, _ error) {
	if c.namespaces == nil {
		return slices.AppendSeq(make([]*watch.Entry, 0, c.Len()), c.All("", nil)), nil
	}
	for _, namespace := range c.namespaces {
		rows = slices.AppendSeq(rows, c.All(namespace, nil))
	}
	return rows, nil
}

func (c *cached) in(namespace string) ([]*watch.Entry, error) {
	if !c.mayList(namespace) {
		return nil, nil
	}
	return slices.Collect(c.All(namespace, nil)), nil
}

func (c *cached) get(namespace, name string) (*watch.Entry, error) {
	if !c.mayList(namespace) {
		return nil, nil
	}
	return c.Get(namespace, name), nil
}

func (c *cached) mayList(namespace string) bool {
	_, found := slices.BinarySearch(c.namespaces, namespace)
	return found || c.namespaces == nil
}

// rowBytes and hashedBytes are about what a row takes in rows, and in a hash.
const (
	rowBytes    = 8
	hashedBytes = 96
)

// all returns all rows, in the order of their keys.
func (s *selection) all() (rows []*watch.Entry, err error) {
	if s.rows == nil {
		if s.rows, err = s.source.all(); err != nil {
			return nil, err
		}
		err = s.budget.take(len(s.rows) * rowBytes)
	}
	return s.rows, err
}

// in returns the rows of a namespace, and all rows if it is empty: those of a resource without namespaces.
func (s *selection) in(namespace string) ([]*watch.Entry, error) {
	if namespace == "" {
		return s.all()
	}
	return s.source.in(namespace)
}

// withKey returns the row with a key.
func (s *selection) withKey(namespace, name string) ([]*watch.Entry, error) {
	if e, err := s.source.get(namespace, name); e != nil || err != nil {
		return []*watch.Entry{e}, err
	}
	return nil, nil
}

// withValue returns the rows of a namespace, or of all if it is empty, in which a column of texts has a value. The first
// call for a column and a namespace makes the hash of these rows.
func (s *selection) withValue(column int, namespace, value string) ([]*watch.Entry, error) {
	of := hashed{column, namespace}
	if hash, ok := s.hashes[of]; ok {
		return hash[value], nil
	}
	rows, err := s.in(namespace)
	if len(rows) == 0 || err != nil {
		return nil, err // not kept: a statement may ask for any number of texts
	}
	reader, hash := newReader(s.view), map[string][]*watch.Entry{}
	reader.isPast = s.isPast()
	for i, e := range rows {
		if i%interval == 0 && s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		found, err := reader.value(e, column)
		if err != nil {
			return nil, err
		}
		if found, ok := found.(string); ok {
			if err := s.budget.take(hashedBytes + len(found)); err != nil {
				return nil, err
			}
			hash[found] = append(hash[found], e)
		}
	}
	if s.hashes == nil {
		s.hashes = map[hashed]map[string][]*watch.Entry{}
	}
	s.hashes[of] = hash
	return hash[value], nil
}

// isPast reports whether the rows are those of an earlier moment.
func (s *selection) isPast() bool {
	_, ok := s.source.(*stored)
	return ok
}

// interval is after how many rows a loop looks whether the query has ended.
const interval = 1024

// reader reads the values of rows. It finds the values of all columns that it was ever asked for in
// one pass over the JSON of a row.
type reader struct {
	*view
	extractor transcode.Extractor
	wanted    []bool   // by column
	values    [][]byte // of row, by column
	row       *watch.Entry
	// isPast is true for states of an earlier moment. A change of it also resets row.
	isPast bool
}

func newReader(v *view) *reader {
	return &reader{view: v, wanted: make([]bool, len(v.Columns)), values: make([][]byte, len(v.Columns))}
}

// value returns the value of a column: nil, or of one of the types that the methods Value of
// columns return.
func (r *reader) value(e *watch.Entry, column int) (any, error) {
	switch column {
	case NamespaceColumn:
		return e.Namespace, nil
	case NameColumn:
		return e.Name, nil
	case RevisionColumn:
		return e.Revision, nil
	case MomentColumn:
		return nil, nil
	}
	c := &r.Columns[column]
	if r.row == e && r.wanted[column] {
		return c.Value(r.values[column]), nil
	}
	body, whole, err := r.read(e, r.isPast)
	if err != nil {
		return nil, unreadable(r.ctx, err)
	}
	if c.Path == nil {
		return whole(), nil
	}
	if !r.wanted[column] {
		r.wanted[column] = true
		r.extractor.Add(column, c.Path)
	}
	clear(r.values)
	r.extractor.Find(body, r.values)
	r.row = e
	return c.Value(r.values[column]), nil
}

// read returns the JSON of a row, and what makes that of the whole object with its revision. Past states of custom resources,
// and all of those whose definition is gone, are read as they were stored, without the definition of today.
func (v *view) read(e *watch.Entry, isPast bool) (body []byte, whole func() RawJSON, err error) {
	var encoded encoding.Encoded
	if isPast && v.Of().Owner == sqlstore.Custom {
		if body, err = v.past.log.Open(v.ctx, e.Key, e.Value()); err != nil {
			return nil, nil, err
		}
		encoded = encoding.EncodedStored(body, e.Revision)
	} else if encoded, err = v.Store.Encode(v.ctx, e, v.Store.Stored()); err != nil {
		return nil, nil, err
	}
	return encoded.Body(), func() RawJSON { return encoded.AppendJSON(make([]byte, 0, encoded.Len()), true) }, nil
}
