-- The owner of a resource is part of every key: 'builtin' is what the program
-- defines, 'custom' what a CustomResourceDefinition does. The two never share a
-- row, whatever the definition calls its resource.

-- Processes of the release before may still run. Their writers lock counters first,
-- too, so that none comes to hold it while it waits for a table below. A compaction
-- locks changes first: in a deadlock with one what is locked here is given back.
DO $$
BEGIN
    LOOP
        BEGIN
            LOCK TABLE counters, objects, changes IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN deadlock_detected THEN
            NULL;
        END;
    END LOOP;
END
$$;

ALTER TABLE objects ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom'));
ALTER TABLE changes ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom'));

-- No definition can have the core group ''.
CREATE FUNCTION byre_is_builtin(in_group text, in_resource text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
SELECT in_group = '' OR (in_group, in_resource) IN (
    ('admissionregistration.k8s.io', 'mutatingadmissionpolicies'),
    ('admissionregistration.k8s.io', 'mutatingadmissionpolicybindings'),
    ('admissionregistration.k8s.io', 'mutatingwebhookconfigurations'),
    ('admissionregistration.k8s.io', 'validatingadmissionpolicies'),
    ('admissionregistration.k8s.io', 'validatingadmissionpolicybindings'),
    ('admissionregistration.k8s.io', 'validatingwebhookconfigurations'),
    ('apiextensions.k8s.io', 'customresourcedefinitions'),
    ('apiregistration.k8s.io', 'apiservices'),
    ('apps', 'controllerrevisions'), ('apps', 'daemonsets'), ('apps', 'deployments'),
    ('apps', 'replicasets'), ('apps', 'statefulsets'),
    ('autoscaling', 'horizontalpodautoscalers'),
    ('batch', 'cronjobs'), ('batch', 'jobs'),
    ('byre', 'foundations'), ('byre', 'trusts'),
    ('certificates.k8s.io', 'certificatesigningrequests'), ('certificates.k8s.io', 'clustertrustbundles'),
    ('certificates.k8s.io', 'podcertificaterequests'),
    ('coordination.k8s.io', 'leasecandidates'), ('coordination.k8s.io', 'leases'),
    ('discovery.k8s.io', 'endpointslices'),
    ('flowcontrol.apiserver.k8s.io', 'flowschemas'),
    ('flowcontrol.apiserver.k8s.io', 'prioritylevelconfigurations'),
    ('internal.apiserver.k8s.io', 'storageversions'),
    ('networking.k8s.io', 'ingressclasses'), ('networking.k8s.io', 'ingresses'),
    ('networking.k8s.io', 'ipaddresses'), ('networking.k8s.io', 'networkpolicies'),
    ('networking.k8s.io', 'servicecidrs'),
    ('node.k8s.io', 'runtimeclasses'),
    ('policy', 'poddisruptionbudgets'),
    ('rbac.authorization.k8s.io', 'clusterrolebindings'), ('rbac.authorization.k8s.io', 'clusterroles'),
    ('rbac.authorization.k8s.io', 'rolebindings'), ('rbac.authorization.k8s.io', 'roles'),
    ('resource.k8s.io', 'deviceclasses'), ('resource.k8s.io', 'devicetaintrules'),
    ('resource.k8s.io', 'resourceclaims'), ('resource.k8s.io', 'resourceclaimtemplates'),
    ('resource.k8s.io', 'resourcepoolstatusrequests'), ('resource.k8s.io', 'resourceslices'),
    ('scheduling.k8s.io', 'podgroups'), ('scheduling.k8s.io', 'priorityclasses'),
    ('scheduling.k8s.io', 'workloads'),
    ('storage.k8s.io', 'csidrivers'), ('storage.k8s.io', 'csinodes'),
    ('storage.k8s.io', 'csistoragecapacities'), ('storage.k8s.io', 'storageclasses'),
    ('storage.k8s.io', 'volumeattachments'), ('storage.k8s.io', 'volumeattributesclasses'),
    ('storagemigration.k8s.io', 'storageversionmigrations')
)
$$;

-- What is there is sorted by a list of the resources that are built in now, and
-- by the form, in which an instance of a definition has the definition's uid and
-- generation ('v1.36/v1/0d1f7a4c.3'). The form of what a create wrote stands where
-- it was replaced, or in the object.
UPDATE objects SET owner = 'custom'
WHERE NOT byre_is_builtin("group", resource) OR form LIKE '%/%/________.%';

UPDATE changes c SET owner = 'custom'
WHERE NOT byre_is_builtin(c."group", c.resource) OR coalesce(c.form,
    (SELECT n.form FROM changes n
     WHERE n."group" = c."group" AND n.resource = c.resource AND n.namespace = c.namespace AND n.name = c.name
       AND n.replaces = c.revision),
    (SELECT o.form FROM objects o
     WHERE o."group" = c."group" AND o.resource = c.resource AND o.namespace = c.namespace AND o.name = c.name
       AND o.revision = c.revision)) LIKE '%/%/________.%';

ALTER TABLE objects DROP CONSTRAINT objects_pkey, ADD PRIMARY KEY ("group", resource, owner, namespace, name);
DROP INDEX changes_key;
CREATE INDEX changes_key ON changes ("group", resource, owner, namespace, name, replaces, revision);

-- A process of the release before, which may still run, names no owner. What it
-- creates is sorted by the list alone; what it changes keeps the owner it has.
ALTER TABLE objects ALTER COLUMN owner DROP DEFAULT;
ALTER TABLE changes ALTER COLUMN owner DROP DEFAULT;

-- STABLE: it sees the objects as they were before the statement, which writes to
-- both tables in no certain order.
CREATE FUNCTION byre_set_owner() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
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

CREATE TRIGGER objects_owner BEFORE INSERT ON objects
FOR EACH ROW WHEN (NEW.owner IS NULL) EXECUTE FUNCTION byre_set_owner();
CREATE TRIGGER changes_owner BEFORE INSERT ON changes
FOR EACH ROW WHEN (NEW.owner IS NULL) EXECUTE FUNCTION byre_set_owner();

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
WHERE o.revision <= (SELECT k.compacted FROM counters k);
