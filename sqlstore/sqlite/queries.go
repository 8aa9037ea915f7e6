package sqlite

// The statements of the writer have unnumbered parameters, which modernc.org/sqlite binds
// fastest.

const (
	begin    = `BEGIN IMMEDIATE`
	commit   = `COMMIT`
	rollback = `ROLLBACK`

	selectLineage = `SELECT lineage FROM store WHERE id = 1`

	// selectPosition selects it with the last revision.
	selectPosition = `SELECT s.lineage, k.revision FROM store s, counters k WHERE s.id = 1 AND k.id = 1`

	// selectState takes one search of a primary key for the last revision of the store, which is that of the
	// newest change, or store.revision if a compaction has deleted that change.
	selectState = `SELECT revision, compacted, epoch FROM counters WHERE id = 1`
)

// Integrity checks. Those of the engine return up to a hundred problems.
const (
	integrityCheck = `SELECT integrity_check FROM pragma_integrity_check`
	quickCheck     = `SELECT quick_check FROM pragma_quick_check`
	selectSchema   = `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`
	// selectEnds reads the counters and the first revision of the undo log after the
	// compacted one.
	selectEnds = `
SELECT k.revision, k.compacted, (SELECT min(revision) FROM undo_log WHERE revision > k.compacted)
FROM counters k WHERE k.id = 1`
)

// The resources. Their ids never change.
const (
	selectResource = `SELECT id FROM resources WHERE "group" = ? AND resource = ? AND defined_by = ?`

	// insertResource inserts a resource, of which an epoch before may have had changes that are lost.
	insertResource = `
INSERT INTO resources ("group", resource, defined_by, compacted, complete_after)
SELECT ?, ?, ?, compacted, complete_after FROM store WHERE id = 1`

	// selectCompacted selects the compacted revision of a resource, and selectCompleteAfter where its past ends; those
	// of the store if the resource has no row.
	selectCompacted = `
SELECT coalesce((SELECT r.compacted FROM resources r WHERE r."group" = ? AND r.resource = ? AND r.defined_by = ?), s.compacted)
FROM store s WHERE s.id = 1`
	selectCompleteAfter = `
SELECT coalesce((SELECT coalesce(r.complete_after, r.compacted) FROM resources r
                 WHERE r."group" = ? AND r.resource = ? AND r.defined_by = ?), s.complete_after)
FROM store s WHERE s.id = 1`

	selectHistories = `
SELECT r."group", r.resource, r.defined_by, r.compacted, coalesce(r.complete_after, r.compacted), r.retained_for, f.revision, f.time
FROM resources r LEFT JOIN undo_log f
  ON f.revision = (SELECT u.revision FROM undo_log u WHERE u.resource_id = r.id ORDER BY u.revision LIMIT 1)
ORDER BY r.id`

	// selectRevisionAt halves the range from low, up to which no change is after ?1, to high, from
	// which on all are.
	selectRevisionAt = `
WITH RECURSIVE search(low, high) AS (
    SELECT 0, coalesce((SELECT max(revision) + 1 FROM undo_log), 0)
  UNION ALL
    SELECT CASE WHEN u.time <= ?1 THEN u.revision ELSE s.low END,
           CASE WHEN u.time <= ?1 THEN s.high ELSE (s.low + s.high) / 2 END
    FROM search s JOIN undo_log u
      ON u.revision = (SELECT revision FROM undo_log WHERE revision >= (s.low + s.high) / 2 ORDER BY revision LIMIT 1)
    WHERE s.low + 1 < s.high
)
SELECT max(low) FROM search`

	countChanges = `
SELECT count(*), coalesce(min(revision), 0) FROM (
    SELECT u.revision FROM undo_log u
    WHERE u.resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
      AND u.revision <= ?4
    ORDER BY u.revision DESC LIMIT ?5)`
)

const (
	insertObject = `
INSERT INTO current_objects (revision, resource_id, namespace, name, uid, generation, created_revision,
                             time, verb, subresource, manager, who, real_user, encoding, expires, value,
                             record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	insertCreate = `
INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id,
                      resource_id, namespace, name, uid, replaces, created_revision, change_sum)
VALUES (?, ?, 'create', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)`

	// insertReplaced is the compare of the compare-and-swap. It finds the record by its
	// key, and copies the replaced value inside the database. It returns no row if the
	// record is not at the expected revision.
	insertReplaced = `
INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id,
                      resource_id, namespace, name, uid, replaces, created_revision,
                      encoding, expires, value, record_sum, change_sum)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, resource_id, namespace, name, uid, revision, created_revision,
       encoding, expires, value, record_sum, ?
FROM current_objects
WHERE resource_id = ? AND namespace = ? AND name = ? AND revision = ?
RETURNING created_revision, uid, octet_length(value)`

	// updateObject does not move the row, because the rowid is the create revision, which
	// does not change.
	updateObject = `
UPDATE current_objects
SET revision = ?, uid = ?, generation = ?, time = ?, verb = ?, subresource = ?, manager = ?, who = ?, real_user = ?,
    encoding = ?, expires = ?, value = ?, record_sum = ?, change_sum = ?
WHERE created_revision = ?`

	deleteObject = `DELETE FROM current_objects WHERE created_revision = ?`

	selectRevision = `SELECT revision FROM current_objects WHERE resource_id = ? AND namespace = ? AND name = ?`

	// isMet returns a row if the object that a write requires is as it requires, and isInUse one
	// if a resource has objects.
	isMet = `
SELECT 1 FROM current_objects WHERE resource_id = ? AND namespace = ? AND name = ? AND uid IN ('', ?) AND generation IN (0, ?)`
	isInUse = `SELECT 1 FROM current_objects WHERE resource_id = ? LIMIT 1`

	storeLineage = `UPDATE store SET lineage = ? WHERE id = 1`
	beginEpoch   = `UPDATE store SET lineage = ?1, revision = ?2, compacted = ?2, epoch = lower(hex(randomblob(16))) WHERE id = 1`
	// compactAll marks the changes of each resource as compacted up to the compacted revision of the
	// store. It deletes none: the past ends where it did.
	compactAll = `
UPDATE resources SET compacted = (SELECT compacted FROM store WHERE id = 1),
                     complete_after = coalesce(complete_after, compacted), ends_written = ends_written + 1`

	// selectExtent counts the objects, and has the time of the last change; NULL if it is not in the history.
	selectExtent = `SELECT (SELECT count(*) FROM current_objects), (SELECT time FROM undo_log ORDER BY revision DESC LIMIT 1)`

	// touchStore changes a row and its page; untouchStore undoes the change.
	touchStore   = `UPDATE store SET revision = revision + 1 WHERE id = 1`
	untouchStore = `UPDATE store SET revision = revision - 1 WHERE id = 1`
)

// The comparison of two databases.
const (
	selectLastChange = `SELECT revision, time FROM undo_log ORDER BY revision DESC LIMIT 1`
	hasChange        = `SELECT EXISTS (SELECT 1 FROM undo_log WHERE revision = ?1 AND time = ?2)`
)

// The deletion of history.
const (
	// selectOldest selects the ?3 oldest changes of a resource up to a revision.
	selectOldest = `
SELECT revision, time FROM undo_log WHERE resource_id = ?1 AND revision <= ?2 ORDER BY revision LIMIT ?3`

	deleteChanges = `DELETE FROM undo_log WHERE resource_id = ?1 AND revision <= ?2`

	updateHistory = `
UPDATE resources SET compacted = max(compacted, ?2), complete_after = max(coalesce(complete_after, compacted), ?2),
                     ends_written = ends_written + 1
WHERE id = ?1`
	// selectNotes selects the notes from a name on and before another one.
	selectNotes = `SELECT name, value FROM notes WHERE name >= ?1 AND name < ?2`
	// The changes of notes: ?1 is the name, ?2 the value before, ?3 the value after.
	insertNote = `INSERT INTO notes (name, value) SELECT ?1, ?3 WHERE ?2 = '' ON CONFLICT DO NOTHING`
	updateNote = `UPDATE notes SET value = ?3 WHERE name = ?1 AND value = ?2`
	deleteNote = `DELETE FROM notes WHERE name = ?1 AND value = ?2 AND ?3 = ''`

	updateRetainedFor = `UPDATE resources SET retained_for = ? WHERE "group" = ? AND resource = ? AND defined_by = ?`
	// updateCompacted also raises store.revision, so that the last revision does not
	// depend on the newest change, which deleteChanges may have deleted.
	updateCompacted = `UPDATE store SET compacted = max(compacted, ?1), revision = max(revision, ?1) WHERE id = 1`
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
WITH o AS MATERIALIZED (SELECT resource_id, octet_length(value) AS bytes FROM current_objects NOT INDEXED),
u AS MATERIALIZED (SELECT resource_id, count(*) AS objects, sum(bytes) AS bytes FROM o GROUP BY resource_id)
SELECT r."group", r.resource, r.defined_by, u.objects, u.bytes FROM u CROSS JOIN resources r ON r.id = u.resource_id`

	// selectObject also returns a row if the object does not exist: then only the
	// revision of the snapshot is set.
	selectObject = `
SELECT k.revision, o.uid, o.created_revision, o.revision, o.encoding, o.expires, o.value, o.record_sum
FROM counters k LEFT JOIN current_objects o
  ON o.resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND o.namespace = ?4 AND o.name = ?5
WHERE k.id = 1`

	selectExpired = `
SELECT r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid, o.created_revision, o.revision, o.expires
FROM current_objects o CROSS JOIN resources r ON r.id = o.resource_id
WHERE o.expires IS NOT NULL AND o.expires > ?1 AND o.expires <= ?2 ORDER BY o.expires LIMIT ?3`

	// selectChanges selects the changes after ?1 with the states that they replaced and wrote, ?2 at most.
	selectChanges = `SELECT * FROM change_states WHERE revision > ?1 ORDER BY revision LIMIT ?2`

	// selectChangesBefore is selectChanges before the revision ?3, the newest first.
	selectChangesBefore = `
SELECT * FROM change_states WHERE revision > ?1 AND revision < ?3 ORDER BY revision DESC LIMIT ?2`

	// selectChangesOf is selectChanges of one resource, ?3 to ?5.
	selectChangesOf = `
SELECT * FROM change_states
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?3 AND resource = ?4 AND defined_by = ?5)
  AND revision > ?1
ORDER BY revision LIMIT ?2`

	// selectChangesOfBefore is selectChangesOf before the revision ?6, the newest first.
	selectChangesOfBefore = `
SELECT * FROM change_states
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?3 AND resource = ?4 AND defined_by = ?5)
  AND revision > ?1 AND revision < ?6
ORDER BY revision DESC LIMIT ?2`

	// selectChangesIn is selectChanges of the namespaces ?6 and ?7 and the names from ?8 to ?9, of
	// one resource, ?3 to ?5, or of all if ?4 is empty. It searches the index by key once a
	// resource, and reads only the changes of the answer from the table.
	selectChangesIn = `
SELECT * FROM change_states WHERE revision IN (
    SELECT u.revision FROM resources a CROSS JOIN undo_log u INDEXED BY undo_log_key
    WHERE (?4 = '' OR a."group" = ?3 AND a.resource = ?4 AND a.defined_by = ?5)
      AND u.resource_id = a.id AND u.namespace IN (?6, ?7) AND u.name BETWEEN ?8 AND ?9 AND u.revision > ?1
    ORDER BY u.revision LIMIT ?2)
ORDER BY revision`

	// selectChangesInBefore is selectChangesIn before the revision ?10, the newest first.
	selectChangesInBefore = `
SELECT * FROM change_states WHERE revision IN (
    SELECT u.revision FROM resources a CROSS JOIN undo_log u INDEXED BY undo_log_key
    WHERE (?4 = '' OR a."group" = ?3 AND a.resource = ?4 AND a.defined_by = ?5)
      AND u.resource_id = a.id AND u.namespace IN (?6, ?7) AND u.name BETWEEN ?8 AND ?9
      AND u.revision > ?1 AND u.revision < ?10
    ORDER BY u.revision DESC LIMIT ?2)
ORDER BY revision DESC`

	// selectChangeKeysOf is selectChangesOf without the states: it reads no values.
	selectChangeKeysOf = `
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id,
       r."group", r.resource, r.defined_by, u.namespace, u.name, u.uid, u.replaces, u.created_revision, u.change_sum
FROM undo_log u CROSS JOIN resources r ON r.id = u.resource_id
WHERE u.resource_id = (SELECT id FROM resources WHERE "group" = ?3 AND resource = ?4 AND defined_by = ?5)
  AND u.revision > ?1
ORDER BY u.revision LIMIT ?2`
)

// A whole store: ReadSnapshot and Load.
const (
	selectHeader = `
SELECT k.revision, k.compacted,
       max(s.complete_after, coalesce((SELECT max(coalesce(complete_after, compacted)) FROM resources), 0)),
       k.epoch, (SELECT count(*) FROM current_objects), s.lineage
FROM counters k, store s WHERE k.id = 1 AND s.id = 1`

	// selectObjects reads in key order: CROSS JOIN keeps the order of the tables.
	selectObjects = `
SELECT r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid, o.generation, o.created_revision, o.revision, o.time,
       o.verb, o.subresource, o.manager, o.who, o.real_user, o.encoding, o.expires, o.value, o.record_sum, o.change_sum
FROM resources r CROSS JOIN current_objects o ON o.resource_id = r.id
ORDER BY r."group", r.resource, r.defined_by, o.namespace, o.name`

	selectUndo = `
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id, r."group", r.resource, r.defined_by,
       u.namespace, u.name, u.uid, u.replaces, u.created_revision, u.encoding, u.expires, u.value, u.record_sum, u.change_sum
FROM undo_log u CROSS JOIN resources r ON r.id = u.resource_id
ORDER BY u.revision`

	// These read a damaged file: the tables without their indexes, and the indexes without their
	// tables.
	selectObjectsBetween = `
SELECT r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid, o.generation, o.created_revision, o.revision, o.time,
       o.verb, o.subresource, o.manager, o.who, o.real_user, o.encoding, o.expires, o.value, o.record_sum, o.change_sum
FROM current_objects o NOT INDEXED LEFT JOIN resources r ON r.id = o.resource_id
WHERE o.created_revision BETWEEN ? AND ? ORDER BY o.created_revision`

	selectObjectKeys = `
SELECT r."group", r.resource, r.defined_by, o.namespace, o.name, o.created_revision
FROM current_objects o INDEXED BY current_objects_key JOIN resources r ON r.id = o.resource_id
WHERE +o.created_revision BETWEEN ? AND ?`

	selectUndoBetween = `
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id, r."group", r.resource, r.defined_by,
       u.namespace, u.name, u.uid, u.replaces, u.created_revision, u.encoding, u.expires, u.value, u.record_sum, u.change_sum
FROM undo_log u NOT INDEXED LEFT JOIN resources r ON r.id = u.resource_id
WHERE u.revision BETWEEN ? AND ? ORDER BY u.revision`

	selectUndoKeys = `
SELECT r."group", r.resource, r.defined_by, u.namespace, u.name, u.revision
FROM undo_log u INDEXED BY undo_log_key JOIN resources r ON r.id = u.resource_id
WHERE +u.revision BETWEEN ? AND ?`

	selectStateByIndex = `
SELECT max(s.revision, coalesce((SELECT max(+u.revision) FROM undo_log u INDEXED BY undo_log_resource), 0)), s.compacted, s.epoch
FROM store s WHERE s.id = 1`

	// countData is 0 in a store in which no change was ever made.
	countData = `SELECT (SELECT count(*) FROM current_objects) + (SELECT count(*) FROM undo_log) + (SELECT revision FROM counters)`

	insertUndo = `
INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id,
                      resource_id, namespace, name, uid, replaces, created_revision,
                      encoding, expires, value, record_sum, change_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	insertLoaded = `
INSERT INTO resources (id, "group", resource, defined_by, compacted, complete_after, retained_for) VALUES (?, ?, ?, ?, ?, ?, ?)`

	setCounters = `UPDATE store SET revision = ?, compacted = ?, complete_after = ?, epoch = ? WHERE id = 1`

	// selectIndexes returns, for each index that a CREATE INDEX has made, the statement
	// that drops it and the one that makes it.
	selectIndexes = `
SELECT 'DROP INDEX "' || replace(name, '"', '""') || '"', sql FROM sqlite_schema
WHERE type = 'index' AND tbl_name IN ('current_objects', 'undo_log') AND sql IS NOT NULL ORDER BY name`
)

// Lists. The arguments are ?1 group, ?2 resource, ?3 owner, ?4 and ?5 the namespace and name with which
// the list begins, ?6 and ?7 those before which it ends, ?8 the only name to list (empty for all), ?9
// revision, ?10 limit (-1 for none), ?11 whether to return values.
const (
	listNow = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires,
       CASE WHEN ?11 THEN value END AS value, CASE WHEN ?11 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8)
ORDER BY namespace, name LIMIT ?10`

	countNow = `
SELECT count(*) FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8)`
)

// Lists at a revision: the objects that were last written up to it, and the undo rows of objects
// that were replaced or deleted after it. These undo rows come from the whole history of the objects
// in the range (At), or from the changes of the resource after the revision if these are few (Since):
// of a list that goes on for minutes they are few, however long the history is. ?12 is whether to return
// objects that were not replaced since.
const (
	listAt = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires,
       CASE WHEN ?11 THEN value END AS value, CASE WHEN ?11 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8) AND revision <= ?9 AND ?12
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, encoding, expires,
       CASE WHEN ?11 THEN value END, CASE WHEN ?11 THEN record_sum END
FROM undo_log INDEXED BY undo_log_key
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8) AND replaces BETWEEN 1 AND ?9 AND revision > ?9
ORDER BY namespace, name LIMIT ?10`

	listSince = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires,
       CASE WHEN ?11 THEN value END AS value, CASE WHEN ?11 THEN record_sum END AS record_sum
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8) AND revision <= ?9 AND ?12
UNION ALL
SELECT namespace, name, uid, created_revision, replaces, encoding, expires,
       CASE WHEN ?11 THEN value END, CASE WHEN ?11 THEN record_sum END
FROM undo_log INDEXED BY undo_log_resource
WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
  AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8) AND replaces BETWEEN 1 AND ?9 AND revision > ?9
ORDER BY namespace, name LIMIT ?10`

	// hasManySince tells whether there are more than ?5 changes of the resource after ?4.
	hasManySince = `
SELECT EXISTS (
  SELECT 1 FROM undo_log INDEXED BY undo_log_resource
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3) AND revision > ?4 LIMIT 1 OFFSET ?5
)`

	// countAt counts the objects that exist now and whose create revision, the rowid, is not later:
	// the index alone counts them. It adds those that existed at the revision and were deleted later.
	countAt = `
SELECT (
  SELECT count(*) FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8) AND created_revision <= ?9
) + (
  SELECT count(*) FROM undo_log INDEXED BY undo_log_resource
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = ?1 AND resource = ?2 AND defined_by = ?3)
    AND (namespace, name) >= (?4, ?5) AND (namespace, name) < (?6, ?7) AND (?8 = '' OR name = ?8)
    AND revision > ?9 AND op = 'delete' AND created_revision <= ?9
)`
)
