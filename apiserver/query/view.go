package query

import (
	"context"
	"slices"
	"sort"
	"strings"

	"byre/watch"
)

// view is what a query sees of a table: the rows that its user may list, at one revision. It belongs to one
// query, and one goroutine uses it.
type view struct {
	*Table
	// name is the one that the statement uses.
	name   string
	ctx    context.Context
	budget *budget
	// rows are in the order of their keys. Invariant: the user may list each of them. read keeps
	// this: it leaves out the others before the engine sees any.
	rows []*watch.Entry
	// hashes have the numbers of the rows by the values of columns, for each column that a query has
	// compared. A row's number is its index in rows, and its rowid.
	hashes map[int]map[string][]int32
	// filled is true once rows are read.
	filled bool
}

// rowBytes and hashedBytes are about what a row takes in rows, and in a hash.
const (
	rowBytes    = 8
	hashedBytes = 96
)

// fill takes the rows of a snapshot in the namespaces that the user may list; nil means all.
func (v *view) fill(snapshot watch.Snapshot, namespaces []string) error {
	v.filled = true
	if namespaces == nil {
		if err := v.budget.take(snapshot.Len() * rowBytes); err != nil {
			return err
		}
		v.rows = slices.Grow(v.rows, snapshot.Len())
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		for e := range snapshot.All(namespace, nil) {
			v.rows = append(v.rows, e)
		}
	}
	return nil
}

// in returns where the rows of a namespace begin and end, or those of a name in it if named is true.
func (v *view) in(namespace, name string, named bool) (start, end int) {
	compare := func(e *watch.Entry) int {
		if c := strings.Compare(e.Namespace, namespace); c != 0 || !named {
			return c
		}
		return strings.Compare(e.Name, name)
	}
	start = sort.Search(len(v.rows), func(i int) bool { return compare(v.rows[i]) >= 0 })
	end = start + sort.Search(len(v.rows)-start, func(i int) bool { return compare(v.rows[start+i]) > 0 })
	return start, end
}

// withValue returns the numbers of the rows in which a column of texts has a value. The first call for a
// column makes the hash of all rows.
func (v *view) withValue(column int, value string) ([]int32, error) {
	if hash, ok := v.hashes[column]; ok {
		return hash[value], nil
	}
	reader := newReader(v)
	hash := map[string][]int32{}
	for i, e := range v.rows {
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
			hash[found] = append(hash[found], int32(i)) //nolint:gosec // fewer rows than that fit the memory
		}
	}
	if v.hashes == nil {
		v.hashes = map[int]map[string][]int32{}
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
