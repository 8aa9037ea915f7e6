-- Checksums (CRC-32C), because SQLite has none: a byte that the disk changes inside a
-- value would else be served. record_sum is of a record, in changes of the replaced one;
-- change_sum is of who changed what, when. Rows of older releases have NULL.
ALTER TABLE objects ADD COLUMN record_sum INTEGER;
ALTER TABLE objects ADD COLUMN change_sum INTEGER;
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
DROP VIEW history;
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
           (SELECT o.value FROM objects o WHERE o.revision = a.revision))
       END,
       a.value,
       a.owner
FROM archive a
WHERE a.revision <= (SELECT k.compacted FROM counters k)
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL,
       o.owner
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM counters k)
  AND NOT EXISTS (SELECT 1 FROM archive a WHERE a.revision = o.revision);
