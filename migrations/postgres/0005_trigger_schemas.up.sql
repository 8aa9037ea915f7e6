-- The function of a trigger runs with the search_path of the session that writes, and that
-- may lead to the store of another schema. So these functions name the schema of the table
-- that their trigger is on, which is the right one after the schema was renamed too.
--
-- No table is locked: what processes of the release before do goes on.
CREATE OR REPLACE FUNCTION byre_update_counters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The row may have moved on since OLD and NEW were read. A compaction has deleted what
    -- it names, perhaps the newest change too, from which the view has the revision.
    EXECUTE format('
        UPDATE %I.store SET revision = greatest(revision, $1, $2), compacted = greatest(compacted, $2),
                            epoch = CASE WHEN $3 THEN epoch ELSE $4 END
        WHERE id = $5', TG_TABLE_SCHEMA)
    USING NEW.revision, NEW.compacted, NEW.epoch = OLD.epoch, NEW.epoch, OLD.id;
    RETURN NEW;
END
$$;

-- STABLE: it sees the objects as they were before the statement, which writes to
-- both tables in no certain order.
CREATE OR REPLACE FUNCTION byre_set_owner() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'changes' THEN
        EXECUTE format('
            SELECT o.owner FROM %I.objects o
            WHERE o."group" = $1 AND o.resource = $2 AND o.owner IN (''builtin'', ''custom'')
              AND o.namespace = $3 AND o.name = $4 AND o.revision = $5', TG_TABLE_SCHEMA)
        INTO NEW.owner USING NEW."group", NEW.resource, NEW.namespace, NEW.name, NEW.replaces;
    END IF;
    IF NEW.owner IS NULL THEN
        EXECUTE format('SELECT CASE WHEN %I.byre_is_builtin($1, $2) THEN ''builtin'' ELSE ''custom'' END', TG_TABLE_SCHEMA)
        INTO NEW.owner USING NEW."group", NEW.resource;
    END IF;
    RETURN NEW;
END
$$;
