package sqlite

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"byre/sqlstore"
)

// SQLite keeps no checksums of its pages, so that a byte which the disk changes inside a
// text is not noticed by the engine. Each row therefore has CRC-32C sums of its columns,
// which every read that returns a value compares. A row of an older release has none.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBuffer holds all columns but the value of nearly every row without an allocation.
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

// recordSum is the column record_sum: the sum of a record. expires is the column's text;
// empty for NULL.
func recordSum(k sqlstore.Key, uid string, created, revision int64, form, expires, value string) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = appendText(b, uid)
	b = binary.AppendVarint(b, created)
	b = binary.AppendVarint(b, revision)
	b = appendText(b, form)
	b = appendText(b, expires)
	return int64(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, bytes(value)))
}

// changeSum is the column change_sum: the sum of what a change is apart from its record.
func changeSum(k sqlstore.Key, revision int64, stamp string, op sqlstore.Op, a sqlstore.Author, replaces int64) int64 {
	var buffer sumBuffer
	b := appendKey(buffer[:0], k)
	b = binary.AppendVarint(b, revision)
	for _, text := range [...]string{stamp, string(op), a.Verb, a.User, a.AuditID} {
		b = appendText(b, text)
	}
	return int64(crc32.Checksum(binary.AppendVarint(b, replaces), castagnoli))
}

// writtenSum is the column change_sum of objects, which say less of their last change.
func writtenSum(k sqlstore.Key, revision int64, stamp, verb, user string) int64 {
	return changeSum(k, revision, stamp, "", sqlstore.Author{Verb: verb, User: user}, 0)
}

// damagedError means that a row does not have its sum.
type damagedError struct {
	table    string
	revision int64
	key      sqlstore.Key
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("the row of %s with revision %d (%s) does not have its checksum", e.table, e.revision, e.key.Display())
}

// compare returns a *damagedError where a row has another sum than the stored one.
func compare(stored sql.NullInt64, sum int64, table string, revision int64, k sqlstore.Key) error {
	if !stored.Valid || stored.Int64 == sum {
		return nil
	}
	return &damagedError{table: table, revision: revision, key: k}
}
