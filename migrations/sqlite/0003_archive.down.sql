-- The archive is history that the schema before has no place for: it goes.
DROP VIEW history;
DROP TABLE archive;
ALTER TABLE changes DROP COLUMN change_sum;
ALTER TABLE changes DROP COLUMN record_sum;

-- Revisions that were given in memory only are skipped, as at a start: the schema before
-- can't say that there were any.
UPDATE store SET compacted = reserved, revision = reserved, epoch = lower(hex(randomblob(16)))
WHERE reserved > (SELECT revision FROM counters);
DELETE FROM changes WHERE revision <= (SELECT compacted FROM store);

DROP TRIGGER counters_update;
DROP VIEW counters;
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
SELECT id, program, max(revision, coalesce((SELECT max(c.revision) FROM changes c), 0)), compacted, epoch FROM store;
DROP TABLE store;

ALTER TABLE objects RENAME TO moved;
DROP INDEX objects_key;
DROP INDEX objects_expires;
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

ALTER TABLE objects ADD COLUMN owner TEXT NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom'));
INSERT INTO objects (revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, expires, value, owner)
SELECT revision, "group", resource, namespace, name, uid, created_revision, time, verb, who, form, expires, value, owner
FROM moved ORDER BY revision;
DROP TABLE moved;
CREATE UNIQUE INDEX objects_key ON objects ("group", resource, owner, namespace, name);
CREATE INDEX objects_expires ON objects (expires) WHERE expires IS NOT NULL;

CREATE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o WHERE o.revision = c.revision))
       END AS value,
       c.value AS replaced,
       c.owner
FROM changes c
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL,
       o.owner
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM counters k);
