-- The past ends again where watches do.
DROP TRIGGER resources_compacted;
ALTER TABLE store DROP COLUMN complete_after;
ALTER TABLE resources DROP COLUMN ends_written;
ALTER TABLE resources DROP COLUMN complete_after;
