-- What the program's statements share, and one name, encoding, for what a value is encoded with.
--
-- Programs that know only the first step use the name form.
UPDATE store SET least_version = 2 WHERE id = 1;

ALTER TABLE current_objects RENAME COLUMN form TO encoding;
ALTER TABLE undo_log RENAME COLUMN form TO encoding;
ALTER VIEW objects RENAME COLUMN form TO encoding;
ALTER VIEW changes RENAME COLUMN form TO encoding;

-- Whether commits wait for a standby.
CREATE FUNCTION commits_wait() RETURNS boolean LANGUAGE sql STABLE AS $$
SELECT current_setting('synchronous_standby_names') <> ''
       AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
$$;

-- The instance, which statements compare, of a row of store: while it stays the same no failover, restore or
-- restart has happened, and no migration that shuts out programs. table_id is the tableoid. It is a function
-- and no view, because a view reads the table that had the name when the view was made: statements must see
-- the row of a table that was restored in its place. The planner puts the expression into the statement.
CREATE FUNCTION store_instance(epoch text, lineage text, least_version integer, table_id oid) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT concat_ws(' ', epoch, lineage, least_version, table_id, extract(epoch FROM pg_postmaster_start_time()),
                 commits_wait())
$$;

-- Each change with the state that it replaced (encoding, expires, value) and the one that it wrote (new_uid
-- to new_value). That one is in the next change of the same key, which has replaced it, or else in the object,
-- which still has it. The LIMITs have the planner do one search of an index for each. bytes is the size of
-- both values: octet_length does not read them.
--
-- Invariant: these columns and their order never change, because programs select all of them. A step that
-- needs others makes another view.
CREATE VIEW change_states AS
SELECT c.revision, c.time, c.op, c.verb, c.subresource, c.manager, c.who, c.real_user, c.audit_id,
       r."group", r.resource, r.defined_by, c.namespace, c.name, c.uid, c.replaces, c.created_revision,
       c.encoding, c.expires, c.value,
       coalesce(n.uid, o.uid) AS new_uid, coalesce(n.encoding, o.encoding) AS new_encoding,
       CASE WHEN n.encoding IS NULL THEN o.expires ELSE n.expires END AS new_expires,
       coalesce(n.value, o.value) AS new_value,
       c.resource_id,
       coalesce(octet_length(c.value), 0) + coalesce(octet_length(n.value), octet_length(o.value), 0) AS bytes
FROM undo_log c
LEFT JOIN LATERAL (SELECT r."group", r.resource, r.defined_by FROM resources r
                   WHERE r.id = c.resource_id LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT n.uid, n.encoding, n.expires, n.value FROM undo_log n
                   WHERE n.resource_id = c.resource_id AND n.namespace = c.namespace AND n.name = c.name
                     AND n.replaces >= c.revision AND n.replaces <= c.revision
                   ORDER BY n.replaces LIMIT 1) n ON true
LEFT JOIN LATERAL (SELECT o.uid, o.encoding, o.expires, o.value FROM current_objects o
                   WHERE o.resource_id = c.resource_id AND o.namespace = c.namespace AND o.name = c.name
                     AND o.revision = c.revision LIMIT 1) o ON true;
