-- The schema before tells no owners apart: an instance of a definition over a
-- built-in resource would become a built-in object. (What is left of deleted ones
-- in history does no harm: history is read at old revisions only.)
CREATE TABLE refused (resource TEXT NOT NULL) STRICT;
CREATE TRIGGER refuse BEFORE INSERT ON refused BEGIN
    SELECT RAISE(ABORT, 'there are instances of CustomResourceDefinitions over built-in resources: delete those definitions first');
END;

INSERT INTO refused
SELECT resource FROM objects
WHERE owner = 'custom' AND ("group", resource) IN (VALUES
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
) LIMIT 1;
DROP TABLE refused;

DROP VIEW history;
DROP INDEX objects_key;
CREATE UNIQUE INDEX objects_key ON objects ("group", resource, namespace, name);
DROP INDEX changes_key;
CREATE INDEX changes_key ON changes ("group", resource, namespace, name, replaces);
ALTER TABLE objects DROP COLUMN owner;
ALTER TABLE changes DROP COLUMN owner;

CREATE VIEW history AS
SELECT c.revision, c.time, c.op, c.verb, c.who, c.audit_id,
       c."group", c.resource, c.namespace, c.name, c.uid,
       CASE WHEN c.op <> 'delete' THEN coalesce(
           (SELECT n.value FROM changes n
            WHERE n."group" = c."group" AND n.resource = c.resource
              AND n.namespace = c.namespace AND n.name = c.name
              AND n.replaces = c.revision),
           (SELECT o.value FROM objects o WHERE o.revision = c.revision))
       END AS value,
       c.value AS replaced
FROM changes c
UNION ALL
SELECT o.revision, o.time,
       CASE WHEN o.revision = o.created_revision THEN 'create' ELSE 'update' END,
       o.verb, o.who, '',
       o."group", o.resource, o.namespace, o.name, o.uid,
       o.value, NULL
FROM objects o
WHERE o.revision <= (SELECT k.compacted FROM counters k);
