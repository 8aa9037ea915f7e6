-- Changes of resources whose history is kept for longer than watches resume
-- (--retention-for): a compaction copies them here before it deletes them from changes.
-- A process of the release before compacts without copying.
CREATE TABLE archive (
    revision         bigint      PRIMARY KEY,
    time             timestamptz NOT NULL,
    op               text        NOT NULL CHECK (op IN ('create', 'update', 'delete')),
    verb             text        NOT NULL,
    who              text        NOT NULL,
    audit_id         text        NOT NULL,
    "group"          text        COLLATE "C" NOT NULL,
    resource         text        COLLATE "C" NOT NULL,
    owner            text        COLLATE "C" NOT NULL CHECK (owner IN ('builtin', 'custom')),
    namespace        text        COLLATE "C" NOT NULL,
    name             text        COLLATE "C" NOT NULL,
    uid              text        NOT NULL,
    replaces         bigint      NOT NULL,
    created_revision bigint      NOT NULL,
    form             text,
    expires          timestamptz,
    value            text
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        toast.autovacuum_vacuum_scale_factor = 0.05);

-- Serves the history of one object and the successor of a revision, as changes_key does.
CREATE INDEX archive_key ON archive ("group", resource, owner, namespace, name, replaces, revision);
-- Serves what is too old of one resource.
CREATE INDEX archive_time ON archive ("group", resource, time);

DO $$
BEGIN
    EXECUTE 'ALTER TABLE archive ALTER COLUMN value SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
    NULL;
END
$$;

-- What is compacted is read from the archive. A row that is in both tables is being
-- compacted, and comes from changes.
CREATE OR REPLACE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o
            WHERE o."group" = c."group" AND o.resource = c.resource AND o.owner = c.owner
              AND o.namespace = c.namespace AND o.name = c.name
              AND o.revision = c.revision))
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
           (SELECT o.value FROM objects o
            WHERE o."group" = a."group" AND o.resource = a.resource AND o.owner = a.owner
              AND o.namespace = a.namespace AND o.name = a.name
              AND o.revision = a.revision))
       END,
       a.value,
       a.owner
FROM archive a
WHERE a.revision <= (SELECT k.compacted FROM store k)
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL,
       o.owner
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM store k)
  AND NOT EXISTS (SELECT FROM archive a WHERE a.revision = o.revision);

-- The view reads tables with its owner's rights. Whoever may read changes may read the
-- archive too.
DO $$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s ON archive TO %s%s', a.privilege_type,
                      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'changes'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END
$$;
