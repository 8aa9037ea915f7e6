-- What is current apart from what was: objects has one row an object, changes
-- one row a revision. A row of changes holds what its revision replaced (an
-- undo log), so that a create writes its value once, and forgetting history is
-- one range delete. Keys are COLLATE "C": they order as bytes, as in SQLite.

-- Its one row is also the lock that writers take: revisions are given in the
-- order of commits. Half of each page stays free, so that the update that every
-- batch makes finds room on the same page.
CREATE TABLE counters (
    id        integer PRIMARY KEY CHECK (id = 1),
    program   text    NOT NULL CHECK (program = 'byre'),
    -- the last revision given; never computed from rows, so that neither
    -- deletes nor compaction can turn it back
    revision  bigint  NOT NULL,
    -- the last revision whose history is gone
    compacted bigint  NOT NULL,
    -- changes when a restore puts other data here
    epoch     text    NOT NULL,
    CHECK (0 <= compacted AND compacted <= revision)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

INSERT INTO counters (id, program, revision, compacted, epoch)
VALUES (1, 'byre', 0, 0, md5(random()::text || clock_timestamp()::text));

-- There is no index on revision: it would take from every update the chance to
-- stay on its page (HOT), and whoever has a revision has the key from changes.
CREATE TABLE objects (
    revision         bigint      NOT NULL,
    "group"          text        COLLATE "C" NOT NULL,
    resource         text        COLLATE "C" NOT NULL,
    namespace        text        COLLATE "C" NOT NULL,
    name             text        COLLATE "C" NOT NULL,
    uid              text        NOT NULL,
    created_revision bigint      NOT NULL,
    time             timestamptz NOT NULL,
    verb             text        NOT NULL,
    who              text        NOT NULL,
    form             text        NOT NULL,
    expires          timestamptz,
    value            text        NOT NULL,
    PRIMARY KEY ("group", resource, namespace, name)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
        toast.autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX objects_expires ON objects (expires) WHERE expires IS NOT NULL;

CREATE TABLE changes (
    revision         bigint      PRIMARY KEY,
    time             timestamptz NOT NULL,
    op               text        NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             text        NOT NULL,
    who              text        NOT NULL,
    audit_id         text        NOT NULL,
    "group"          text        COLLATE "C" NOT NULL,
    resource         text        COLLATE "C" NOT NULL,
    namespace        text        COLLATE "C" NOT NULL,
    name             text        COLLATE "C" NOT NULL,
    uid              text        NOT NULL,
    -- the revision this one replaced, 0 for a create; form, expires and value
    -- are of that revision
    replaces         bigint      NOT NULL,
    created_revision bigint      NOT NULL,
    form             text,
    expires          timestamptz,
    value            text
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        toast.autovacuum_vacuum_scale_factor = 0.05);

-- Serves the history of one object, the successor of a revision (key and
-- replaces), and lists at an older revision.
CREATE INDEX changes_key ON changes ("group", resource, namespace, name, replaces, revision);

-- lz4 where the server was built with it: several times faster than pglz.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE objects ALTER COLUMN value SET COMPRESSION lz4';
    EXECUTE 'ALTER TABLE changes ALTER COLUMN value SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
    NULL;
END
$$;

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
           (SELECT o.value FROM objects o
            WHERE o."group" = c."group" AND o.resource = c.resource
              AND o.namespace = c.namespace AND o.name = c.name
              AND o.revision = c.revision))
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
