DROP VIEW change_states;
ALTER TABLE undo_log RENAME COLUMN encoding TO form;
ALTER TABLE current_objects RENAME COLUMN encoding TO form;
UPDATE store SET least_version = 1 WHERE id = 1;
