package postgres

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
SELECT k.revision, k.compacted, k.epoch, clock_timestamp(), (SELECT count(*) FROM current_objects)
FROM counters k WHERE k.id = 1`

	// selectObjects reads the objects of one resource, $1 to $3, in key order.
	selectObjects = `
SELECT namespace, name, uid, generation, created_revision, revision, time, verb, subresource, manager, who, real_user, form, expires, value
FROM current_objects WHERE resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)
ORDER BY namespace, name`

	selectUndo = `
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id, r."group", r.resource, r.defined_by,
       u.namespace, u.name, u.uid, u.replaces, u.created_revision, u.form, u.expires, u.value
FROM undo_log u JOIN resources r ON r.id = u.resource_id
ORDER BY u.revision`

	// lockStore keeps all other sessions from the tables until the transaction ends.
	lockStore = `LOCK TABLE store, resources, current_objects, undo_log IN ACCESS EXCLUSIVE MODE`

	// configureLoad turns off the same time-outs as configureScan.
	configureLoad = `
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
       (SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'), set_config('lock_timeout', $1, true)`

	// countData is 0 in a store in which no change was ever made.
	countData = `SELECT (SELECT count(*) FROM current_objects) + (SELECT count(*) FROM undo_log) + (SELECT revision FROM store)`

	setStore = `UPDATE store SET revision = $1, compacted = $2, epoch = $3, lineage = '' WHERE id = 1`

	analyze = `ANALYZE resources, current_objects, undo_log`
)

var (
	resourceColumns = []string{"id", "group", "resource", "defined_by", "compacted", "retained_for"}
	objectColumns   = []string{
		"resource_id", "namespace", "name", "uid", "generation", "created_revision", "revision",
		"time", "verb", "subresource", "manager", "who", "real_user", "form", "expires", "value",
	}
	undoColumns = []string{
		"revision", "time", "op", "verb", "subresource", "manager", "who", "real_user", "audit_id", "resource_id", "namespace", "name",
		"uid", "replaces", "created_revision", "form", "expires", "value",
	}
)
