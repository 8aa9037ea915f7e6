DROP VIEW history;
DROP VIEW changes;
DROP VIEW objects;
DROP VIEW counters;
DROP TABLE undo_log;
DROP TABLE current_objects;
DROP TABLE resources;
DROP TABLE store;
DROP TABLE IF EXISTS notes;
