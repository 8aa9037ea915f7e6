// Package schedule makes backups of a database at the times of a schedule, and deletes old ones.
//
// # What is promised
//
//   - A backup is due when the schedule has come since the last one that the database records, whoever
//     made that, and when that record is of a clock that was set back since. What came while no process
//     ran is made up for once, at the start of the next one.
//   - Of several processes on one database one makes each backup, under a lock of the database.
//   - A backup that fails is tried again every RetryInterval. The first failure is logged, and the end
//     of the failures.
//   - Old backups are deleted after a new one is complete, and only those of the same cluster
//     (sqlstore.Header.IsSameCluster) that a schedule has made: their names have the form of Name.
//   - What a killed process has left of a backup in a directory is deleted before the next backup, once
//     nobody has written it for longer than a backup may take.
//
// Run ends when its context does.
package backup
