package registry

import (
	"slices"

	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
	mutatingwebhookconfiguration "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration/storage"
	validatingwebhookconfiguration "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration/storage"
	storageversion "k8s.io/kubernetes/pkg/registry/apiserverinternal/storageversion/storage"
	controllerrevision "k8s.io/kubernetes/pkg/registry/apps/controllerrevision/storage"
	daemonset "k8s.io/kubernetes/pkg/registry/apps/daemonset/storage"
	horizontalpodautoscaler "k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler/storage"
	cronjob "k8s.io/kubernetes/pkg/registry/batch/cronjob/storage"
	job "k8s.io/kubernetes/pkg/registry/batch/job/storage"
	clustertrustbundle "k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle/storage"
	lease "k8s.io/kubernetes/pkg/registry/coordination/lease/storage"
	leasecandidate "k8s.io/kubernetes/pkg/registry/coordination/leasecandidate/storage"
	endpointslice "k8s.io/kubernetes/pkg/registry/discovery/endpointslice/storage"
	flowschema "k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema/storage"
	prioritylevelconfiguration "k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration/storage"
	evictionrequest "k8s.io/kubernetes/pkg/registry/lifecycle/evictionrequest/storage"
	ingress "k8s.io/kubernetes/pkg/registry/networking/ingress/storage"
	ingressclass "k8s.io/kubernetes/pkg/registry/networking/ingressclass/storage"
	ipaddress "k8s.io/kubernetes/pkg/registry/networking/ipaddress/storage"
	networkpolicy "k8s.io/kubernetes/pkg/registry/networking/networkpolicy/storage"
	servicecidr "k8s.io/kubernetes/pkg/registry/networking/servicecidr/storage"
	runtimeclass "k8s.io/kubernetes/pkg/registry/node/runtimeclass/storage"
	poddisruptionbudget "k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget/storage"
	deviceclass "k8s.io/kubernetes/pkg/registry/resource/deviceclass/storage"
	devicetaintrule "k8s.io/kubernetes/pkg/registry/resource/devicetaintrule/storage"
	resourcepoolstatusrequest "k8s.io/kubernetes/pkg/registry/resource/resourcepoolstatusrequest/storage"
	resourceslice "k8s.io/kubernetes/pkg/registry/resource/resourceslice/storage"
	compositepodgroup "k8s.io/kubernetes/pkg/registry/scheduling/compositepodgroup/storage"
	podgroup "k8s.io/kubernetes/pkg/registry/scheduling/podgroup/storage"
	priorityclass "k8s.io/kubernetes/pkg/registry/scheduling/priorityclass/storage"
	workload "k8s.io/kubernetes/pkg/registry/scheduling/workload/storage"
	storageclass "k8s.io/kubernetes/pkg/registry/storage/storageclass/storage"
	volumeattributesclass "k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass/storage"
	storagemigration "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration/storage"
)

// apiGroup is one API group in the table.
type apiGroup struct {
	name      string
	resources []apiResource
}

// apiResource is one resource of a group, with its subresources.
type apiResource struct {
	name string
	// versions are the versions in which the resource can be served.
	versions []string
	// featureGate is the gate that must be on for the resource to be served; empty
	// if there is none.
	featureGate featuregate.Feature
	build       constructor
}

// versions returns the versions of a group, each once.
func (g apiGroup) versions() []string {
	var all []string
	for _, r := range g.resources {
		for _, v := range r.versions {
			if !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	return all
}

// ungated is the featureGate of a resource without one.
const ungated = featuregate.Feature("")

var v1 = []string{"v1"}

// apiGroups returns all built-in groups. Their order is that of upstream's
// CompletedConfig.StorageProviders in pkg/controlplane/instance.go. The resources of a
// group are those of upstream's pkg/registry/<group>/rest. Emulation removes the versions that
// the served release does not have.
func apiGroups() []apiGroup { //nolint:funlen // a table: one line a resource
	return []apiGroup{
		{"", coreResources()},
		{"internal.apiserver.k8s.io", []apiResource{
			{"storageversions", []string{"v1alpha1"}, ungated, withStatus(storageversion.NewREST)},
		}},
		{"authentication.k8s.io", []apiResource{
			{"tokenreviews", v1, ungated, tokenReviews},
			{"selfsubjectreviews", v1, ungated, selfSubjectReviews},
		}},
		{"authorization.k8s.io", []apiResource{
			{"subjectaccessreviews", v1, ungated, subjectAccessReviews},
			{"selfsubjectaccessreviews", v1, ungated, selfSubjectAccessReviews},
			{"localsubjectaccessreviews", v1, ungated, localSubjectAccessReviews},
			{"selfsubjectrulesreviews", v1, ungated, selfSubjectRulesReviews},
		}},
		{"autoscaling", []apiResource{
			{"horizontalpodautoscalers", []string{"v2", "v1"}, ungated, withStatus(horizontalpodautoscaler.NewREST)},
		}},
		{"batch", []apiResource{
			{"jobs", v1, ungated, withStatus(job.NewREST)},
			{"cronjobs", v1, ungated, withStatus(cronjob.NewREST)},
		}},
		{"certificates.k8s.io", []apiResource{
			{"certificatesigningrequests", v1, ungated, certificateSigningRequests},
			{"clustertrustbundles", []string{"v1", "v1beta1", "v1alpha1"}, features.ClusterTrustBundle, withoutStatus(clustertrustbundle.NewREST)},
			{"podcertificaterequests", []string{"v1", "v1beta1"}, features.PodCertificateRequest, podCertificateRequests},
		}},
		{"coordination.k8s.io", []apiResource{
			{"leases", v1, ungated, withoutStatus(lease.NewREST)},
			{"leasecandidates", []string{"v1beta1", "v1alpha2"}, ungated, withoutStatus(leasecandidate.NewREST)},
		}},
		{"discovery.k8s.io", []apiResource{
			{"endpointslices", v1, ungated, withoutStatus(endpointslice.NewREST)},
		}},
		{"networking.k8s.io", []apiResource{
			{"networkpolicies", v1, ungated, withoutStatus(networkpolicy.NewREST)},
			{"ingresses", v1, ungated, withStatus(ingress.NewREST)},
			{"ingressclasses", v1, ungated, withoutStatus(ingressclass.NewREST)},
			{"ipaddresses", []string{"v1", "v1beta1"}, ungated, withoutStatus(ipaddress.NewREST)},
			{"servicecidrs", []string{"v1", "v1beta1"}, ungated, withStatus(servicecidr.NewREST)},
		}},
		{"node.k8s.io", []apiResource{
			{"runtimeclasses", v1, ungated, withoutStatus(runtimeclass.NewREST)},
		}},
		{"lifecycle.k8s.io", []apiResource{
			{"evictions", []string{"v1alpha1"}, features.EvictionRequestAPI, lifecycleEvictions},
			{"evictionrequests", []string{"v1alpha1"}, features.EvictionRequestAPI, withStatus(evictionrequest.NewREST)},
		}},
		{"policy", []apiResource{
			{"poddisruptionbudgets", v1, ungated, withStatus(poddisruptionbudget.NewREST)},
		}},
		{"rbac.authorization.k8s.io", []apiResource{
			{"roles", v1, ungated, roles},
			{"rolebindings", v1, ungated, roleBindings},
			{"clusterroles", v1, ungated, clusterRoles},
			{"clusterrolebindings", v1, ungated, clusterRoleBindings},
		}},
		{"scheduling.k8s.io", []apiResource{
			{"priorityclasses", v1, ungated, withoutStatus(priorityclass.NewREST)},
			{"workloads", []string{"v1beta1", "v1alpha3"}, features.GenericWorkload, withoutStatus(workload.NewREST)},
			{"podgroups", []string{"v1beta1", "v1alpha3"}, features.GenericWorkload, withStatus(podgroup.NewREST)},
			{"compositepodgroups", []string{"v1alpha3"}, features.CompositePodGroup, withStatus(compositepodgroup.NewREST)},
		}},
		{"storage.k8s.io", []apiResource{
			{"storageclasses", v1, ungated, withoutStatus(storageclass.NewREST)},
			{"volumeattachments", v1, ungated, volumeAttachments},
			{"volumeattributesclasses", []string{"v1", "v1beta1"}, ungated, withoutStatus(volumeattributesclass.NewREST)},
			{"csinodes", v1, ungated, csiNodes},
			{"csidrivers", v1, ungated, csiDrivers},
			{"csistoragecapacities", v1, ungated, csiStorageCapacities},
		}},
		{"storagemigration.k8s.io", []apiResource{
			{"storageversionmigrations", []string{"v1", "v1beta1"}, features.StorageVersionMigrator, withStatus(storagemigration.NewREST)},
		}},
		{"flowcontrol.apiserver.k8s.io", []apiResource{
			{"flowschemas", v1, ungated, withStatus(flowschema.NewREST)},
			{"prioritylevelconfigurations", v1, ungated, withStatus(prioritylevelconfiguration.NewREST)},
		}},
		{"apps", []apiResource{
			{"deployments", v1, ungated, deployments},
			{"statefulsets", v1, ungated, statefulSets},
			{"daemonsets", v1, ungated, withStatus(daemonset.NewREST)},
			{"replicasets", v1, ungated, replicaSets},
			{"controllerrevisions", v1, ungated, withoutStatus(controllerrevision.NewREST)},
		}},
		{"admissionregistration.k8s.io", []apiResource{
			{"validatingwebhookconfigurations", v1, ungated, withoutStatus(validatingwebhookconfiguration.NewREST)},
			{"mutatingwebhookconfigurations", v1, ungated, withoutStatus(mutatingwebhookconfiguration.NewREST)},
			{"validatingadmissionpolicies", v1, ungated, validatingAdmissionPolicies},
			{"validatingadmissionpolicybindings", v1, ungated, validatingAdmissionPolicyBindings},
			{"mutatingadmissionpolicies", []string{"v1", "v1beta1", "v1alpha1"}, ungated, mutatingAdmissionPolicies},
			{"mutatingadmissionpolicybindings", []string{"v1", "v1beta1", "v1alpha1"}, ungated, mutatingAdmissionPolicyBindings},
		}},
		{"events.k8s.io", []apiResource{
			{"events", v1, ungated, events},
		}},
		{"resource.k8s.io", []apiResource{
			{"deviceclasses", []string{"v1", "v1beta2", "v1beta1"}, ungated, withoutStatus(deviceclass.NewREST)},
			{"devicetaintrules", v1, ungated, withStatus(devicetaintrule.NewRESTv1)},
			{"devicetaintrules", []string{"v1beta2", "v1alpha3"}, ungated, withStatus(devicetaintrule.NewRESTLegacy)},
			{"resourceclaims", []string{"v1", "v1beta2", "v1beta1"}, ungated, resourceClaims},
			{"resourceclaimtemplates", []string{"v1", "v1beta2", "v1beta1"}, ungated, resourceClaimTemplates},
			{"resourceslices", []string{"v1", "v1beta2", "v1beta1"}, ungated, withoutStatus(resourceslice.NewREST)},
			{"resourcepoolstatusrequests", []string{"v1alpha3"}, ungated, withStatus(resourcepoolstatusrequest.NewREST)},
		}},
	}
}
