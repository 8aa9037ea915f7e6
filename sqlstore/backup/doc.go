// Package backup writes a snapshot of a store to a file, and reads it back.
//
// # The format
//
// A zstd stream (RFC 8878) of lines of JSON (RFC 8259), in UTF-8. It is read and written
// from its beginning to its end, and with common tools:
//
//	zstd -dc FILE | head -1                       # what it is, and of when
//	zstd -dc FILE | jq -r '.object|select(.resource=="configmaps").value'
//	zstd -dc FILE | head -n -1 | sha256sum        # what the last line says
//
// Each line is an object with one member, which says what the line is:
//
//   - "byre": the first line. version is 1, program the byre that wrote it; revision,
//     compacted, epoch, time and objects (their number) are those of sqlstore.Header.
//   - "object": a row of the table objects (sqlstore.ObjectRow), in key order. value is
//     the stored text as a string, so that every byte of it is kept.
//   - "change": a row of the table changes (sqlstore.ChangeRow), in the order of
//     revisions. value is what the change replaced; a create has none.
//   - "end": the last line: the numbers of objects and changes, and the SHA-256 of all
//     bytes before this line.
//
// Times are RFC 3339 in UTC, with microseconds. A member that is empty is left out. A
// reader refuses a version that it does not know; whatever changes the meaning of what is
// there, or adds a member, makes a new version, and every byre reads all older versions.
//
// # What is promised
//
// File.Verify fails with ErrBroken unless the file is complete and every byte is what
// was written. Reading holds one line in memory at a time.
package backup
