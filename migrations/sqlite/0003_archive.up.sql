DROP VIEW history;

-- Less is written for each change. The revision of an object is no longer its rowid:
-- an update leaves the row where it is and touches no index on the key. And the last
-- revision is that of the newest change, not a counter that each transaction updates.

-- Invariant: the last revision is the greater of store.revision and the newest
-- change's. Changes go only by compaction, which raises store.revision to what it
-- deletes in the same transaction. So the revision never goes back.
CREATE TABLE store (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    program   TEXT    NOT NULL CHECK (program = 'byre'),
    revision  INTEGER NOT NULL,
    -- the last revision whose history is gone
    compacted INTEGER NOT NULL,
    -- changes when commits were lost, or a restore puts other data here
    epoch     TEXT    NOT NULL,
    -- revisions up to this one may have been given to changes that were in memory
    -- only when the process ended; 0 where none were
    reserved  INTEGER NOT NULL DEFAULT 0,
    CHECK (0 <= compacted AND compacted <= revision)
) STRICT;

INSERT INTO store (id, program, revision, compacted, epoch)
SELECT id, program, revision, compacted, epoch FROM counters;
DROP TABLE counters;

-- What people read.
CREATE VIEW counters AS
SELECT s.id, s.program,
       max(s.revision, coalesce((SELECT max(c.revision) FROM changes c), 0)) AS revision,
       s.compacted, s.epoch
FROM store s;

CREATE TRIGGER counters_update INSTEAD OF UPDATE ON counters BEGIN
    UPDATE store SET revision = max(revision, NEW.revision, NEW.compacted), compacted = max(compacted, NEW.compacted), epoch = NEW.epoch
    WHERE id = OLD.id;
END;

-- The rowid is the revision that created the object: each revision creates at most
-- one. So a row stays where it is, and its change names it.
ALTER TABLE objects RENAME TO moved;
DROP INDEX objects_key;
DROP INDEX objects_expires;
CREATE TABLE objects (
    created_revision INTEGER PRIMARY KEY,
    revision         INTEGER NOT NULL,
    "group"          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    owner            TEXT    NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom')),
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    time             TEXT    NOT NULL,
    verb             TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    form             TEXT    NOT NULL,
    expires          TEXT,
    value            TEXT    NOT NULL,
    record_sum       INTEGER,
    change_sum       INTEGER
) STRICT;
INSERT INTO objects (created_revision, revision, "group", resource, owner, namespace, name, uid, time, verb, who, form, expires, value)
SELECT created_revision, revision, "group", resource, owner, namespace, name, uid, time, verb, who, form, expires, value
FROM moved ORDER BY created_revision;
DROP TABLE moved;
CREATE UNIQUE INDEX objects_key ON objects ("group", resource, owner, namespace, name);
CREATE INDEX objects_expires ON objects (expires) WHERE expires IS NOT NULL;

-- Checksums (CRC-32C), because SQLite has none: a byte that the disk changes inside a
-- value would else be served. record_sum is of a record, in changes of the replaced one;
-- change_sum is of who changed what, when. Rows of older releases have NULL.
ALTER TABLE changes ADD COLUMN record_sum INTEGER;
ALTER TABLE changes ADD COLUMN change_sum INTEGER;

-- Changes of resources whose history is kept for longer than watches resume
-- (--retention-for): a compaction copies them here before it deletes them from changes.
CREATE TABLE archive (
    revision         INTEGER PRIMARY KEY,
    time             TEXT    NOT NULL,
    op               TEXT    NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             TEXT    NOT NULL,
    who              TEXT    NOT NULL,
    audit_id         TEXT    NOT NULL,
    "group"          TEXT    NOT NULL,
    resource         TEXT    NOT NULL,
    owner            TEXT    NOT NULL CHECK (owner IN ('builtin', 'custom')),
    namespace        TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    uid              TEXT    NOT NULL,
    replaces         INTEGER NOT NULL,
    created_revision INTEGER NOT NULL,
    form             TEXT,
    expires          TEXT,
    value            TEXT,
    record_sum       INTEGER,
    change_sum       INTEGER
) STRICT;

-- Serves the history of one object and the successor of a revision, as changes_key does.
CREATE INDEX archive_key ON archive ("group", resource, owner, namespace, name, replaces);
-- Serves what is too old of one resource.
CREATE INDEX archive_time ON archive ("group", resource, time);

-- What is compacted is read from the archive. A row that is in both tables is being
-- compacted, and comes from changes.
CREATE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o WHERE o.created_revision = c.created_revision AND o.revision = c.revision))
       END AS value,
       c.value AS replaced,
       c.owner
FROM changes c
UNION ALL
SELECT a.revision, a.time, a.op, a.verb, a.who, a.audit_id,
       a."group", a.resource, a.namespace, a.name, a.uid,
       CASE WHEN a.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM archive n
            WHERE n."group" = a."group" AND n.resource = a.resource AND n.owner = a.owner
              AND n.namespace = a.namespace AND n.name = a.name
              AND n.replaces = a.revision),
           (SELECT n.value FROM changes n
            WHERE n."group" = a."group" AND n.resource = a.resource AND n.owner = a.owner
              AND n.namespace = a.namespace AND n.name = a.name
              AND n.replaces = a.revision),
           (SELECT o.value FROM objects o WHERE o.created_revision = a.created_revision AND o.revision = a.revision))
       END,
       a.value,
       a.owner
FROM archive a
WHERE NOT EXISTS (SELECT 1 FROM changes c WHERE c.revision = a.revision)
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL,
       o.owner
FROM objects o
WHERE NOT EXISTS (SELECT 1 FROM changes c WHERE c.revision = o.revision)
  AND NOT EXISTS (SELECT 1 FROM archive a WHERE a.revision = o.revision);
