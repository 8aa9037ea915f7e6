-- The archive is history that the schema before has no place for: it goes.
CREATE OR REPLACE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o
            WHERE o."group" = c."group" AND o.resource = c.resource AND o.owner = c.owner
              AND o.namespace = c.namespace AND o.name = c.name
              AND o.revision = c.revision))
       END AS value,
       c.value AS replaced,
       c.owner
FROM changes c
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL,
       o.owner
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM store k);

DROP TABLE archive;
