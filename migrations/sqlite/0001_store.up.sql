-- What is current apart from what was: objects has one row an object, changes
-- one row a revision. A row of changes holds what its revision replaced (an
-- undo log), so that a create writes its value once, and forgetting history is
-- one range delete.

CREATE TABLE counters (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    program   TEXT    NOT NULL CHECK (program = 'byre'),
    -- the last revision given; never computed from rows, so that neither
    -- deletes nor compaction can turn it back
    revision  INTEGER NOT NULL,
    -- the last revision whose history is gone
    compacted INTEGER NOT NULL,
    -- changes when a restore puts other data here
    epoch     TEXT    NOT NULL,
    CHECK (0 <= compacted AND compacted <= revision)
) STRICT;

INSERT INTO counters (id, program, revision, compacted, epoch)
VALUES (1, 'byre', 0, 0, lower(hex(randomblob(16))));

-- The rowid is the revision: a write goes to the end of the table, whatever
-- its key, and a record is found by revision without another index.
CREATE TABLE objects (
    revision         INTEGER PRIMARY KEY,
    "group"          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    created_revision INTEGER NOT NULL,
    time             TEXT    NOT NULL,
    verb             TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    form             TEXT    NOT NULL,
    expires          TEXT,
    value            TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX objects_key ON objects ("group", resource, namespace, name);
CREATE INDEX objects_expires ON objects (expires) WHERE expires IS NOT NULL;

CREATE TABLE changes (
    revision         INTEGER PRIMARY KEY,
    time             TEXT    NOT NULL,
    op               TEXT    NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    audit_id         TEXT    NOT NULL,
    "group"          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    -- the revision this one replaced, 0 for a create; form, expires and value
    -- are of that revision
    replaces         INTEGER NOT NULL,
    created_revision INTEGER NOT NULL,
    form             TEXT,
    expires          TEXT,
    value            TEXT
) STRICT;

-- Serves the history of one object, the successor of a revision (key and
-- replaces), and lists at an older revision (the rowid is in it too).
CREATE INDEX changes_key ON changes ("group", resource, namespace, name, replaces);

-- History the way a person reads it: value is the object's at that revision,
-- NULL for a delete; replaced is what was there before. An object that has not
-- changed since history was compacted appears with its current revision.
CREATE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o WHERE o.revision = c.revision))
       END AS value,
       c.value AS replaced
FROM changes c
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM counters k);
