package query

import (
	"context"
	"slices"

	"byre/watch"
)

// view is what a query sees of a table: the rows that its user may list, at one revision. It belongs to one
// query, and one goroutine uses it.
//
// Invariant: the user may list each row that a method returns. Each method keeps this: it reads only
// the namespaces that the authorizer has allowed.
type view struct {
	*Table
	// name is the one that the statement uses.
	name   string
	ctx    context.Context
	budget *budget
	// snapshot and namespaces are set before the first step of the statement. namespaces are in
	// order; nil means all.
	snapshot   watch.Snapshot
	namespaces []string
	// rows are all rows, once a scan has read them.
	rows []*watch.Entry
	// hashes have the rows by the values of columns, for each column that a scan has compared.
	hashes map[int]map[string][]*watch.Entry
}

// rowBytes and hashedBytes are about what a row takes in rows, and in a hash.
const (
	rowBytes    = 8
	hashedBytes = 96
)

// all returns all rows, in the order of their keys.
func (v *view) all() ([]*watch.Entry, error) {
	if v.rows != nil {
		return v.rows, nil
	}
	namespaces := v.namespaces
	if namespaces == nil {
		namespaces = []string{""}
		v.rows = make([]*watch.Entry, 0, v.snapshot.Len())
	}
	for _, namespace := range namespaces {
		v.rows = slices.AppendSeq(v.rows, v.snapshot.All(namespace, nil))
	}
	return v.rows, v.budget.take(len(v.rows) * rowBytes)
}

// in returns the rows of a namespace, and all rows if it is empty: those of a resource without namespaces.
func (v *view) in(namespace string) ([]*watch.Entry, error) {
	switch {
	case namespace == "":
		return v.all()
	case !v.mayList(namespace):
		return nil, nil
	}
	return slices.Collect(v.snapshot.All(namespace, nil)), nil
}

// withKey returns the row with a key.
func (v *view) withKey(namespace, name string) []*watch.Entry {
	if e := v.snapshot.Get(namespace, name); e != nil && v.mayList(namespace) {
		return []*watch.Entry{e}
	}
	return nil
}

func (v *view) mayList(namespace string) bool {
	_, found := slices.BinarySearch(v.namespaces, namespace)
	return found || v.namespaces == nil
}

// withValue returns the rows in which a column of texts has a value. The first call for a column makes
// the hash of all rows.
func (v *view) withValue(column int, value string) ([]*watch.Entry, error) {
	if hash, ok := v.hashes[column]; ok {
		return hash[value], nil
	}
	rows, err := v.all()
	if err != nil {
		return nil, err
	}
	reader, hash := newReader(v), map[string][]*watch.Entry{}
	for i, e := range rows {
		if i%interval == 0 && v.ctx.Err() != nil {
			return nil, v.ctx.Err()
		}
		found, err := reader.value(e, column)
		if err != nil {
			return nil, err
		}
		if found, ok := found.(string); ok {
			if err := v.budget.take(hashedBytes + len(found)); err != nil {
				return nil, err
			}
			hash[found] = append(hash[found], e)
		}
	}
	if v.hashes == nil {
		v.hashes = map[int]map[string][]*watch.Entry{}
	}
	v.hashes[column] = hash
	return hash[value], nil
}

// interval is after how many rows a loop looks whether the query has ended.
const interval = 1024

// reader reads the values of rows. It finds the values of all columns that it was ever asked for in
// one pass over the JSON of a row.
type reader struct {
	*view
	extractor extractor
	wanted    []bool   // by column
	values    [][]byte // of row, by column
	row       *watch.Entry
}

func newReader(v *view) *reader {
	return &reader{view: v, wanted: make([]bool, len(v.Columns)), values: make([][]byte, len(v.Columns))}
}

// value returns the value of a column: nil, or of one of the types that the functions of Column.make
// return.
func (r *reader) value(e *watch.Entry, column int) (any, error) {
	switch column {
	case namespaceColumn:
		return e.Namespace, nil
	case nameColumn:
		return e.Name, nil
	case revisionColumn:
		return e.Revision, nil
	}
	c := &r.Columns[column]
	if r.row == e && r.wanted[column] {
		return r.make(c, r.values[column]), nil
	}
	encoded, err := r.Store.Encode(r.ctx, e, r.Store.Stored())
	if err != nil {
		// A value that can't be decrypted or decoded is NULL, as any that does not fit.
		return nil, r.ctx.Err()
	}
	if c.Path == nil {
		return rawJSON(encoded.AppendJSON(make([]byte, 0, encoded.Len()), true)), nil
	}
	if !r.wanted[column] {
		r.wanted[column] = true
		r.extractor.add(column, c.Path)
	}
	clear(r.values)
	r.extractor.find(encoded.Body(), r.values)
	r.row = e
	return r.make(c, r.values[column]), nil
}

func (r *reader) make(c *Column, data []byte) any {
	if data == nil || string(data) == "null" {
		return nil
	}
	return c.make(data)
}
