-- What is current apart from what was: current_objects has one row an object, undo_log one
-- row a revision. A row of undo_log holds what its revision replaced, so that a create
-- writes its value once, and forgetting history deletes rows and moves none. Keys are
-- COLLATE "C": they order as bytes, as in SQLite.
--
-- People read the views objects, changes, history and counters.

-- Its one row is also the lock that writers take: revisions are given in the order of
-- commits. Locking it writes no version of it.
--
-- Invariant: the last revision is the greater of store.revision and the newest change's. A
-- deletion of changes raises store.revision to what it deletes in the same transaction; a
-- new epoch raises it too. So the revision never goes back, whatever is deleted. It is no
-- counter that every batch updates: while an old snapshot is open (a pg_dump that runs for
-- an hour) none of that row's versions could be removed, and every read would walk them all.
CREATE TABLE store (
    id            integer PRIMARY KEY CHECK (id = 1),
    program       text    NOT NULL CHECK (program = 'byre'),
    -- programs whose latest schema is older than this one must not use the database
    least_version integer NOT NULL,
    revision      bigint  NOT NULL,
    -- every change after this revision is in undo_log: the greatest of resources.compacted
    compacted     bigint  NOT NULL,
    -- changes when commits were lost, or a restore puts other data here
    epoch         text    NOT NULL,
    -- the server, timeline, database and table on which the epoch goes on, as the last
    -- process found them; '' until a process serves the store. Any other text declares
    -- that commits may be lost.
    lineage       text    NOT NULL DEFAULT '',
    CHECK (0 <= compacted AND compacted <= revision)
);

INSERT INTO store (id, program, least_version, revision, compacted, epoch)
VALUES (1, 'byre', 1, 0, 0, gen_random_uuid()::text);

-- The resources that have ever had an object. A row is never deleted, and its id never
-- changes; a batch gives it under the writers' lock. 'builtin' is what the program defines,
-- 'custom' what a CustomResourceDefinition does: the two never share a row, whatever the
-- definition calls its resource.
CREATE TABLE resources (
    id         integer PRIMARY KEY,
    "group"    text    COLLATE "C" NOT NULL,
    resource   text    COLLATE "C" NOT NULL,
    defined_by text    COLLATE "C" NOT NULL CHECK (defined_by IN ('builtin', 'custom')),
    -- every change of the resource after this revision is in undo_log
    compacted  bigint  NOT NULL,
    -- the seconds for which the last server has kept the history: -1 is for ever, 0 not known
    retained_for bigint NOT NULL DEFAULT 0,
    UNIQUE ("group", resource, defined_by)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- The program that runs this step sets the compression of both columns value: lz4, where the server was
-- built with it.

-- There is no index on revision: it would take from every update the chance to
-- stay on its page (HOT), and whoever has a revision has the key from undo_log.
CREATE TABLE current_objects (
    revision         bigint      NOT NULL,
    resource_id      integer     NOT NULL,
    namespace        text        COLLATE "C" NOT NULL,
    name             text        COLLATE "C" NOT NULL,
    uid              text        NOT NULL,
    generation       bigint      NOT NULL,
    created_revision bigint      NOT NULL,
    time             timestamptz NOT NULL,
    verb             text        NOT NULL,
    subresource      text        NOT NULL,
    manager          text        NOT NULL,
    who              text        NOT NULL,
    real_user        text        NOT NULL,
    form             text        NOT NULL,
    expires          timestamptz,
    value            text        NOT NULL,
    PRIMARY KEY (resource_id, namespace, name)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
        toast.autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX current_objects_expires ON current_objects (expires) WHERE expires IS NOT NULL;

CREATE TABLE undo_log (
    revision         bigint      PRIMARY KEY,
    resource_id      integer     NOT NULL,
    time             timestamptz NOT NULL,
    op               text        NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             text        NOT NULL,
    subresource      text        NOT NULL,
    manager          text        NOT NULL,
    who              text        NOT NULL,
    real_user        text        NOT NULL,
    audit_id         text        NOT NULL,
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

-- Serves the changes of one resource in their order.
CREATE INDEX undo_log_resource ON undo_log (resource_id, revision);
-- Serves the history of one object and the successor of a revision (key and replaces).
CREATE INDEX undo_log_key ON undo_log (resource_id, namespace, name, replaces, revision);

CREATE VIEW counters AS
SELECT s.id, s.program,
       greatest(s.revision, (SELECT u.revision FROM undo_log u WHERE u.revision >= s.revision
                             ORDER BY u.revision DESC LIMIT 1)) AS revision,
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

-- The JSON of a value, for queries: NULL if it is encrypted. PostgreSQL has no text with U+0000, and
-- every operator that returns text of a JSON value fails if an escape \u0000, or half of a surrogate
-- pair, is anywhere in it, so that one such object would fail a query of a whole table: doc has U+FFFD
-- in their place. Invariant: a value that begins with { is JSON; the program writes no other.
CREATE FUNCTION doc(value text) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF NOT starts_with(value, '{') THEN
        RETURN NULL;
    ELSIF strpos(value, '\u0000') = 0 AND strpos(value, '\ud') = 0 AND strpos(value, '\uD') = 0 THEN
        RETURN value::json;
    END IF;
    -- JSON has no character U+0001: while it stands for an escaped backslash, every \u is an escape.
    value := replace(replace(value, '\\', chr(1)), '\u0000', '\ufffd');
    value := regexp_replace(value, '\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..', '\\ufffd', 'g');
    RETURN replace(value, chr(1), '\\')::json;
END
$$;

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
           (SELECT o.value FROM current_objects o
            WHERE o.resource_id = u.resource_id AND o.namespace = u.namespace AND o.name = u.name
              AND o.revision = u.revision))
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
WHERE o.revision <= r.compacted AND NOT EXISTS (SELECT FROM undo_log u WHERE u.revision = o.revision);
