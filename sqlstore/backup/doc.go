// Package backup writes a snapshot of a store to a file, reads it back, derives snapshots from
// others, and makes backups at the times of a schedule.
//
// # The format
//
// A backup is a zstd stream (RFC 8878) of lines of JSON (RFC 8259), in UTF-8. Common tools
// can read it:
//
//	zstd -dc FILE | head -1                       # its version, revision and time
//	zstd -dc FILE | jq -r '.object|select(.resource=="configmaps").value'
//	zstd -dc FILE | head -n -1 | sha256sum        # equals the sum in the last line
//
// Each line is an object with one member, whose name is the kind of the line:
//
//   - "byre": the first line. version is 4, program the name and version of the program
//     that wrote the file; revision, compacted, completeAfter, epoch, cluster, time, objects (their
//     number) and history (Retained) are those of sqlstore.Header.
//   - "object": a row of the view objects (sqlstore.ObjectRow), in key order. value is
//     the stored text as a string, so that every byte of it is kept.
//   - "change": a row of the view changes (sqlstore.ChangeRow), in the order of
//     revisions. value is the value that the change replaced; a create has none.
//   - "end": the last line. It has the numbers of objects and changes, and the SHA-256 of
//     all bytes before this line.
//
// Version 3 has no completeAfter: compacted is in its place. Version 2 has form in place of encoding, too. Version 1
// lacks history, generation, subresource, manager and realUser as well.
//
// Times are RFC 3339 in UTC, with microseconds. A member that is empty is left out. A
// release that adds a member, or changes the meaning of one, writes a new version of the
// format. Every release reads all older versions and refuses newer ones.
//
// # What is promised of a file
//
// File.Verify fails with sqlstore.ErrBroken unless the file is complete and every byte is
// what was written. A reader has one line in memory at a time.
//
// # Snapshots
//
// At returns the store as it was at an earlier revision, Restored the store with its revision
// moved forward, and DigestOf a digest of all rows, by which stores are compared. All of them
// stream rows. They need little memory, except for At, which holds the author of each object that
// was written within the history.
//
// # Schedules
//
// A Schedule makes backups of a database, and deletes old ones.
//
//   - A backup is due when the schedule has come since the last one that the database records,
//     whoever made that, and when that record is of a clock that was set back since. What came
//     while no process ran is made up for once, at the start of the next one.
//   - Of several processes on one database one makes each backup, under a lock of the database.
//   - A backup that fails is tried again every RetryInterval. The first failure is logged, and the
//     end of the failures.
//   - Old backups are deleted after a new one is complete, and only those of the same cluster
//     (sqlstore.Header.IsSameCluster) that a schedule has made: their names have the form of Name.
//   - What a killed process has left of a backup in a directory is deleted before the next backup,
//     once nobody has written it for longer than a backup may take.
//
// # What the caller owes
//
// The caller closes the file that it gave to Open, after the last use of the File and its
// Snapshots. A File is not safe for concurrent use. Schedule.Run ends when its context does.
package backup
