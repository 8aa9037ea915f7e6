-- A view that the program's statements share, and one name, encoding, for what a value is encoded with.
--
-- Programs that know only the first step use the name form. SQLite renames the columns of the views too.
UPDATE store SET least_version = 2 WHERE id = 1;

ALTER TABLE current_objects RENAME COLUMN form TO encoding;
ALTER TABLE undo_log RENAME COLUMN form TO encoding;

-- Each change with the state that it replaced (encoding, expires, value, record_sum) and the one that it wrote
-- (new_uid to new_record_sum). That one is in the next change of the same key, which has replaced it, or else
-- in the object, which still has it. CROSS JOIN keeps the order of the tables.
--
-- Invariant: these columns and their order never change, because programs select all of them. A step that
-- needs others makes another view.
CREATE VIEW change_states AS
SELECT c.revision, c.time, c.op, c.verb, c.subresource, c.manager, c.who, c.real_user, c.audit_id,
       r."group", r.resource, r.defined_by, c.namespace, c.name, c.uid, c.replaces, c.created_revision, c.change_sum,
       c.encoding, c.expires, c.value, c.record_sum,
       coalesce(n.uid, o.uid) AS new_uid, coalesce(n.encoding, o.encoding) AS new_encoding,
       CASE WHEN n.revision IS NULL THEN o.expires ELSE n.expires END AS new_expires,
       coalesce(n.value, o.value) AS new_value,
       CASE WHEN n.revision IS NULL THEN o.record_sum ELSE n.record_sum END AS new_record_sum,
       c.resource_id
FROM undo_log c
CROSS JOIN resources r ON r.id = c.resource_id
LEFT JOIN undo_log n ON n.resource_id = c.resource_id AND n.namespace = c.namespace AND n.name = c.name
                    AND n.replaces = c.revision
LEFT JOIN current_objects o ON o.created_revision = c.created_revision AND o.revision = c.revision;
