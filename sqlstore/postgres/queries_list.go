package postgres

// Lists. The arguments are $1 group, $2 resource, $3 owner, $4 namespace, $5 the name of the
// position after which the list begins, $6 the only name to list (empty for all), $7
// revision, $8 limit (NULL for none), $9 whether to return values.
//
// Each statement is a constant expression that joins the text of a range (a resource, a
// namespace, one object) and of a time. The time is now, or a revision: then the list has the
// objects that were last written up to that revision, and the undo rows of objects that were
// replaced or deleted after it.
//
// The undo rows come from the changes of the resource after the revision if these are few
// (since), and else from the whole history of the objects in the range (by key): of a list that
// goes on for minutes they are few, however long the history is. The empty texts and the zero that
// since adds to the columns keep the planner from using the index by key.
const (
	ofResource  = `resource_id = (SELECT id FROM resources WHERE "group" = $1 AND resource = $2 AND defined_by = $3)`
	inResource  = ofResource + ` AND (namespace, name) > ($4, $5) AND ($6 = '' OR name = $6)`
	inNamespace = ofResource + ` AND namespace = $4 AND name > $5 AND ($6 = '' OR name = $6)`
	inObject    = ofResource + ` AND namespace = $4 AND name = $6 AND name > $5`

	sinceInResource  = ofResource + ` AND revision > $7 AND (namespace || '', name || '') > ($4, $5) AND ($6 = '' OR name || '' = $6)`
	sinceInNamespace = ofResource + ` AND revision > $7 AND namespace || '' = $4 AND name || '' > $5 AND ($6 = '' OR name || '' = $6)`

	columnsNow = `SELECT namespace, name, uid, created_revision, revision, form, expires, CASE WHEN $9 THEN value END AS value FROM current_objects WHERE `
	columnsOld = `SELECT namespace, name, uid, created_revision, replaces, form, expires, CASE WHEN $9 THEN value END FROM undo_log WHERE `

	always    = ` AND $7::bigint IS NOT NULL`
	stillThen = ` AND revision <= $7`
	gone      = ` AND replaces BETWEEN 1 AND $7 AND revision > $7`
	goneSince = ` AND replaces + 0 BETWEEN 1 AND $7`
	inOrder   = ` ORDER BY namespace, name LIMIT $8`
	byName    = ` ORDER BY name LIMIT $8`
	sorted    = ` ORDER BY namespace || '', name LIMIT $8`

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

	listResourceSince = merged + columnsNow + inResource + stillThen + inOrder + with +
		columnsOld + sinceInResource + goneSince + sorted + end + inOrder
	listNamespaceSince = merged + columnsNow + inNamespace + stillThen + byName + with +
		columnsOld + sinceInNamespace + goneSince + sorted + end + byName

	merged = `SELECT * FROM ((`
	with   = `) UNION ALL (`
	end    = `)) AS list`

	countNow = `SELECT count(*) FROM current_objects WHERE `
	countOld = `SELECT count(*) FROM undo_log WHERE `

	countResource  = countNow + inResource + always
	countNamespace = countNow + inNamespace + always
	// What existed at a revision exists now and was created up to it, or was deleted later.
	createdThen      = ` AND created_revision <= $7`
	deletedLater     = ` AND op = 'delete' AND created_revision <= $7`
	countResourceAt  = `SELECT (` + countNow + inResource + createdThen + `) + (` + countOld + sinceInResource + deletedLater + `)`
	countNamespaceAt = `SELECT (` + countNow + inNamespace + createdThen + `) + (` + countOld + sinceInNamespace + deletedLater + `)`
)

// A whole store: ReadSnapshot and Load.
const (
	// configureScan has the server read rows in the order of an index, instead of sorting
	// a table first, and turns off statement_timeout.
	configureScan = `
SELECT set_config('statement_timeout', '0', true), set_config('enable_sort', 'off', true),
       set_config('enable_incremental_sort', 'off', true), set_config('enable_seqscan', 'off', true)`

	selectHeader = `
SELECT k.revision, k.compacted, k.epoch, clock_timestamp(), (SELECT count(*) FROM current_objects) FROM counters k WHERE k.id = 1`

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

	configureLoad = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', $1, true)`

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
