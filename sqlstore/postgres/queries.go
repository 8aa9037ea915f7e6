package postgres

const selectServer = `
SELECT pg_backend_pid(), current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'), coalesce(current_setting('neon.timeline_id', true), ''), (SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery(),
       to_regclass(quote_ident(current_schema()) || '.byre_schema') IS NOT NULL`

// The lineage of a server is the system identifier of its data and its timeline:
// "@7000000000000000000/1". A standby that is promoted begins a new timeline, and so does a
// recovery to a point in time. A server on which a dump is restored has another identifier.
const (
	selectLineage = `
SELECT '@' || system_identifier || '/' || ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
FROM pg_control_system()`
	selectEpoch = `SELECT epoch FROM store WHERE id = 1`
	markEpoch   = `UPDATE store SET epoch = epoch || $2 WHERE id = 1 AND epoch = $1`
)

const selectMigrated = `SELECT to_regclass(quote_ident(current_schema()) || '.byre_schema') IS NOT NULL`

// The state of the store. Every read selects it in its own snapshot; see observation. $1 is
// the revision of the driver's position.
const (
	stateColumns = `
SELECT greatest(s.revision, l.revision), s.compacted, s.epoch, clock_timestamp(), l.time, l.uid, h.time, h.uid,
       pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean`

	// fromStore finds the newest change (l) from the end of the primary key, and the
	// change at the driver's position (h). store.revision is at least the compacted
	// revision; a batch does not change it, and so the newest change may be after it.
	fromStore = `
FROM store s
LEFT JOIN LATERAL (SELECT c.revision, c.time, c.uid FROM changes c WHERE c.revision >= s.revision
                   ORDER BY c.revision DESC LIMIT 1) l ON true
LEFT JOIN changes h ON h.revision = $1`

	selectState = stateColumns + fromStore + ` WHERE s.id = 1`
)

// The statements of a batch.
const (
	begin    = `BEGIN ISOLATION LEVEL READ COMMITTED`
	commit   = `COMMIT`
	rollback = `ROLLBACK`

	// configure makes the settings for the transaction if $2 is true, and otherwise for the
	// session. applyBatch then gets one generic plan for all batches: it uses the indexes
	// even while the tables are small, and work_mem keeps the values of a batch in memory.
	configure = `
SELECT set_config('lock_timeout', $1, $2), set_config('plan_cache_mode', 'force_generic_plan', $2),
       set_config('enable_seqscan', 'off', $2), set_config('enable_hashjoin', 'off', $2),
       set_config('enable_mergejoin', 'off', $2), set_config('jit', 'off', $2),
       set_config('work_mem', '64MB', $2)`

	// lock takes the writers' lock. It is a statement of its own, so that the snapshot of
	// the next statement is younger than the lock. It waits up to lock_timeout. The
	// statement_timeout $1 that it sets is for the statement after it.
	lock = `SELECT set_config('statement_timeout', $1, true) FROM store WHERE id = 1 FOR UPDATE`

	// unlimited turns off statement_timeout for the COMMIT, also one that is set for the
	// role. It would end the wait for a synchronous standby as a cancel request does.
	unlimited = `SELECT set_config('statement_timeout', '0', true)`

	// applyBatch makes the writes whose preconditions hold (asked.effective), gives them
	// the next revisions in their order, and returns one row for each write of the batch.
	// All of its parts see the state of before the statement. $1 to $14 are the arrays of
	// Driver.Commit. $15 is the revision of the driver's position, $16 its epoch, $17 its
	// time and $18 its UID: if the store does not hold the position (asked.holds is
	// false), applyBatch writes nothing.
	applyBatch = `
WITH k AS MATERIALIZED (
    SELECT s.epoch, l.revision,
           $15::bigint = 0 OR s.epoch = $16::text AND ($15 <= s.compacted OR $17::text = '' AND $15 <= l.revision OR EXISTS (
               SELECT FROM changes h
               WHERE h.revision = $15 AND h.time = NULLIF($17, '')::timestamptz AND h.uid = $18::text)) AS holds
    FROM store s
    CROSS JOIN LATERAL (SELECT greatest(s.revision, (SELECT c.revision FROM changes c WHERE c.revision >= s.revision
                                                     ORDER BY c.revision DESC LIMIT 1)) AS revision) l
    WHERE s.id = 1
), asked AS MATERIALIZED (
    SELECT w.*, NULLIF(w.expiry, '')::timestamptz AS expires, statement_timestamp() AS time,
           o.revision AS current, o.created_revision AS created, o.uid AS old_uid, o.form AS old_form,
           o.expires AS old_expires, o.value AS old_value, k.epoch, k.holds,
           k.holds AND coalesce(o.revision, 0) = w.replaces AS effective,
           k.revision + sum((coalesce(o.revision, 0) = w.replaces)::int) OVER (ORDER BY w.n)::bigint AS revision
    FROM k
    CROSS JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                      $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[]) WITH ORDINALITY
         AS w(op, "group", resource, owner, namespace, name, replaces, uid, form, expiry, value, who, verb, audit_id, n)
    LEFT JOIN objects o ON o."group" = w."group" AND o.resource = w.resource
         AND o.owner = w.owner AND o.namespace = w.namespace AND o.name = w.name
), logged AS (
    INSERT INTO changes (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
                         uid, replaces, created_revision, form, expires, value)
    SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
           coalesce(old_uid, uid), replaces, coalesce(created, revision), old_form, old_expires, old_value
    FROM asked WHERE effective
), created AS (
    INSERT INTO objects (revision, "group", resource, owner, namespace, name, uid, created_revision,
                         time, verb, who, form, expires, value)
    SELECT revision, "group", resource, owner, namespace, name, uid, revision, time, verb, who, form, expires, value
    FROM asked WHERE effective AND op = 'create'
), updated AS (
    UPDATE objects o SET revision = a.revision, uid = a.uid, time = a.time, verb = a.verb, who = a.who,
                         form = a.form, expires = a.expires, value = a.value
    FROM asked a
    WHERE a.effective AND a.op = 'update' AND o."group" = a."group" AND o.resource = a.resource
      AND o.owner = a.owner AND o.namespace = a.namespace AND o.name = a.name
), deleted AS (
    DELETE FROM objects o USING asked a
    WHERE a.effective AND a.op = 'delete' AND o."group" = a."group" AND o.resource = a.resource
      AND o.owner = a.owner AND o.namespace = a.namespace AND o.name = a.name
)
SELECT effective, revision, time, coalesce(current, 0), coalesce(created, revision), coalesce(old_uid, ''),
       coalesce(octet_length(old_value), 0), holds, epoch
FROM asked ORDER BY n`

	// newEpoch begins a new epoch if the store does not hold the position with revision
	// $1, time $2 and UID $3. If the time is empty, because the row was compacted when the
	// position was read, the revision alone decides, as in applyBatch. The new epoch is $4
	// revisions beyond the last one. $5 is the lineage of the server.
	newEpoch = `
UPDATE store s SET revision = n.revision, compacted = n.revision,
       epoch = md5(random()::text || clock_timestamp()::text) || $5::text
FROM (SELECT k.revision AS last, greatest(k.revision, $1::bigint) + $4::bigint AS revision FROM counters k WHERE k.id = 1) n
WHERE s.id = 1 AND s.compacted < $1 AND NOT ($2::text = '' AND $1 <= n.last) AND NOT EXISTS (
    SELECT FROM changes h WHERE h.revision = $1 AND h.time = NULLIF($2, '')::timestamptz AND h.uid = $3::text)
RETURNING s.revision`

	// moveEpoch begins a new epoch if the store is still in epoch $1. The new epoch is $2
	// revisions beyond the last one. $3 is the lineage of the server.
	moveEpoch = `
UPDATE store s SET revision = n.revision, compacted = n.revision,
       epoch = md5(random()::text || clock_timestamp()::text) || $3::text
FROM (SELECT k.revision + $2::bigint AS revision FROM counters k WHERE k.id = 1) n
WHERE s.id = 1 AND s.epoch = $1
RETURNING s.revision`

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

// Compaction and advisory locks.
const (
	// deleteChanges deletes the $2 oldest changes up to revision $1. After a new epoch began
	// there are rows of compacted revisions, which it deletes too.
	deleteChanges = `
DELETE FROM changes WHERE revision <= (
    SELECT max(revision) FROM (SELECT revision FROM changes WHERE revision <= $1 ORDER BY revision LIMIT $2) oldest)`
	// updateCompacted also raises store.revision, so that the last revision does not
	// depend on the rows that deleteChanges deletes.
	updateCompacted = `
UPDATE store SET compacted = greatest(compacted, $1), revision = greatest(revision, $1) WHERE id = 1`

	// The archive. $1 and $2 bound the revisions of the changes that are copied.
	// insertArchive appends empty texts to the columns so that the planner does not use the
	// index by key, in which it would read all changes of the resource.
	selectResources = `SELECT DISTINCT "group", resource FROM changes WHERE revision > $1 AND revision <= $2`

	insertArchive = `
INSERT INTO archive (revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
                     uid, replaces, created_revision, form, expires, value)
SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name,
       uid, replaces, created_revision, form, expires, value
FROM changes WHERE revision > $1 AND revision <= $2 AND "group" || '' = $3 AND resource || '' = $4
ON CONFLICT DO NOTHING`

	selectNextArchived = `
SELECT "group", resource FROM archive WHERE ("group", resource) > ($1, $2) ORDER BY "group", resource LIMIT 1`

	deleteArchived = `
DELETE FROM archive WHERE revision = ANY(ARRAY(
    SELECT revision FROM archive WHERE "group" = $1 AND resource = $2 AND time < $3::text::timestamptz ORDER BY time LIMIT $4))`

	// configureCompact turns off sequential scans, which the planner would choose in a
	// generic plan because it expects that most rows match.
	configureCompact = `SELECT set_config('lock_timeout', $1, true), set_config('enable_seqscan', 'off', true)`

	idleTimeout = `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`
	tryLock     = `SELECT pg_try_advisory_xact_lock(hashtextextended('byre ' || current_schema() || ' ' || $1, 0))`
	tryShare    = `SELECT pg_try_advisory_xact_lock_shared(hashtextextended('byre ' || current_schema() || ' ' || $1, 0))`
	touch       = `SELECT 1`

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
	beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

	// selectUsage reads no values: PostgreSQL stores the length of a value apart, also if
	// the value is compressed or out of line.
	selectUsage = `
SELECT "group", resource, owner, count(*), sum(octet_length(value))::bigint
FROM objects GROUP BY "group", resource, owner`

	// selectSize adds up the tables of the schema with their indexes and TOAST tables. The
	// database may have other schemas, which do not count.
	selectSize = `
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class c
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind = 'r'`

	// selectObject also returns a row if the object does not exist: then only the columns
	// of the state are set.
	selectObject = stateColumns + `, o.uid, o.created_revision, o.revision, o.form, o.expires, o.value` + fromStore + `
LEFT JOIN objects o ON o."group" = $2 AND o.resource = $3 AND o.owner = $4 AND o.namespace = $5 AND o.name = $6
WHERE s.id = 1`

	selectExpired = `
SELECT "group", resource, owner, namespace, name, uid, created_revision, revision, expires
FROM objects WHERE expires IS NOT NULL AND expires <= $1::text::timestamptz ORDER BY expires LIMIT $2`

	// selectChanges finds the value that each change wrote in the next change of the same
	// key, which has replaced it, or else in the object, which still has it. The LIMITs in
	// the subqueries have the planner do one index lookup for each change. octet_length
	// does not read the values.
	selectChanges = `
WITH c AS MATERIALIZED (
    SELECT * FROM changes WHERE revision > $1 ORDER BY revision LIMIT $2
), written AS (
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.owner, c.namespace, c.name, c.uid, c.replaces, c.created_revision, c.form, c.expires, c.value,
       coalesce(n.uid, o.uid) AS new_uid, coalesce(n.form, o.form) AS new_form,
       CASE WHEN n.form IS NULL THEN o.expires ELSE n.expires END AS new_expires, coalesce(n.value, o.value) AS new_value
FROM c
LEFT JOIN LATERAL (
    SELECT uid, form, expires, value FROM changes n
    WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner AND n.namespace = c.namespace AND n.name = c.name
      AND n.replaces = c.revision LIMIT 1) n ON true
LEFT JOIN LATERAL (
    SELECT uid, form, expires, value FROM objects o
    WHERE o."group" = c."group" AND o.resource = c.resource AND o.owner = c.owner AND o.namespace = c.namespace AND o.name = c.name
      AND o.revision = c.revision LIMIT 1) o ON true
), measured AS (
SELECT *, sum(coalesce(octet_length(value), 0) + coalesce(octet_length(new_value), 0))
          OVER (ORDER BY revision ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM written
)
SELECT revision, time, op, verb, who, audit_id,
       "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value,
       new_uid, new_form, new_expires, new_value
FROM measured WHERE coalesce(before, 0) < $3 ORDER BY revision`
)

// Lists. The arguments are $1 group, $2 resource, $3 owner, $4 namespace, $5 the name of the
// position after which the list begins, $6 the only name to list (empty for all), $7
// revision, $8 limit (NULL for none), $9 whether to return values.
//
// Each statement is a constant expression that joins the text of a range (a resource, a
// namespace, one object) and of a time. The time is now, or a revision: then the list has the
// objects that were last written up to that revision, and the undo rows of objects that were
// replaced or deleted after it.
const (
	inResource  = `"group" = $1 AND resource = $2 AND owner = $3 AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6)`
	inNamespace = `"group" = $1 AND resource = $2 AND owner = $3 AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6)`
	inObject    = `"group" = $1 AND resource = $2 AND owner = $3 AND namespace = $4 AND name = $6 AND name > $5`

	columnsNow = `SELECT namespace, name, uid, created_revision, revision, form, expires, CASE WHEN $9 THEN value END AS value FROM objects WHERE `
	columnsOld = `SELECT namespace, name, uid, created_revision, replaces, form, expires, CASE WHEN $9 THEN value END FROM changes WHERE `

	always    = ` AND $7::bigint IS NOT NULL`
	stillThen = ` AND revision <= $7`
	gone      = ` AND replaces BETWEEN 1 AND $7 AND revision > $7`
	inOrder   = ` ORDER BY namespace, name LIMIT $8`
	byName    = ` ORDER BY name LIMIT $8`

	listResource  = columnsNow + inResource + always + inOrder
	listNamespace = columnsNow + inNamespace + always + inOrder
	listObject    = columnsNow + inObject + always + inOrder

	// Each half has an ORDER BY of its own: without it the planner would not merge two
	// index scans.
	listResourceAt = merged + columnsNow + inResource + stillThen + inOrder + with +
		columnsOld + inResource + gone + inOrder + end + inOrder
	listNamespaceAt = merged + columnsNow + inNamespace + stillThen + byName + with +
		columnsOld + inNamespace + gone + byName + end + byName
	listObjectAt = merged + columnsNow + inObject + stillThen + with + columnsOld + inObject + gone + end + ` LIMIT $8`

	merged = `SELECT * FROM ((`
	with   = `) UNION ALL (`
	end    = `)) AS list`

	countNow = `SELECT count(*) FROM objects WHERE `
	countOld = `SELECT count(*) FROM changes WHERE `

	countResource    = countNow + inResource + always
	countNamespace   = countNow + inNamespace + always
	countResourceAt  = `SELECT (` + countNow + inResource + stillThen + `) + (` + countOld + inResource + gone + `)`
	countNamespaceAt = `SELECT (` + countNow + inNamespace + stillThen + `) + (` + countOld + inNamespace + gone + `)`
)

// A whole store: ReadSnapshot and Load.
const (
	// configureScan has the server read rows in the order of an index, instead of sorting
	// a table first, and turns off statement_timeout.
	configureScan = `
SELECT set_config('statement_timeout', '0', true), set_config('enable_sort', 'off', true),
       set_config('enable_incremental_sort', 'off', true), set_config('enable_seqscan', 'off', true)`

	selectHeader = `
SELECT k.revision, k.compacted, split_part(k.epoch, '@', 1), clock_timestamp(), (SELECT count(*) FROM objects) FROM counters k WHERE k.id = 1`

	selectObjects = `
SELECT "group", resource, owner, namespace, name, uid, created_revision, revision, time, verb, who, form, expires, value
FROM objects ORDER BY "group", resource, owner, namespace, name`

	// selectUndo reads the rows of archive up to the compacted revision, and then those of
	// changes. Each half has an ORDER BY of its own, so that the server merges two index
	// scans instead of sorting.
	selectUndo = `
SELECT * FROM (
    (SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value
     FROM archive WHERE revision <= (SELECT compacted FROM store) ORDER BY revision)
    UNION ALL
    (SELECT revision, time, op, verb, who, audit_id, "group", resource, owner, namespace, name, uid, replaces, created_revision, form, expires, value
     FROM changes WHERE revision > (SELECT compacted FROM store) ORDER BY revision)
) AS undo ORDER BY revision`

	// lockStore keeps all other sessions from the tables until the transaction ends.
	lockStore = `LOCK TABLE store, objects, changes, archive IN ACCESS EXCLUSIVE MODE`

	configureLoad = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', $1, true)`

	// countData is 0 in a store in which no change was ever made.
	countData = `SELECT (SELECT count(*) FROM objects) + (SELECT count(*) FROM changes) + (SELECT revision FROM store)`

	// setStore removes the lineage of another server from the epoch.
	setStore = `UPDATE store SET revision = $1, compacted = $2, epoch = split_part($3, '@', 1) WHERE id = 1`

	analyze = `ANALYZE objects, changes, archive`
)

var (
	objectColumns = []string{
		"group", "resource", "owner", "namespace", "name", "uid", "created_revision", "revision",
		"time", "verb", "who", "form", "expires", "value",
	}
	undoColumns = []string{
		"revision", "time", "op", "verb", "who", "audit_id", "group", "resource", "owner", "namespace", "name",
		"uid", "replaces", "created_revision", "form", "expires", "value",
	}
)
