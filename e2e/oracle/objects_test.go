package oracle

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"byre/e2e/manifests"
)

// plural names the resource of each kind of the manifests, and says whether it
// lives in a namespace.
var plural = map[string]struct {
	resource   string
	namespaced bool
}{
	"CSIDriver": {"csidrivers", false}, "CSINode": {"csinodes", false},
	"CSIStorageCapacity":        {"csistoragecapacities", true},
	"CertificateSigningRequest": {"certificatesigningrequests", false},
	"ClusterRole":               {"clusterroles", false}, "ClusterRoleBinding": {"clusterrolebindings", false},
	"ConfigMap": {"configmaps", true}, "ControllerRevision": {"controllerrevisions", true}, "CronJob": {"cronjobs", true},
	"DaemonSet": {"daemonsets", true}, "Deployment": {"deployments", true}, "DeviceClass": {"deviceclasses", false},
	"EndpointSlice": {"endpointslices", true}, "Endpoints": {"endpoints", true}, "Event": {"events", true},
	"FlowSchema": {"flowschemas", false}, "HorizontalPodAutoscaler": {"horizontalpodautoscalers", true},
	"Ingress": {"ingresses", true}, "IngressClass": {"ingressclasses", false}, "Job": {"jobs", true},
	"Lease": {"leases", true}, "LimitRange": {"limitranges", true},
	"MutatingWebhookConfiguration": {"mutatingwebhookconfigurations", false},
	"Namespace":                    {"namespaces", false}, "NetworkPolicy": {"networkpolicies", true},
	"Node":             {"nodes", false},
	"PersistentVolume": {"persistentvolumes", false}, "PersistentVolumeClaim": {"persistentvolumeclaims", true},
	"Pod": {"pods", true}, "PodDisruptionBudget": {"poddisruptionbudgets", true}, "PodTemplate": {"podtemplates", true},
	"PriorityClass": {"priorityclasses", false}, "PriorityLevelConfiguration": {"prioritylevelconfigurations", false},
	"ReplicaSet": {"replicasets", true}, "ReplicationController": {"replicationcontrollers", true},
	"ResourceClaim": {"resourceclaims", true}, "ResourceClaimTemplate": {"resourceclaimtemplates", true},
	"ResourceQuota": {"resourcequotas", true}, "ResourceSlice": {"resourceslices", false},
	"Role": {"roles", true}, "RoleBinding": {"rolebindings", true}, "RuntimeClass": {"runtimeclasses", false},
	"Secret": {"secrets", true}, "Service": {"services", true}, "ServiceAccount": {"serviceaccounts", true},
	"StatefulSet": {"statefulsets", true}, "StorageClass": {"storageclasses", false},
	"ValidatingAdmissionPolicy":        {"validatingadmissionpolicies", false},
	"ValidatingAdmissionPolicyBinding": {"validatingadmissionpolicybindings", false},
	"ValidatingWebhookConfiguration":   {"validatingwebhookconfigurations", false},
	"VolumeAttachment":                 {"volumeattachments", false},
	"VolumeAttributesClass":            {"volumeattributesclasses", false},
}

const (
	table            = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	metadata         = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	metaList         = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	protobuf         = "application/vnd.kubernetes.protobuf"
	metaListProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	apply            = "application/apply-patch+yaml"
)

// objects returns the requests that lifecycle makes for each object of the manifests.
func objects(t *testing.T) []request {
	t.Helper()
	var all, gone []request
	for _, object := range readManifests(t, "life") {
		created, deleted := lifecycle(t, object)
		all = append(all, created...)
		gone = append(gone, deleted...)
	}
	return append(all, gone...)
}

// lifecycle returns requests that create, read, list and change an object, and those that delete
// it.
func lifecycle(t *testing.T, object *unstructured.Unstructured) (created, deleted []request) {
	t.Helper()
	kind := plural[object.GetKind()]
	collection := "/apis/" + object.GetAPIVersion()
	if object.GetAPIVersion() == "v1" {
		collection = "/api/v1"
	}
	if kind.namespaced {
		collection += "/namespaces/" + object.GetNamespace()
	}
	collection += "/" + kind.resource
	item := collection + "/" + object.GetName()
	id := object.GetKind() + " " + object.GetName() + ": "
	body, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	renamed := object.DeepCopy()
	renamed.SetName("second-" + object.GetName())
	second, err := renamed.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	label := `{"metadata":{"labels":{"oracle":"yes"},"annotations":{"oracle":"yes"}}}`
	list := func(query ...string) string {
		if object.GetKind() == "Event" { // a server makes others, of what it repairs
			query = append(query, "fieldSelector=metadata.name%3D"+object.GetName())
		}
		return strings.TrimSuffix(collection+"?"+strings.Join(query, "&"), "?")
	}
	created = []request{
		{name: id + "dry run", method: http.MethodPost, path: collection + "?dryRun=All", body: string(body)},
		{name: id + "create", method: http.MethodPost, path: collection + "?fieldManager=oracle&fieldValidation=Strict",
			body: string(body)},
		{name: id + "create again", method: http.MethodPost, path: collection, body: string(body)},
		{name: id + "get", path: item},
		{name: id + "get as table", path: item, accept: table},
		{name: id + "get metadata", path: item, accept: metadata},
		{name: id + "get in YAML", path: item, accept: "application/yaml"},
		{name: id + "get in protobuf", path: item, accept: protobuf},
		{name: id + "list", path: list()},
		{name: id + "list as table", path: list("includeObject=None"), accept: table},
		{name: id + "list metadata", path: list(), accept: metaList},
		{name: id + "list in protobuf", path: list(), accept: protobuf},
		{name: id + "list as table with metadata", path: list(), accept: table},
		{name: id + "list metadata in protobuf", path: list(), accept: metaListProtobuf},
		{name: id + "list in protobuf again", path: list(), accept: protobuf},
		{name: id + "list by name", path: collection + "?fieldSelector=metadata.name%3D" + object.GetName()},
		{name: id + "watch",
			path: collection + "?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3D" + object.GetName(), events: 1},
		{name: id + "watch as table from the start",
			path: collection + "?watch=1&timeoutSeconds=60&resourceVersion=0&fieldSelector=metadata.name%3D" +
				object.GetName(),
			accept: table, events: 1},
		{name: id + "merge patch", method: http.MethodPatch, path: item, contentType: "application/merge-patch+json",
			body: label},
		{name: id + "strategic patch", method: http.MethodPatch, path: item,
			contentType: "application/strategic-merge-patch+json", body: `{"metadata":{"annotations":{"oracle":null}}}`},
		{name: id + "patch that changes nothing", method: http.MethodPatch, path: item,
			contentType: "application/merge-patch+json", body: `{}`},
		{name: id + "apply", method: http.MethodPatch, path: item + "?fieldManager=applier&force=true", contentType: apply,
			body: string(body)},
		{name: id + "replace", method: http.MethodPut, path: item, body: string(body)},
		{name: id + "get in protobuf after updates", path: item, accept: protobuf},
		{name: id + "list in protobuf after updates", path: list(), accept: protobuf},
		{name: id + "list as table after updates", path: list(), accept: table},
		{name: id + "list metadata after updates", path: list(), accept: metaList},
		{name: id + "list metadata in protobuf after updates", path: list(), accept: metaListProtobuf},
		{name: id + "get status", path: item + "/status"},
		{name: id + "patch status", method: http.MethodPatch, path: item + "/status",
			contentType: "application/merge-patch+json", body: `{"metadata":{"annotations":{"status":"yes"}}}`},
		{name: id + "apply a new one", method: http.MethodPatch,
			path: collection + "/second-" + object.GetName() + "?fieldManager=applier", contentType: apply,
			body: string(second)},
		{name: id + "delete the new one", method: http.MethodDelete,
			path: collection + "/second-" + object.GetName() + "?gracePeriodSeconds=0"},
	}
	if object.GetKind() == "FlowSchema" {
		// Priority and fairness adds its condition a moment later.
		for i := range created {
			created[i].settles = created[i].method == ""
		}
	}
	deleted = []request{
		{name: id + "delete dry run", method: http.MethodDelete, path: item + "?dryRun=All"},
		{name: id + "delete", method: http.MethodDelete, path: item,
			body: `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`},
		{name: id + "delete again", method: http.MethodDelete, path: item},
		{name: id + "delete the rest", method: http.MethodDelete, path: collection + "?labelSelector=oracle%3Dyes"},
	}
	if object.GetKind() == "Namespace" {
		return created, nil // the other objects are in this namespace
	}
	return created, deleted
}

// readManifests returns the objects of package manifests, whose resources must all be known.
func readManifests(t *testing.T, namespace string) []*unstructured.Unstructured {
	t.Helper()
	all, err := manifests.Read(namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range all {
		if _, ok := plural[object.GetKind()]; !ok {
			t.Fatalf("no resource known for kind %s", object.GetKind())
		}
	}
	return all
}
