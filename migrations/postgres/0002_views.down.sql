DROP VIEW change_states;
DROP FUNCTION store_instance(text, text, integer, oid);
DROP FUNCTION commits_wait();
ALTER VIEW changes RENAME COLUMN encoding TO form;
ALTER VIEW objects RENAME COLUMN encoding TO form;
ALTER TABLE undo_log RENAME COLUMN encoding TO form;
ALTER TABLE current_objects RENAME COLUMN encoding TO form;
UPDATE store SET least_version = 1 WHERE id = 1;
