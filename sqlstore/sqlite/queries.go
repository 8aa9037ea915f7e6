package sqlite

// The statements of the writer have unnumbered parameters, which modernc.org/sqlite binds
// fastest.

const countVersionTable = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'byre_schema'`

const (
	// lastRevision is the last revision of the store: that of the newest change, or
	// store.revision if a compaction has deleted that change. It takes one search of a
	// primary key.
	lastRevision = `max(s.revision, coalesce((SELECT max(revision) FROM changes), 0))`

	selectReserved = `SELECT reserved FROM store WHERE id = 1`

	selectState = `SELECT ` + lastRevision + `, s.compacted, s.epoch FROM store s WHERE s.id = 1`
)

// Integrity checks. Those of the engine return up to a hundred problems.
const (
	integrityCheck = `SELECT integrity_check FROM pragma_integrity_check`
	quickCheck     = `SELECT quick_check FROM pragma_quick_check`
	selectSchema   = `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`
	// selectEnds reads the counters and the first revision of the undo log after the
	// compacted one.
	selectEnds = `
SELECT ` + lastRevision + `, s.compacted, (SELECT min(revision) FROM changes WHERE revision > s.compacted)
FROM store s WHERE s.id = 1`
)

const (
	insertObject = `
INSERT INTO objects (revision, "group", resource, owner, namespace, name, uid, created_revision, time, verb, who, form, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	insertCreate = `
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, change_sum)
VALUES (?, ?, 'create', ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)`

	// insertReplaced is the compare of the compare-and-swap. It finds the record by its
	// key, and copies the replaced value inside the database. It returns no row if the
	// record is not at the expected revision.
	insertReplaced = `
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
SELECT ?, ?, ?, ?, ?, ?, "group", resource, owner, namespace, name, uid, revision, created_revision, form, expires, value, record_sum, ?
FROM objects
WHERE "group" = ? AND resource = ? AND owner = ? AND namespace = ? AND name = ? AND revision = ?
RETURNING created_revision, uid, octet_length(value)`

	// updateObject does not move the row, because the rowid is the create revision, which
	// does not change.
	updateObject = `
UPDATE objects SET revision = ?, uid = ?, time = ?, verb = ?, who = ?, form = ?, expires = ?, value = ?, record_sum = ?, change_sum = ?
WHERE created_revision = ?`

	deleteObject = `DELETE FROM objects WHERE created_revision = ?`

	selectRevision = `SELECT revision FROM objects WHERE "group" = ? AND resource = ? AND owner = ? AND namespace = ? AND name = ?`

	// reserve stores the revision up to which volatile changes in memory may be given
	// revisions. skip is for the start after a crash, which may have lost such changes: it
	// moves the revision past all of them, marks all before as compacted, and begins a new
	// epoch.
	reserve = `UPDATE store SET reserved = ? WHERE id = 1`
	skip    = `UPDATE store SET revision = reserved, compacted = reserved, reserved = 0, epoch = lower(hex(randomblob(16))) WHERE id = 1`

	// touchStore changes a row and its page; untouchStore undoes the change.
	touchStore   = `UPDATE store SET revision = revision + 1 WHERE id = 1`
	untouchStore = `UPDATE store SET revision = revision - 1 WHERE id = 1`
)

// The archive. ?1 and ?2 bound the revisions of the changes that are copied. The plus signs
// keep SQLite from using the index by key, in which it would read all changes of the resource.
const (
	selectResources = `SELECT DISTINCT "group", resource FROM changes WHERE revision > ?1 AND revision <= ?2`

	insertArchive = `
INSERT OR IGNORE INTO archive (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
                               uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
       uid, replaces, created_revision, form, expires, value, record_sum, change_sum
FROM changes WHERE revision > ?1 AND revision <= ?2 AND +"group" = ?3 AND +resource = ?4`

	selectNextArchived = `
SELECT "group", resource FROM archive WHERE ("group", resource) > (?1, ?2) ORDER BY "group", resource LIMIT 1`

	deleteArchived = `
DELETE FROM archive WHERE revision IN (
    SELECT revision FROM archive WHERE "group" = ?1 AND resource = ?2 AND time < ?3 ORDER BY time LIMIT ?4)`
)

const (
	deleteChanges = `DELETE FROM changes WHERE revision <= ?`
	// selectOldest may return a revision before State.Compacted, because skip compacts
	// changes without deleting them.
	selectOldest = `SELECT coalesce(min(revision), 0) FROM changes`
	// updateCompacted also raises store.revision, so that the last revision does not
	// depend on the newest change, which deleteChanges may have deleted.
	updateCompacted = `UPDATE store SET compacted = ?1, revision = max(revision, ?1) WHERE id = 1`
	// selectPages counts the pages that are free, and all pages.
	selectPages = `SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count`
	// vacuum returns free pages to the file system, one with each row that is read of its
	// result.
	vacuum = `PRAGMA incremental_vacuum`
)

const (
	selectUsed = `
SELECT (pages.page_count - free.freelist_count) * size.page_size
FROM pragma_page_count AS pages, pragma_freelist_count AS free, pragma_page_size AS size`

	// selectUsage scans the table in the order of the rowid, and reads the lengths of
	// values from the headers of the rows. Without the materialized CTE SQLite would sort
	// the values themselves.
	selectUsage = `
WITH o AS MATERIALIZED (SELECT "group", resource, owner, octet_length(value) AS bytes FROM objects NOT INDEXED)
SELECT "group", resource, owner, count(*), sum(bytes) FROM o GROUP BY "group", resource, owner`

	// selectObject also returns a row if the object does not exist: then only the
	// revision of the snapshot is set.
	selectObject = `
SELECT ` + lastRevision + `, o.uid, o.created_revision, o.revision, o.form, o.expires, o.value, o.record_sum
FROM store s LEFT JOIN objects o
  ON o."group" = ?1 AND o.resource = ?2 AND o.owner = ?3 AND o.namespace = ?4 AND o.name = ?5
WHERE s.id = 1`

	selectExpired = `
SELECT "group", resource, owner, namespace, name, uid, created_revision, revision, expires
FROM objects WHERE expires IS NOT NULL AND expires <= ?1 ORDER BY expires LIMIT ?2`

	// selectChanges finds the value that each change wrote in the next change of the same
	// key, which has replaced it, or else in the object, which still has it.
	selectChanges = `
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.owner, c.namespace, c.name, c.uid, c.replaces, c.created_revision, c.form, c.expires, c.value, c.record_sum, c.change_sum,
       coalesce(n.uid, o.uid), coalesce(n.form, o.form), CASE WHEN n.revision IS NULL THEN o.expires ELSE n.expires END,
       coalesce(n.value, o.value), CASE WHEN n.revision IS NULL THEN o.record_sum ELSE n.record_sum END
FROM changes c
LEFT JOIN changes n ON n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
  AND n.namespace = c.namespace AND n.name = c.name AND n.replaces = c.revision
LEFT JOIN objects o ON o.created_revision = c.created_revision AND o.revision = c.revision
WHERE c.revision > ?1 ORDER BY c.revision LIMIT ?2`
)

// Lists. The arguments are ?1 group, ?2 resource, ?3 owner, ?4 namespace, ?5 the name of the
// position after which the list begins, ?6 the only name to list (empty for all), ?7
// revision, ?8 limit (-1 for none), ?9 whether to return values.
//
// Each statement is a constant expression that joins the text of a range (a resource, a
// namespace, one object) and of a time. The time is now, or a revision: then the list has the
// objects that were last written up to that revision, and the undo rows of objects that were
// replaced or deleted after it.
const (
	inResource  = `"group" = ?1 AND resource = ?2 AND owner = ?3 AND (namespace, name) > (?4, ?5) AND (?6 = '' OR name = ?6)`
	inNamespace = `"group" = ?1 AND resource = ?2 AND owner = ?3 AND namespace = ?4 AND name > ?5 AND (?6 = '' OR name = ?6)`
	inObject    = `"group" = ?1 AND resource = ?2 AND owner = ?3 AND namespace = ?4 AND name = ?6 AND name > ?5`

	columnsNow = `SELECT namespace, name, uid, created_revision, revision, form, expires, CASE WHEN ?9 THEN value END AS value, CASE WHEN ?9 THEN record_sum END AS record_sum FROM objects WHERE `
	columnsOld = `SELECT namespace, name, uid, created_revision, replaces, form, expires, CASE WHEN ?9 THEN value END, CASE WHEN ?9 THEN record_sum END FROM changes WHERE `

	stillThen = ` AND revision <= ?7`
	gone      = ` AND replaces BETWEEN 1 AND ?7 AND revision > ?7`
	inOrder   = ` ORDER BY namespace, name LIMIT ?8`

	listResource  = columnsNow + inResource + inOrder
	listNamespace = columnsNow + inNamespace + inOrder
	listObject    = columnsNow + inObject + inOrder

	listResourceAt  = columnsNow + inResource + stillThen + ` UNION ALL ` + columnsOld + inResource + gone + inOrder
	listNamespaceAt = columnsNow + inNamespace + stillThen + ` UNION ALL ` + columnsOld + inNamespace + gone + inOrder
	listObjectAt    = columnsNow + inObject + stillThen + ` UNION ALL ` + columnsOld + inObject + gone + inOrder

	countNow = `SELECT count(*) FROM objects WHERE `
	countOld = `SELECT count(*) FROM changes WHERE `

	countResource  = countNow + inResource
	countNamespace = countNow + inNamespace
	// An object that exists now existed at a revision if its create revision, the rowid,
	// is not later: the index alone counts those. The undo rows add the objects that
	// existed at the revision and were deleted later.
	createdThen = ` AND created_revision <= ?7`
	deleted     = gone + ` AND NOT EXISTS (SELECT 1 FROM objects o WHERE o.created_revision = changes.created_revision)`

	countResourceAt  = `SELECT (` + countNow + inResource + createdThen + `) + (` + countOld + inResource + deleted + `)`
	countNamespaceAt = `SELECT (` + countNow + inNamespace + createdThen + `) + (` + countOld + inNamespace + deleted + `)`
)

// A whole store: ReadSnapshot and Load.
const (
	selectHeader = `
SELECT k.revision, k.compacted, k.epoch, (SELECT count(*) FROM objects), s.reserved
FROM counters k, store s WHERE k.id = 1 AND s.id = 1`

	selectObjects = `
SELECT "group", resource, owner, namespace, name, uid, created_revision, revision, time, verb, who, form, expires, value, record_sum, change_sum
FROM objects ORDER BY "group", resource, owner, namespace, name`

	// selectUndo reads the rows of archive up to the compacted revision, and then those of
	// changes.
	selectUndo = `
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum
FROM archive WHERE revision <= (SELECT compacted FROM counters)
UNION ALL
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum
FROM changes WHERE revision > (SELECT compacted FROM counters)
ORDER BY revision`

	// countData is 0 in a store in which no change was ever made.
	countData = `SELECT (SELECT count(*) FROM objects) + (SELECT count(*) FROM changes) + (SELECT revision FROM counters)`

	insertUndo = `
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	insertArchived = `
INSERT INTO archive (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	setCounters = `UPDATE store SET revision = ?, compacted = ?, epoch = ? WHERE id = 1`

	// selectIndexes returns, for each index that a CREATE INDEX has made, the statement
	// that drops it and the one that makes it.
	selectIndexes = `
SELECT 'DROP INDEX "' || replace(name, '"', '""') || '"', sql FROM sqlite_schema
WHERE type = 'index' AND tbl_name IN ('objects', 'changes', 'archive') AND sql IS NOT NULL ORDER BY name`
)
