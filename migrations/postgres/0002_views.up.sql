-- Views that the program's statements share, and one name, encoding, for what a value is encoded with.
--
-- Programs that know only the first step use the name form.
UPDATE store SET least_version = 2 WHERE id = 1;

ALTER TABLE current_objects RENAME COLUMN form TO encoding;
ALTER TABLE undo_log RENAME COLUMN form TO encoding;
ALTER VIEW objects RENAME COLUMN form TO encoding;
ALTER VIEW changes RENAME COLUMN form TO encoding;

-- store with the instance, which statements compare: while it stays the same no failover, restore or
-- restart has happened, and no migration that shuts out programs. waits is whether commits wait for a
-- standby.
CREATE VIEW store_instance AS
SELECT s.id, s.revision, s.compacted, s.epoch, s.lineage, s.tableoid AS table_id, w.waits,
       concat_ws(' ', s.epoch, s.lineage, s.least_version, s.tableoid,
                 extract(epoch FROM pg_postmaster_start_time()), w.waits) AS instance
FROM store s
CROSS JOIN LATERAL (SELECT current_setting('synchronous_standby_names') <> ''
                           AND current_setting('synchronous_commit') IN ('on', 'remote_apply') AS waits) w;

-- store_instance with the last revision, and the time and the UID of the newest change, which are NULL if it
-- is deleted. It finds the newest change from the end of the primary key. store.revision is at least the
-- compacted revision; a batch does not change it, and so the newest change may be after it.
CREATE VIEW store_state AS
SELECT s.id, greatest(s.revision, l.revision) AS revision, s.compacted, s.epoch, s.instance,
       l.time AS last_time, l.uid AS last_uid
FROM store_instance s
LEFT JOIN LATERAL (SELECT c.revision, c.time, c.uid FROM undo_log c WHERE c.revision >= s.revision
                   ORDER BY c.revision DESC LIMIT 1) l ON true;

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
