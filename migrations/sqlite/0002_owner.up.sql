-- The owner of a resource is part of every key: 'builtin' is what the program
-- defines, 'custom' what a CustomResourceDefinition does. The two never share a
-- row, whatever the definition calls its resource.

ALTER TABLE objects ADD COLUMN owner TEXT NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom'));
ALTER TABLE changes ADD COLUMN owner TEXT NOT NULL DEFAULT 'builtin' CHECK (owner IN ('builtin', 'custom'));

-- No definition can have the core group ''.
CREATE TABLE built_in_resources (
    "group"  TEXT NOT NULL,
    resource TEXT NOT NULL,
    PRIMARY KEY ("group", resource)
) STRICT, WITHOUT ROWID;

INSERT INTO built_in_resources VALUES
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
    ('storagemigration.k8s.io', 'storageversionmigrations');

-- What is there is sorted by a list of the resources that are built in now, and
-- by the form, in which an instance of a definition has the definition's uid and
-- generation ('v1.36/v1/0d1f7a4c.3'). The form of what a create wrote stands where
-- it was replaced, or in the object.
UPDATE objects SET owner = 'custom'
WHERE "group" <> '' AND ("group", resource) NOT IN (SELECT "group", resource FROM built_in_resources)
   OR form LIKE '%/%/________.%';

UPDATE changes AS c SET owner = 'custom'
WHERE c."group" <> '' AND (c."group", c.resource) NOT IN (SELECT "group", resource FROM built_in_resources)
   OR coalesce(c.form,
    (SELECT n.form FROM changes n
     WHERE n."group" = c."group" AND n.resource = c.resource AND n.namespace = c.namespace AND n.name = c.name
       AND n.replaces = c.revision),
    (SELECT o.form FROM objects o WHERE o.revision = c.revision)) LIKE '%/%/________.%';

DROP TABLE built_in_resources;

DROP INDEX objects_key;
CREATE UNIQUE INDEX objects_key ON objects ("group", resource, owner, namespace, name);
DROP INDEX changes_key;
CREATE INDEX changes_key ON changes ("group", resource, owner, namespace, name, replaces);

DROP VIEW history;
CREATE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource AND n.owner = c.owner
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o WHERE o.revision = c.revision))
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
