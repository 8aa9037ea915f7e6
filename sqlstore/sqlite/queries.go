package sqlite

// The statements of the package. Parameters of the writer's are bare question
// marks, which this driver binds fastest.

const countVersionTable = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'byre_schema'`

const (
	// lastRevision is the store's: that of the newest change, unless a compaction has
	// deleted that one. It is one search of a primary key.
	lastRevision = `max(s.revision, coalesce((SELECT max(revision) FROM changes), 0))`

	selectReserved = `SELECT reserved FROM store WHERE id = 1`

	selectState = `SELECT ` + lastRevision + `, s.compacted, s.epoch FROM store s WHERE s.id = 1`
)

// Integrity. The check of the engine names up to a hundred problems.
const (
	integrityCheck = `SELECT integrity_check FROM pragma_integrity_check`
	quickCheck     = `SELECT quick_check FROM pragma_quick_check`
	selectSchema   = `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`
	// selectEnds reads the ends of the undo log.
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

	// updateObject leaves the row where it is: the revision that created the object is
	// the rowid.
	updateObject = `
UPDATE objects SET revision = ?, uid = ?, time = ?, verb = ?, who = ?, form = ?, expires = ?, value = ?, record_sum = ?, change_sum = ?
WHERE created_revision = ?`

	deleteObject = `DELETE FROM objects WHERE created_revision = ?`

	selectRevision = `SELECT revision FROM objects WHERE "group" = ? AND resource = ? AND owner = ? AND namespace = ? AND name = ?`

	// reserve stores the revision up to which changes may be made in memory only. skip
	// follows a crash that may have lost such changes: it moves the revision past all of
	// them, marks everything before as compacted, and starts a new epoch.
	reserve = `UPDATE store SET reserved = ? WHERE id = 1`
	skip    = `UPDATE store SET revision = reserved, compacted = reserved, reserved = 0, epoch = lower(hex(randomblob(16))) WHERE id = 1`

	// touchStore changes a row and its page; untouchStore undoes the change.
	touchStore   = `UPDATE store SET revision = revision + 1 WHERE id = 1`
	untouchStore = `UPDATE store SET revision = revision - 1 WHERE id = 1`
)

// The archive. ?1 and ?2 bound the revisions of the changes to be copied. The plus signs
// keep SQLite from the index by key, in which it would walk all changes of the resource.
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
	// selectOldest returns a revision before State.Compacted if skip has left history for
	// SQL.
	selectOldest = `SELECT coalesce(min(revision), 0) FROM changes`
	// updateCompacted keeps the last revision when the newest change is deleted.
	updateCompacted = `UPDATE store SET compacted = ?1, revision = max(revision, ?1) WHERE id = 1`
	// selectPages counts the pages that are free, and all pages.
	selectPages = `SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count`
	// vacuum returns up to vacuumPages free pages to the file system.
	vacuum = `PRAGMA incremental_vacuum(500)`
)

const (
	selectUsed = `
SELECT (pages.page_count - free.freelist_count) * size.page_size
FROM pragma_page_count AS pages, pragma_freelist_count AS free, pragma_page_size AS size`

	// selectUsage scans the table in its own order and reads the lengths of values
	// from the rows' headers. Without the materialized part SQLite would sort the
	// values themselves.
	selectUsage = `
WITH o AS MATERIALIZED (SELECT "group", resource, owner, octet_length(value) AS bytes FROM objects NOT INDEXED)
SELECT "group", resource, owner, count(*), sum(bytes) FROM o GROUP BY "group", resource, owner`

	// selectObject returns a row even if there is no object: the row has the revision of
	// its snapshot.
	selectObject = `
SELECT ` + lastRevision + `, o.uid, o.created_revision, o.revision, o.form, o.expires, o.value, o.record_sum
FROM store s LEFT JOIN objects o
  ON o."group" = ?1 AND o.resource = ?2 AND o.owner = ?3 AND o.namespace = ?4 AND o.name = ?5
WHERE s.id = 1`

	selectExpired = `
SELECT "group", resource, owner, namespace, name, uid, created_revision, revision, expires
FROM objects WHERE expires IS NOT NULL AND expires <= ?1 ORDER BY expires LIMIT ?2`

	// selectChanges finds what each revision wrote in its successor of the
	// same key (which replaced it), else in the object that still has it.
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

// Lists. ?1 group, ?2 resource, ?3 owner, ?4 namespace, ?5 name of the position after
// which to begin, ?6 the one name wanted or ”, ?7 revision, ?8 limit, ?9
// whether values are wanted. A statement is put together here, when compiled,
// from its range (a resource's, a namespace's, one object's) and its time (now,
// or at a revision: what is still current of it, and what has replaced it).
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
	// The index alone counts the objects that existed at a revision and exist now,
	// because the rowid is the revision that created the object. Of the objects that a
	// later change replaced, only the deleted ones remain to be counted.
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

	// selectUndo reads the archive up to the compacted revision, and changes from there on.
	selectUndo = `
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum
FROM archive WHERE revision <= (SELECT compacted FROM counters)
UNION ALL
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum
FROM changes WHERE revision > (SELECT compacted FROM counters)
ORDER BY revision`

	// countData is 0 in a store that never held anything.
	countData = `SELECT (SELECT count(*) FROM objects) + (SELECT count(*) FROM changes) + (SELECT revision FROM counters)`

	insertUndo = `
INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	insertArchived = `
INSERT INTO archive (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	setCounters = `UPDATE store SET revision = ?, compacted = ?, epoch = ? WHERE id = 1`

	// selectIndexes reads what drops and what makes each index that a statement has made.
	selectIndexes = `
SELECT 'DROP INDEX "' || replace(name, '"', '""') || '"', sql FROM sqlite_schema
WHERE type = 'index' AND tbl_name IN ('objects', 'changes', 'archive') AND sql IS NOT NULL ORDER BY name`
)
