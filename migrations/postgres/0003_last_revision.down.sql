-- What was granted on the view is granted on the table that takes its name.
DO $$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s%s ON store TO %s%s', a.privilege_type, o.columns,
                      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM (SELECT relacl AS acl, '' AS columns FROM pg_class WHERE oid = 'counters'::regclass
              UNION ALL
              SELECT attacl, format(' (%I)', attname) FROM pg_attribute
              WHERE attrelid = 'counters'::regclass AND attnum > 0 AND NOT attisdropped) o, aclexplode(o.acl) a
        WHERE a.grantee <> (SELECT relowner FROM pg_class WHERE oid = 'counters'::regclass)
    LOOP
        EXECUTE granted;
    END LOOP;
END
$$;
UPDATE store SET revision = (SELECT revision FROM counters);
DROP VIEW counters;
DROP FUNCTION byre_update_counters;
ALTER TABLE store RENAME TO counters;
ALTER INDEX store_pkey RENAME TO counters_pkey;
ALTER TABLE counters SET (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
