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
