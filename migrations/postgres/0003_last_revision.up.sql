-- The last revision is that of the newest change, not a counter that every batch
-- updates: while an old snapshot is open (a pg_dump that runs for an hour) none
-- of that row's versions can be removed, and every read walks all of them.
--
-- Invariant: the last revision is the greater of store.revision and the newest
-- change's. Changes go only by compaction, which raises store.revision to what it
-- deletes in the same transaction; a new epoch raises it too. So the revision
-- never goes back, whatever is deleted.
--
-- The row is still the writers' lock. Locking it writes no version of it.
ALTER TABLE counters RENAME TO store;
ALTER INDEX counters_pkey RENAME TO store_pkey;
ALTER TABLE store RESET (fillfactor, autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor);

-- What people and processes of the release before, which may still run, read and
-- write: a lock or an update of the view is one of the row.
CREATE VIEW counters AS
SELECT s.id, s.program,
       greatest(s.revision, (SELECT c.revision FROM changes c WHERE c.revision >= s.revision
                             ORDER BY c.revision DESC LIMIT 1)) AS revision,
       s.compacted, s.epoch
FROM store s;

-- The row may have moved on since OLD and NEW were read. A compaction has deleted
-- what it names, perhaps the newest change too, from which the view has the revision.
CREATE FUNCTION byre_update_counters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE store SET revision = greatest(revision, NEW.revision, NEW.compacted), compacted = greatest(compacted, NEW.compacted),
                     epoch = CASE WHEN NEW.epoch = OLD.epoch THEN epoch ELSE NEW.epoch END
    WHERE id = OLD.id;
    RETURN NEW;
END
$$;

CREATE TRIGGER counters_update INSTEAD OF UPDATE ON counters
FOR EACH ROW EXECUTE FUNCTION byre_update_counters();

-- A role that may read or lock the table may do so to the view: a grant follows a
-- table to its new name, and a new view has none.
DO $$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s%s ON counters TO %s%s', a.privilege_type, o.columns,
                      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM (SELECT relacl AS acl, '' AS columns FROM pg_class WHERE oid = 'store'::regclass
              UNION ALL
              SELECT attacl, format(' (%I)', attname) FROM pg_attribute
              WHERE attrelid = 'store'::regclass AND attnum > 0 AND NOT attisdropped) o, aclexplode(o.acl) a
        WHERE a.grantee <> (SELECT relowner FROM pg_class WHERE oid = 'store'::regclass)
    LOOP
        EXECUTE granted;
    END LOOP;
END
$$;
