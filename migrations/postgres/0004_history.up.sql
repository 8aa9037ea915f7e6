-- Two ends of the history in place of one, because a new epoch deletes no changes.
--
-- compacted is where watches, and exact reads by clients, end: a compaction and a new epoch raise it. complete_after is
-- where the past ends. NULL means that it is compacted: so it is of a resource of which a program that does not know
-- this step has written compacted last, because it may have deleted changes.
--
-- Invariant: every change that leads from a resource's state at complete_after to its present state is in undo_log. A
-- program that deletes changes, or gives up some that are missing, raises it in the same transaction. A new epoch leaves
-- it: the commits that an epoch has lost do not lead to the present state. Otherwise a list of the past would be wrong
-- without a word.
ALTER TABLE resources ADD COLUMN complete_after bigint;

-- Programs that know complete_after increase it with each write of compacted.
ALTER TABLE resources ADD COLUMN ends_written bigint NOT NULL DEFAULT 0;

CREATE FUNCTION forget_complete_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.complete_after := NULL;
    RETURN NEW;
END
$$;

CREATE TRIGGER resources_compacted BEFORE UPDATE OF compacted ON resources
FOR EACH ROW WHEN (NEW.ends_written = OLD.ends_written) EXECUTE FUNCTION forget_complete_after();

-- That of a resource without a row, which has had no object since the store was made, restored, or migrated to this
-- step.
ALTER TABLE store ADD COLUMN complete_after bigint NOT NULL DEFAULT 0;
UPDATE store SET complete_after = compacted;
