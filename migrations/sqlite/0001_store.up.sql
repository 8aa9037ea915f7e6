-- What is current apart from what was: current_objects has one row an object, undo_log one
-- row a revision. A row of undo_log holds what its revision replaced, so that a create
-- writes its value once, and forgetting history deletes rows and moves none.
--
-- People read the views objects, changes, history and counters.

-- Invariant: the last revision is the greater of store.revision and the newest change's. A
-- deletion of changes raises store.revision to what it deletes in the same transaction. So
-- the revision never goes back.
CREATE TABLE store (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    program       TEXT    NOT NULL CHECK (program = 'byre'),
    -- programs whose latest schema is older than this one must not use the database
    least_version INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    -- every change after this revision is in undo_log: the greatest of resources.compacted
    compacted     INTEGER NOT NULL,
    -- changes when commits were lost, or a restore puts other data here
    epoch         TEXT    NOT NULL,
    -- what the file beside this one, byre.db.lineage, repeats; '' until a process serves
    -- the store. Any other text declares that commits may be lost.
    lineage       TEXT    NOT NULL DEFAULT '',
    CHECK (0 <= compacted AND compacted <= revision)
) STRICT;

INSERT INTO store (id, program, least_version, revision, compacted, epoch)
VALUES (1, 'byre', 1, 0, 0, lower(hex(randomblob(16))));

-- The resources that have ever had an object. A row is never deleted, and its id never
-- changes. 'builtin' is what the program defines, 'custom' what a CustomResourceDefinition
-- does: the two never share a row, whatever the definition calls its resource.
CREATE TABLE resources (
    id         INTEGER PRIMARY KEY,
    "group"    TEXT    NOT NULL,
    resource   TEXT    NOT NULL,
    defined_by TEXT    NOT NULL CHECK (defined_by IN ('builtin', 'custom')),
    -- every change of the resource after this revision is in undo_log
    compacted  INTEGER NOT NULL,
    -- the seconds for which the last server has kept the history: -1 is for ever, 0 not known
    retained_for INTEGER NOT NULL DEFAULT 0,
    UNIQUE ("group", resource, defined_by)
) STRICT;

-- The rowid is the revision that created the object: each revision creates at most one. So
-- an update leaves the row where it is, and touches no index on the key.
--
-- Checksums (CRC-32C), because SQLite has none: a byte that the disk changes inside a value
-- would else be served. record_sum is of a record, in undo_log of the replaced one;
-- change_sum is of who changed what, when.
CREATE TABLE current_objects (
    created_revision INTEGER PRIMARY KEY,
    revision         INTEGER NOT NULL,
    resource_id      INTEGER NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    time             TEXT    NOT NULL,
    verb             TEXT    NOT NULL,
    subresource      TEXT    NOT NULL,
    manager          TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    real_user        TEXT    NOT NULL,
    form             TEXT    NOT NULL,
    expires          TEXT,
    value            TEXT    NOT NULL,
    record_sum       INTEGER,
    change_sum       INTEGER
) STRICT;

CREATE UNIQUE INDEX current_objects_key ON current_objects (resource_id, namespace, name);
CREATE INDEX current_objects_expires ON current_objects (expires) WHERE expires IS NOT NULL;

CREATE TABLE undo_log (
    revision         INTEGER PRIMARY KEY,
    resource_id      INTEGER NOT NULL,
    time             TEXT    NOT NULL,
    op               TEXT    NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             TEXT    NOT NULL,
    subresource      TEXT    NOT NULL,
    manager          TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    real_user        TEXT    NOT NULL,
    audit_id         TEXT    NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    -- the revision this one replaced, 0 for a create; form, expires and value
    -- are of that revision
    replaces         INTEGER NOT NULL,
    created_revision INTEGER NOT NULL,
    form             TEXT,
    expires          TEXT,
    value            TEXT,
    record_sum       INTEGER,
    change_sum       INTEGER
) STRICT;

-- Ends in the rowid, the revision: serves the changes of one resource in their order.
CREATE INDEX undo_log_resource ON undo_log (resource_id);
-- Serves the history of one object and the successor of a revision (key and replaces).
CREATE INDEX undo_log_key ON undo_log (resource_id, namespace, name, replaces);

-- What the planner assumes before somebody runs ANALYZE: few resources, many rows of each.
-- Without it, a query by the name of a resource would scan all objects.
ANALYZE;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('resources', 'sqlite_autoindex_resources_1', '100 2 1 1'),
    ('current_objects', 'current_objects_key', '100000 1000 100 1'),
    ('current_objects', 'current_objects_expires', '10000 2'),
    ('undo_log', 'undo_log_resource', '1000000 10000'),
    ('undo_log', 'undo_log_key', '1000000 10000 1000 10 1');

CREATE VIEW counters AS
SELECT s.id, s.program,
       max(s.revision, coalesce((SELECT max(u.revision) FROM undo_log u), 0)) AS revision,
       s.compacted, s.epoch
FROM store s;

CREATE VIEW objects AS
SELECT o.revision, r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid, o.generation, o.created_revision,
       o.time, o.verb, o.subresource, o.manager, o.who, o.real_user, o.form, o.expires, o.value
FROM current_objects o JOIN resources r ON r.id = o.resource_id;

CREATE VIEW changes AS
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id,
       r."group", r.resource, r.defined_by, u.namespace, u.name, u.uid, u.replaces, u.created_revision,
       u.form, u.expires, u.value
FROM undo_log u JOIN resources r ON r.id = u.resource_id;

-- History the way a person reads it: value is the object's at that revision, NULL for a
-- delete; replaced is what was there before. An object that has not changed since the
-- history of its resource was deleted appears with its current revision. After a new epoch that
-- revision may be in undo_log too.
CREATE VIEW history AS
SELECT u.revision, u.time, u.op, u.verb, u.subresource, u.manager, u.who, u.real_user, u.audit_id,
       r."group", r.resource, r.defined_by, u.namespace, u.name, u.uid,
       CASE WHEN u.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM undo_log n
            WHERE n.resource_id = u.resource_id AND n.namespace = u.namespace AND n.name = u.name
              AND n.replaces = u.revision),
           (SELECT o.value FROM current_objects o WHERE o.created_revision = u.created_revision AND o.revision = u.revision))
       END AS value,
       u.value AS replaced
FROM undo_log u JOIN resources r ON r.id = u.resource_id
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.subresource, o.manager, o.who, o.real_user, '',
       r."group", r.resource, r.defined_by, o.namespace, o.name, o.uid,
       o.value, NULL
FROM current_objects o JOIN resources r ON r.id = o.resource_id
WHERE o.revision <= r.compacted AND NOT EXISTS (SELECT 1 FROM undo_log u WHERE u.revision = o.revision);
