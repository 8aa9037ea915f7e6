UPDATE store SET revision = (SELECT revision FROM counters);
DROP VIEW counters;
DROP FUNCTION byre_update_counters;
ALTER TABLE store RENAME TO counters;
ALTER INDEX store_pkey RENAME TO counters_pkey;
ALTER TABLE counters SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
