CREATE OR REPLACE FUNCTION byre_update_counters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE store SET revision = greatest(revision, NEW.revision, NEW.compacted), compacted = greatest(compacted, NEW.compacted),
                     epoch = CASE WHEN NEW.epoch = OLD.epoch THEN epoch ELSE NEW.epoch END
    WHERE id = OLD.id;
    RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION byre_set_owner() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'changes' THEN
        SELECT o.owner INTO NEW.owner FROM objects o
        WHERE o."group" = NEW."group" AND o.resource = NEW.resource AND o.owner IN ('builtin', 'custom')
          AND o.namespace = NEW.namespace AND o.name = NEW.name AND o.revision = NEW.replaces;
    END IF;
    IF NEW.owner IS NULL THEN
        NEW.owner := CASE WHEN byre_is_builtin(NEW."group", NEW.resource) THEN 'builtin' ELSE 'custom' END;
    END IF;
    RETURN NEW;
END
$$;
