package postgres

const selectServer = `
SELECT pg_backend_pid(), current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'), coalesce(current_setting('neon.timeline_id', true), ''), (SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery(),
       current_setting('server_encoding')`

// The lineage of the store; see origin. The transaction of storeLineage does not wait for a synchronous standby
// (commitLocally): a standby that has the mark has everything before it, and reads must not wait.
// commitLocally is the last statement, because the instance has synchronous_commit.
const (
	selectOrigin = `
SELECT s.lineage, concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), s.tableoid,
                            NULLIF(current_setting('neon.timeline_id', true), '')),
       commits_wait(), pg_last_wal_receive_lsn() IS NOT NULL
FROM store s WHERE s.id = 1`

	storeLineage  = `UPDATE store SET lineage = $1 WHERE id = 1`
	commitLocally = `SELECT set_config('synchronous_commit', 'local', true)`

	beginEpoch = `
UPDATE store SET revision = $1, compacted = $1, epoch = gen_random_uuid()::text, lineage = $2 WHERE id = 1`

	// compactAll marks the changes of each resource as compacted up to the compacted revision of the
	// store. It deletes none: the past ends where it did.
	compactAll = `
UPDATE resources SET compacted = greatest(compacted, (SELECT compacted FROM store WHERE id = 1)),
                     complete_after = coalesce(complete_after, compacted), ends_written = ends_written + 1`
)

// selectState selects the state of the store. Every read does so in its own snapshot; see
// observation. $1 is the revision of the driver's last seen change.
//
// It finds the newest change (l) from the end of the primary key, and the change at the driver's
// last seen change (h). An equality would let the planner search another index that has the revision in a later
// column; only the primary key has the order. store.revision is at least the compacted revision; a batch does
// not change it, and so the newest change may be after it.
//
// The last column is the instance, which other statements compare.
const selectState = `
SELECT greatest(s.revision, l.revision), s.compacted, s.epoch, clock_timestamp(), l.time, l.uid, h.time, h.uid,
       pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
       store_instance(s.epoch, s.lineage, s.least_version, s.tableoid)
FROM store s
LEFT JOIN LATERAL (SELECT c.revision, c.time, c.uid FROM undo_log c WHERE c.revision >= s.revision
                   ORDER BY c.revision DESC LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT c.time, c.uid FROM undo_log c WHERE c.revision >= $1 AND c.revision <= $1
                   ORDER BY c.revision LIMIT 1) h ON true
WHERE s.id = 1`

// The statements of a batch.
const (
	begin    = `BEGIN ISOLATION LEVEL READ COMMITTED`
	commit   = `COMMIT`
	rollback = `ROLLBACK`

	// configure makes the settings for the transaction if $2 is true, and otherwise for the
	// session. applyBatch then gets one generic plan for all batches; see configureReads. work_mem keeps the values of
	// a batch in memory. A
	// statement_timeout of the role must not end the wait for the writers' lock before
	// lock_timeout does. client_min_messages must not hide that a COMMIT has not waited for the standby.
	configure = `
SELECT set_config('lock_timeout', $1, $2), set_config('statement_timeout', '0', $2),
       set_config('plan_cache_mode', 'force_generic_plan', $2),
       set_config('enable_seqscan', 'off', $2), set_config('enable_hashjoin', 'off', $2),
       set_config('enable_mergejoin', 'off', $2), set_config('enable_bitmapscan', 'off', $2), set_config('jit', 'off', $2),
       set_config('work_mem', '64MB', $2), set_config('client_min_messages', 'warning', $2)`

	// lock takes the writers' lock. It is a statement of its own, so that the snapshot of
	// the next statement is younger than the lock. It waits up to lock_timeout. The
	// statement_timeout $1 that it sets is for the statement after it.
	//
	// It locks nothing if the instance is not $2, that of the last seen change. Then the statements
	// after it write nothing, and the COMMIT of a transaction that has locked nothing does not
	// wait for a synchronous standby. If the instance becomes $2 between the statements, they
	// write without the lock; a batch that gives the same id or revision meanwhile makes them
	// fail on the primary key, as a lost race.
	lock = `
SELECT set_config('statement_timeout', $1, true) FROM store s
WHERE s.id = 1 AND store_instance(s.epoch, s.lineage, s.least_version, s.tableoid) = $2::text
FOR UPDATE`

	// lockAny takes the writers' lock on any server.
	lockAny = `SELECT set_config('statement_timeout', $1, true) FROM store WHERE id = 1 FOR UPDATE`

	// unlimited turns off statement_timeout for the COMMIT, also one that is set for the
	// role. It would end the wait for a synchronous standby as a cancel request does. Behind a
	// pooler it does so for reads too.
	unlimited = `SELECT set_config('statement_timeout', '0', true)`

	// addResources gives ids to the resources, $1 to $3, that have none, if the instance is
	// $4. The writers' lock keeps two batches from giving the same one. An epoch before may
	// have had changes of them that are lost.
	addResources = `
INSERT INTO resources (id, "group", resource, defined_by, compacted, complete_after)
SELECT (SELECT coalesce(max(id), 0) FROM resources) + row_number() OVER (), n."group", n.resource, n.defined_by, s.compacted,
       s.complete_after
FROM store s,
     (SELECT DISTINCT w."group", w.resource, w.defined_by
      FROM unnest($1::text[], $2::text[], $3::text[]) AS w("group", resource, defined_by)
      WHERE (SELECT r.id FROM resources r
             WHERE r."group" = w."group" AND r.resource = w.resource AND r.defined_by = w.defined_by) IS NULL) n
WHERE s.id = 1 AND store_instance(s.epoch, s.lineage, s.least_version, s.tableoid) = $4::text`

	// applyBatch makes the writes whose preconditions hold (asked.effective), gives them
	// the next revisions in their order, and returns one row for each write of the batch.
	// All of its parts see the state of before the statement. $1 to $18 are the arrays of
	// Driver.Commit. $19 is the revision of the driver's last seen change, $20 its time, $21 its UID
	// and $22 its instance: if the store does not hold the last seen change (asked.holds is
	// false), applyBatch writes nothing. $23 to $34 are the arrays of the function others:
	// a write that other objects forbid (asked.refused) is not effective. asked looks each object up once; the
	// updates and deletes find it by its ctid, which nobody changes meanwhile, and a scan of TIDs is their only plan.
	applyBatch = `
WITH k AS MATERIALIZED (
    SELECT l.revision,
           store_instance(s.epoch, s.lineage, s.least_version, s.tableoid) = $22::text
               AND ($19::bigint <= s.compacted OR $20::text = '' AND $19 <= l.revision OR coalesce((
               SELECT h.time = NULLIF($20, '')::timestamptz AND h.uid = $21::text
               FROM undo_log h WHERE h.revision >= $19 AND h.revision <= $19 ORDER BY h.revision LIMIT 1), false)) AS holds
    FROM store s
    CROSS JOIN LATERAL (SELECT greatest(s.revision, (SELECT c.revision FROM undo_log c WHERE c.revision >= s.revision
                                                     ORDER BY c.revision DESC LIMIT 1)) AS revision) l
    WHERE s.id = 1
), met AS MATERIALIZED (
    SELECT q.n FROM unnest($24::text[], $25::text[], $26::text[], $27::text[], $28::text[], $29::text[], $30::bigint[]) WITH ORDINALITY
         AS q("group", resource, defined_by, namespace, name, uid, generation, n)
    CROSS JOIN LATERAL (SELECT id FROM resources r
                        WHERE r."group" = q."group" AND r.resource = q.resource AND r.defined_by = q.defined_by LIMIT 1) r
    CROSS JOIN LATERAL (SELECT uid, generation FROM current_objects o
                        WHERE o.resource_id = r.id AND o.namespace = q.namespace AND o.name = q.name LIMIT 1) o
    WHERE o.uid IN ('', q.uid) AND o.generation IN (0, q.generation)
), used AS MATERIALIZED (
    SELECT q.n FROM unnest($32::text[], $33::text[], $34::text[]) WITH ORDINALITY AS q("group", resource, defined_by, n)
    CROSS JOIN LATERAL (SELECT id FROM resources r
                        WHERE r."group" = q."group" AND r.resource = q.resource AND r.defined_by = q.defined_by LIMIT 1) r
    CROSS JOIN LATERAL (SELECT FROM current_objects o WHERE o.resource_id = r.id LIMIT 1) o
), w AS (
    SELECT w.*, CASE WHEN w.requires > 0 AND w.requires NOT IN (SELECT n FROM met) THEN 'required'
                     WHEN w.empties > 0 AND w.empties IN (SELECT n FROM used) THEN 'in use' ELSE '' END AS refused
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bigint[], $10::text[],
                $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[],
                $23::bigint[], $31::bigint[]) WITH ORDINALITY
         AS w(op, "group", resource, defined_by, namespace, name, replaces, uid, generation, encoding,
              expiry, value, verb, subresource, manager, who, real_user, audit_id, requires, empties, n)
), asked AS MATERIALIZED (
    SELECT w.*, r.id AS resource_id, NULLIF(w.expiry, '')::timestamptz AS expires, statement_timestamp() AS time,
           o.place, o.revision AS current, o.created_revision AS created, o.uid AS old_uid, o.encoding AS old_form,
           o.expires AS old_expires, o.value AS old_value, k.holds,
           k.holds AND w.refused = '' AND coalesce(o.revision, 0) = w.replaces AS effective,
           k.revision + sum((w.refused = '' AND coalesce(o.revision, 0) = w.replaces)::int) OVER (ORDER BY w.n)::bigint AS revision
    FROM k CROSS JOIN w
    LEFT JOIN LATERAL (SELECT id FROM resources r
                       WHERE r."group" = w."group" AND r.resource = w.resource AND r.defined_by = w.defined_by LIMIT 1) r ON true
    LEFT JOIN LATERAL (SELECT ctid AS place, revision, created_revision, uid, encoding, expires, value
                       FROM current_objects o
                       WHERE o.resource_id = r.id AND o.namespace = w.namespace AND o.name = w.name LIMIT 1) o ON true
), logged AS (
    INSERT INTO undo_log (revision, time, op, verb, subresource, manager, who, real_user, audit_id, resource_id, namespace, name,
                          uid, replaces, created_revision, encoding, expires, value)
    SELECT revision, time, op, verb, subresource, manager, who, real_user, audit_id, resource_id, namespace, name,
           coalesce(old_uid, uid), replaces, coalesce(created, revision), old_form, old_expires, old_value
    FROM asked WHERE effective
), created AS (
    INSERT INTO current_objects (revision, resource_id, namespace, name, uid, generation, created_revision,
                                 time, verb, subresource, manager, who, real_user, encoding, expires, value)
    SELECT revision, resource_id, namespace, name, uid, generation, revision,
           time, verb, subresource, manager, who, real_user, encoding, expires, value
    FROM asked WHERE effective AND op = 'create'
), updated AS (
    UPDATE current_objects o SET revision = a.revision, uid = a.uid, generation = a.generation, time = a.time,
                                 verb = a.verb, subresource = a.subresource, manager = a.manager, who = a.who, real_user = a.real_user,
                                 encoding = a.encoding, expires = a.expires, value = a.value
    FROM asked a
    WHERE a.effective AND a.op = 'update' AND o.ctid = a.place
), deleted AS (
    DELETE FROM current_objects o USING asked a
    WHERE a.effective AND a.op = 'delete' AND o.ctid = a.place
)
SELECT effective, revision, time, coalesce(current, 0), coalesce(created, revision), coalesce(old_uid, ''),
       coalesce(octet_length(old_value), 0), refused, holds
FROM asked ORDER BY n`

	// terminateHolder terminates the sessions that have held the writers' lock for longer
	// than $1 and are idle in their transaction. It leaves alone a session that works, and
	// one that waits for the lock.
	terminateHolder = `
SELECT count(pg_terminate_backend(a.pid))
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.relation = 'store'::regclass
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
  AND a.pid <> pg_backend_pid() AND a.backend_xid IS NOT NULL AND a.wait_event_type = 'Client'
  AND a.xact_start < clock_timestamp() - $1::interval`

	// isDone is true if the session with process ID $1 has had nothing to do for a second,
	// or does not exist. It is false for a session of another role, whose state is NULL.
	isDone = `
SELECT NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = $1
                   AND (a.state LIKE 'idle%' AND a.state_change < clock_timestamp() - interval '1 second') IS NOT TRUE)`
)

// The deletion of history, and advisory locks.
const (
	// selectHistories also selects the resources that have an id only because of a create that
	// applyBatch has refused. As in selectChangesOf, only the index by resource and revision has the
	// order of both columns; so it is in countChanges and deleteHistory.
	selectHistories = `
SELECT r."group", r.resource, r.defined_by, r.compacted, coalesce(r.complete_after, r.compacted), r.retained_for, f.revision, f.time
FROM resources r
LEFT JOIN LATERAL (SELECT u.resource_id, u.revision, u.time FROM undo_log u
                   WHERE u.resource_id >= r.id ORDER BY u.resource_id, u.revision LIMIT 1) f ON f.resource_id = r.id
ORDER BY r.id`

	// selectCompacted selects the compacted revision of a resource, and selectCompleteAfter where its past ends; those
	// of the store if the resource has no row.
	selectCompacted = `
SELECT coalesce((SELECT r.compacted FROM resources r WHERE r."group" = $1 AND r.resource = $2 AND r.defined_by = $3), s.compacted)
FROM store s WHERE s.id = 1`
	selectCompleteAfter = `
SELECT coalesce((SELECT coalesce(r.complete_after, r.compacted) FROM resources r
                 WHERE r."group" = $1 AND r.resource = $2 AND r.defined_by = $3), s.complete_after)
FROM store s WHERE s.id = 1`

	// selectRevisionAt halves the range from low, up to which no change is after $1, to high, from
	// which on all are.
	selectRevisionAt = `
WITH RECURSIVE search(low, high) AS (
    SELECT 0::bigint, coalesce((SELECT revision + 1 FROM undo_log ORDER BY revision DESC LIMIT 1), 0)
  UNION ALL
    SELECT CASE WHEN middle.time <= $1::text::timestamptz THEN middle.revision ELSE s.low END,
           CASE WHEN middle.time <= $1::text::timestamptz THEN s.high ELSE (s.low + s.high) / 2 END
    FROM search s, LATERAL (SELECT u.revision, u.time FROM undo_log u
                            WHERE u.revision >= (s.low + s.high) / 2 AND s.low + 1 < s.high
                            ORDER BY u.revision LIMIT 1) middle
)
SELECT max(low) FROM search`

	countChanges = `
SELECT count(*), coalesce(min(revision), 0) FROM (
    SELECT u.revision FROM (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3) r
    CROSS JOIN LATERAL (SELECT revision FROM undo_log WHERE resource_id BETWEEN r.id AND r.id AND revision <= $4
                        ORDER BY resource_id DESC, revision DESC LIMIT $5) u) newest`

	// deleteHistory deletes the $6 oldest changes of a resource, $1 to $3, up to revision $4
	// and to the first change that was made at $5 or later; NULL is never. It returns the
	// revision of the last change that it has deleted, and how many.
	deleteHistory = `
WITH r AS MATERIALIZED (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3),
due AS MATERIALIZED (
    SELECT revision, place FROM (
        SELECT revision, place, bool_or(time >= $5::text::timestamptz) OVER (ORDER BY revision) AS is_late
        FROM (SELECT revision, time, ctid AS place FROM undo_log
              WHERE resource_id >= (SELECT id FROM r) AND (resource_id, revision) <= ((SELECT id FROM r), $4)
              ORDER BY resource_id, revision LIMIT $6) oldest) o
    WHERE is_late IS NOT TRUE
), deleted AS (
    DELETE FROM undo_log WHERE ctid = ANY (ARRAY(SELECT place FROM due))
)
SELECT coalesce(max(revision), 0), count(*) FROM due`

	updateHistory = `
UPDATE resources SET compacted = greatest(compacted, $4),
                     complete_after = greatest(coalesce(complete_after, compacted), $4), ends_written = ends_written + 1
WHERE "group" = $1 AND resource = $2 AND defined_by = $3`

	// selectNotes selects the notes from a name on and before another one.
	selectNotes = `SELECT name, value FROM notes WHERE name >= $1 AND name < $2`
	// The changes of notes: $1 is the name, $2 the value before, $3 the value after.
	insertNote = `INSERT INTO notes (name, value) SELECT $1::text, $3::text WHERE $2::text = '' ON CONFLICT DO NOTHING`
	updateNote = `UPDATE notes SET value = $3 WHERE name = $1 AND value = $2`
	deleteNote = `DELETE FROM notes WHERE name = $1 AND value = $2 AND $3::text = ''`

	updateRetainedFor = `
UPDATE resources r SET retained_for = w.seconds
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS w("group", resource, defined_by, seconds)
WHERE r."group" = w."group" AND r.resource = w.resource AND r.defined_by = w.defined_by`

	// updateCompacted also raises store.revision, so that the last revision does not
	// depend on the rows that deleteHistory deletes. Where both are that high already it makes no
	// version of the row, which every read would walk while an old snapshot is open, and takes no
	// lock: neither value ever falls, and so every snapshot without the deleted rows has both at
	// $1 or higher.
	updateCompacted = `
UPDATE store SET compacted = greatest(compacted, $1), revision = greatest(revision, $1)
WHERE id = 1 AND (compacted < $1 OR revision < $1)`

	// configureCompact has the server read the oldest changes in the order of the index. In a
	// generic plan, or without statistics, the planner would read all changes and sort them.
	configureCompact = `
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`

	// idleTimeout also turns off transaction_timeout, which PostgreSQL has from version 17 on.
	idleTimeout = `
SELECT set_config('idle_in_transaction_session_timeout', $1, true),
       (SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout')`
	tryLock  = `SELECT pg_try_advisory_xact_lock(hashtextextended('byre ' || current_schema() || ' ' || $1, 0))`
	tryShare = `SELECT pg_try_advisory_xact_lock_shared(hashtextextended('byre ' || current_schema() || ' ' || $1, 0))`
	touch    = `SELECT 1`

	// countUsers counts the sessions that hold the advisory lock that this session holds. It
	// reads no table: the lock on it would last as long as the transaction, and VACUUM FULL
	// would wait for that.
	countUsers = `
SELECT count(*) FROM pg_catalog.pg_locks mine JOIN pg_catalog.pg_locks l USING (locktype, database, classid, objid, objsubid)
WHERE mine.pid = pg_backend_pid() AND locktype = 'advisory' AND l.granted`
)

// Hints. The schemas of a database share the names of channels, so that the name has the OID
// of the schema. It does not have the schema's name, because that may have 63 bytes, as many
// as a channel's name may have in all.
const (
	selectChannel = `SELECT 'byre_' || quote_ident(current_schema())::regnamespace::oid::text`
	notify        = `SELECT pg_notify('byre_' || quote_ident(current_schema())::regnamespace::oid::text, $1)`
)

// Reads.
const (
	// configureReads has the server read lists in the order of the index by key. The server keeps a plan that it made
	// while a table was empty or small until the next ANALYZE, however much the table grows: for such a table every
	// plan costs the same, and so all but searches of an index are turned off. Each look-up by a whole key is in a
	// LATERAL subquery with a limit, which leaves no choice of the order of joins. It turns off statement_timeout: the
	// driver bounds each read, and a count may take long.
	configureReads = `
SELECT set_config('statement_timeout', '0', false), set_config('enable_bitmapscan', 'off', false), set_config('jit', 'off', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false)`

	// allowScan is for a statement that reads the whole of a table.
	allowScan = `SELECT set_config('enable_seqscan', 'on', true)`

	beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

	// selectUsage reads no values: PostgreSQL stores the length of a value apart, also if
	// the value is compressed or out of line.
	selectUsage = `
SELECT r."group", r.resource, r.defined_by, u.objects, u.bytes
FROM (SELECT resource_id, count(*) AS objects, sum(octet_length(value))::bigint AS bytes FROM current_objects GROUP BY resource_id) u
JOIN resources r ON r.id = u.resource_id`

	// selectSize adds up the tables of the schema with their indexes and TOAST tables. The
	// database may have other schemas, which do not count.
	selectSize = `
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class c
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind = 'r'`

	// selectObject also returns a row if the object does not exist: then only the columns
	// of the state are set.
	selectObject = `
SELECT greatest(s.revision, l.revision), s.compacted, s.epoch, clock_timestamp(), l.time, l.uid, h.time, h.uid,
       pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
       store_instance(s.epoch, s.lineage, s.least_version, s.tableoid),
       o.uid, o.created_revision, o.revision, o.encoding, o.expires, o.value
FROM store s
LEFT JOIN LATERAL (SELECT c.revision, c.time, c.uid FROM undo_log c WHERE c.revision >= s.revision
                   ORDER BY c.revision DESC LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT c.time, c.uid FROM undo_log c WHERE c.revision >= $1 AND c.revision <= $1
                   ORDER BY c.revision LIMIT 1) h ON true
LEFT JOIN LATERAL (SELECT * FROM current_objects
                   WHERE resource_id = (SELECT id FROM resources WHERE "group" = $2 AND resource = $3 AND defined_by = $4)
                     AND namespace = $5 AND name = $6 LIMIT 1) o ON true
WHERE s.id = 1`

	selectExpired = `
SELECT r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid, o.created_revision, o.revision, o.expires
FROM (SELECT * FROM current_objects WHERE expires IS NOT NULL AND expires > $1::text::timestamptz AND expires <= $2::text::timestamptz ORDER BY expires LIMIT $3) o
LEFT JOIN LATERAL (SELECT "group", resource, defined_by FROM resources r WHERE r.id = o.resource_id LIMIT 1) r ON true
ORDER BY o.expires`

	// selectChanges selects the changes after $1 with the states that they replaced and wrote, $2 at most. It
	// stops after the change with which the sum of their bytes reaches $3.
	selectChanges = `
SELECT * FROM (
    SELECT *, sum(bytes) OVER (ORDER BY revision ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT * FROM change_states WHERE revision > $1 ORDER BY revision LIMIT $2) c
) measured
WHERE coalesce(before, 0) < $3 ORDER BY revision`

	// selectChangesBefore is selectChanges before the revision $4, the newest first.
	selectChangesBefore = `
SELECT * FROM (
    SELECT *, sum(bytes) OVER (ORDER BY revision DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT * FROM change_states WHERE revision > $1 AND revision < $4 ORDER BY revision DESC LIMIT $2) c
) measured
WHERE coalesce(before, 0) < $3 ORDER BY revision DESC`

	// selectChangesOf is selectChanges of one resource, $4 to $6. Only the index by resource
	// and revision has the order of both columns. With resource_id = id the planner would also
	// take the primary key, and read the changes of all resources. PostgreSQL stops at
	// resource_id <= id; at a second comparison of rows it would not.
	selectChangesOf = `
WITH r AS MATERIALIZED (SELECT id FROM resources WHERE "group" = $4 AND resource = $5 AND defined_by = $6)
SELECT * FROM (
    SELECT *, sum(bytes) OVER (ORDER BY resource_id, revision
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT * FROM change_states
          WHERE (resource_id, revision) > ((SELECT id FROM r), $1) AND resource_id <= (SELECT id FROM r)
          ORDER BY resource_id, revision LIMIT $2) c
) measured
WHERE coalesce(before, 0) < $3 ORDER BY resource_id, revision`

	// selectChangesOfBefore is selectChangesOf before the revision $7, the newest first. PostgreSQL stops at
	// both ends of a range of revisions, which has an end here; ANY keeps the order of both columns.
	selectChangesOfBefore = `
WITH r AS MATERIALIZED (SELECT id FROM resources WHERE "group" = $4 AND resource = $5 AND defined_by = $6)
SELECT * FROM (
    SELECT *, sum(bytes) OVER (ORDER BY resource_id DESC, revision DESC
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT * FROM change_states
          WHERE resource_id = ANY (ARRAY[(SELECT id FROM r)]) AND revision > $1 AND revision < $7
          ORDER BY resource_id DESC, revision DESC LIMIT $2) c
) measured
WHERE coalesce(before, 0) < $3 ORDER BY resource_id DESC, revision DESC`

	// selectChangesIn is selectChanges of the namespaces $7 and $8 and the names from $9 to $10, of one
	// resource, $4 to $6, or of all if $5 is empty; before $11 and with the newest first unless that is 0.
	// OFFSET 0 has the planner search the index by key once a resource, and the zero keeps it from using
	// another index. With the names themselves, instead of SELECT, it would plan each query of a large store
	// anew: that takes longer than the query.
	selectChangesIn = `
WITH named AS MATERIALIZED (
    SELECT u.revision FROM resources a
    CROSS JOIN unnest(CASE WHEN $7 = $8 THEN ARRAY[$7] ELSE ARRAY[$7, $8] END) AS n(namespace)
    CROSS JOIN LATERAL (
        SELECT u.revision FROM undo_log u
        WHERE u.resource_id = a.id AND u.namespace = n.namespace AND u.name >= (SELECT $9) AND u.name <= (SELECT $10)
          AND u.revision + 0 > $1 AND ($11::bigint = 0 OR u.revision + 0 < $11::bigint)
        ORDER BY u.name OFFSET 0) u
    WHERE $5 = '' OR a."group" = $4 AND a.resource = $5 AND a.defined_by = $6
), page AS MATERIALIZED (
    SELECT revision, CASE $11::bigint WHEN 0 THEN revision ELSE -revision END AS place
    FROM named ORDER BY place LIMIT $2
)
SELECT * FROM (
    SELECT c.*, place, sum(bytes) OVER (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM page CROSS JOIN LATERAL (
        SELECT * FROM change_states WHERE revision >= page.revision AND revision <= page.revision
        ORDER BY revision LIMIT 1) c
) measured
WHERE coalesce(before, 0) < $3 ORDER BY place`

	// selectChangeKeysOf is selectChangesOf of the resource $3 to $5, without the states: it reads no values.
	selectChangeKeysOf = `
WITH r AS MATERIALIZED (SELECT * FROM resources WHERE "group" = $3 AND resource = $4 AND defined_by = $5)
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id,
       r."group", r.resource, r.defined_by, u.namespace, u.name, u.uid, u.replaces, u.created_revision
FROM r CROSS JOIN (
    SELECT * FROM undo_log
    WHERE (resource_id, revision) > ((SELECT id FROM r), $1) AND resource_id <= (SELECT id FROM r)
    ORDER BY resource_id, revision LIMIT $2) u
ORDER BY u.revision`
)

// Lists. The arguments are $1 group, $2 resource, $3 owner, $4 namespace, $5 the name of the
// position after which the list begins, $6 the only name to list (empty for all), $7
// revision, $8 limit (NULL for none), $9 whether to return values. A list is of a resource, a
// namespace, or one object. A list of what is current has no use for $7.
const (
	listResource = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
  AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND $7::bigint IS NOT NULL
ORDER BY namespace, name LIMIT $8`

	listNamespace = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
  AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND $7::bigint IS NOT NULL
ORDER BY namespace, name LIMIT $8`

	listObject = `
SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
  AND namespace = $4 AND name = $6 AND name > $5 AND $7::bigint IS NOT NULL
ORDER BY namespace, name LIMIT $8`

	countResource = `
SELECT count(*) FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
  AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND $7::bigint IS NOT NULL`

	countNamespace = `
SELECT count(*) FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
  AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND $7::bigint IS NOT NULL`
)

// Lists at a revision: the objects that were last written up to it, and the undo rows of objects
// that were replaced or deleted after it. These undo rows come from the whole history of the objects
// in the range (At), or from the changes of the resource after the revision if these are few (Since):
// of a list that goes on for minutes they are few, however long the history is. $10 is whether to return
// objects that were not replaced since.
//
// Each half has an ORDER BY of its own: without it the planner would not merge two index scans. The
// empty texts and the zero that Since adds to the columns keep the planner from using the index by
// key.
const (
	listResourceAt = `
SELECT * FROM ((
  SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
  FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND revision <= $7 AND $10
  ORDER BY namespace, name LIMIT $8
) UNION ALL (
  SELECT namespace, name, uid, created_revision, replaces, encoding, expires, CASE WHEN $9 THEN value END
  FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND replaces BETWEEN 1 AND $7 AND revision > $7
  ORDER BY namespace, name LIMIT $8
)) AS list
ORDER BY namespace, name LIMIT $8`

	listNamespaceAt = `
SELECT * FROM ((
  SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
  FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND revision <= $7 AND $10
  ORDER BY name LIMIT $8
) UNION ALL (
  SELECT namespace, name, uid, created_revision, replaces, encoding, expires, CASE WHEN $9 THEN value END
  FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND replaces BETWEEN 1 AND $7 AND revision > $7
  ORDER BY name LIMIT $8
)) AS list
ORDER BY name LIMIT $8`

	listObjectAt = `
SELECT * FROM ((
  SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
  FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name = $6 AND name > $5 AND revision <= $7 AND $10
) UNION ALL (
  SELECT namespace, name, uid, created_revision, replaces, encoding, expires, CASE WHEN $9 THEN value END
  FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name = $6 AND name > $5 AND replaces BETWEEN 1 AND $7 AND revision > $7
)) AS list LIMIT $8`

	listResourceSince = `
SELECT * FROM ((
  SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
  FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND revision <= $7 AND $10
  ORDER BY namespace, name LIMIT $8
) UNION ALL (
  SELECT namespace, name, uid, created_revision, replaces, encoding, expires, CASE WHEN $9 THEN value END
  FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND revision > $7 AND (namespace || '', name || '') > ($4, $5) AND ($6 = '' OR name || '' = $6) AND replaces + 0 BETWEEN 1 AND $7
  ORDER BY namespace || '', name LIMIT $8
)) AS list
ORDER BY namespace, name LIMIT $8`

	listNamespaceSince = `
SELECT * FROM ((
  SELECT namespace, name, uid, created_revision, revision, encoding, expires, CASE WHEN $9 THEN value END AS value
  FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND revision <= $7 AND $10
  ORDER BY name LIMIT $8
) UNION ALL (
  SELECT namespace, name, uid, created_revision, replaces, encoding, expires, CASE WHEN $9 THEN value END
  FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND revision > $7 AND namespace || '' = $4 AND name || '' > $5 AND ($6 = '' OR name || '' = $6) AND replaces + 0 BETWEEN 1 AND $7
  ORDER BY namespace || '', name LIMIT $8
)) AS list
ORDER BY name LIMIT $8`

	// countResourceAt counts the objects that exist now and were created up to the revision, and
	// those that existed then and were deleted later.
	countResourceAt = `
SELECT (
  SELECT count(*) FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6) AND created_revision <= $7
) + (
  SELECT count(*) FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND revision > $7 AND (namespace || '', name || '') > ($4, $5) AND ($6 = '' OR name || '' = $6) AND op = 'delete' AND created_revision <= $7
)`

	countNamespaceAt = `
SELECT (
  SELECT count(*) FROM current_objects
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6) AND created_revision <= $7
) + (
  SELECT count(*) FROM undo_log
  WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
    AND revision > $7 AND namespace || '' = $4 AND name || '' > $5 AND ($6 = '' OR name || '' = $6) AND op = 'delete' AND created_revision <= $7
)`
)

// A whole store: ReadSnapshot and Load.
const (
	// configureScan has the server read rows in the order of an index, instead of sorting
	// a table first. It turns off the time-outs of the role or the database, as pg_dump does: the
	// transaction is idle while the snapshot is written to a slow place. PostgreSQL has
	// transaction_timeout from version 17 on.
	configureScan = `
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
       (SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'), set_config('enable_sort', 'off', true),
       set_config('enable_incremental_sort', 'off', true), set_config('enable_seqscan', 'off', true)`

	selectHeader = `
SELECT k.revision, k.compacted,
       greatest(s.complete_after, (SELECT max(coalesce(complete_after, compacted)) FROM resources)),
       k.epoch, clock_timestamp(), (SELECT count(*) FROM current_objects)
FROM counters k, store s WHERE k.id = 1 AND s.id = 1`

	// selectObjects reads the objects of one resource, $1 to $3, in key order.
	selectObjects = `
SELECT namespace, name, uid, generation, created_revision, revision,
       time, verb, subresource, manager, who, real_user, encoding, expires, value
FROM current_objects
WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
ORDER BY namespace, name`

	selectUndo = `
SELECT revision, time, op, verb, subresource, manager, who, real_user, audit_id, "group", resource, defined_by,
       namespace, name, uid, replaces, created_revision, encoding, expires, value
FROM changes ORDER BY revision`

	// lockStore keeps all other sessions from the tables until the transaction ends.
	lockStore = `LOCK TABLE store, resources, current_objects, undo_log IN ACCESS EXCLUSIVE MODE`

	// configureLoad turns off the same time-outs as configureScan.
	configureLoad = `
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
       (SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'), set_config('lock_timeout', $1, true)`

	// countData is 0 in a store in which no change was ever made.
	countData = `SELECT (SELECT count(*) FROM current_objects) + (SELECT count(*) FROM undo_log) + (SELECT revision FROM store)`

	setStore = `UPDATE store SET revision = $1, compacted = $2, complete_after = $3, epoch = $4, lineage = '' WHERE id = 1`

	analyze = `ANALYZE resources, current_objects, undo_log`
)

var (
	resourceColumns = []string{"id", "group", "resource", "defined_by", "compacted", "complete_after", "retained_for"}
	objectColumns   = []string{
		"resource_id", "namespace", "name", "uid", "generation", "created_revision", "revision",
		"time", "verb", "subresource", "manager", "who", "real_user", "encoding", "expires", "value",
	}
	undoColumns = []string{
		"revision", "time", "op", "verb", "subresource", "manager", "who", "real_user", "audit_id", "resource_id",
		"namespace", "name",
		"uid", "replaces", "created_revision", "encoding", "expires", "value",
	}
)
