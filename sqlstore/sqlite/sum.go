package sqlite

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"byre/sqlstore"
)

// SQLite has no checksums of its pages, and so does not notice when a disk changes a byte
// inside a text. Each row therefore has CRC-32C checksums of its columns. Every read that
// returns a value compares them. A row whose checksums are NULL passes: who changes a row by
// hand sets them so.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBuffer is large enough for all columns but the value of nearly every row, so that summing
// them needs no allocation.
type sumBuffer [512]byte

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendKey(b []byte, k sqlstore.Key) []byte {
	for _, text := range [...]string{k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name} {
		b = appendText(b, text)
	}
	return b
}

// recordSum returns the value of the column record_sum: the checksum of a record. expires is
// the text of the column expires; empty for NULL.
func recordSum(k sqlstore.Key, uid string, created, revision int64, form, expires, value string) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = appendText(b, uid)
	b = binary.AppendVarint(b, created)
	b = binary.AppendVarint(b, revision)
	b = appendText(b, form)
	b = appendText(b, expires)
	return int64(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, sqlstore.Bytes(value)))
}

// changeSum returns the value of the column change_sum: the checksum of the columns of a change
// that are not part of the replaced record.
func changeSum(k sqlstore.Key, revision int64, stamp string, op sqlstore.Op, a sqlstore.Author, replaces int64) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = binary.AppendVarint(b, revision)
	for _, text := range [...]string{stamp, string(op), a.Verb, a.Subresource, a.Manager, a.User, a.RealUser, a.AuditID} {
		b = appendText(b, text)
	}
	return int64(crc32.Checksum(binary.AppendVarint(b, replaces), castagnoli))
}

// writtenSum returns the value of the column change_sum of the table current_objects, which has
// only some columns of the last change, and the generation.
func writtenSum(k sqlstore.Key, revision int64, stamp string, a sqlstore.Author, generation int64) int64 {
	a.AuditID = ""
	return changeSum(k, revision, stamp, "", a, generation)
}

// damagedError means that a row does not have its checksum.
type damagedError struct {
	table    string
	revision int64
	key      sqlstore.Key
	rowid    int64 // set by the scans of whole tables
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("the row of %s with revision %d (%s) does not have its checksum", e.table, e.revision, e.key.Display())
}

// compare returns a *damagedError if the checksum of a row differs from the stored one. A row
// without a stored checksum passes.
func compare(stored sql.NullInt64, sum func() int64, table string, revision int64, k sqlstore.Key) error {
	if !stored.Valid || stored.Int64 == sum() {
		return nil
	}
	return &damagedError{table: table, revision: revision, key: k}
}

// at returns the error of a row, with its rowid if it does not have its checksum.
func at(rowid int64, err error) error {
	var damaged *damagedError
	if errors.As(err, &damaged) {
		damaged.rowid = rowid
	}
	return err
}
