package builtin

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
	podgroup "k8s.io/kubernetes/pkg/registry/scheduling/podgroup/storage"
	priorityclass "k8s.io/kubernetes/pkg/registry/scheduling/priorityclass/storage"
	workload "k8s.io/kubernetes/pkg/registry/scheduling/workload/storage"
	storageclass "k8s.io/kubernetes/pkg/registry/storage/storageclass/storage"
	volumeattributesclass "k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass/storage"
	storagemigration "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration/storage"
)

// group is one API group of the table.
type group struct {
	name      string
	resources []resource
}

// resource is one resource of a group, with its subresources.
type resource struct {
	name string
	// versions are all that can serve it.
	versions []string
	// feature, when not empty, must be on for the resource to be served.
	feature featuregate.Feature
	build   constructor
}

// versions returns the versions of a group, each once.
func (g group) versions() []string {
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

// These keep the table's lines short.
var (
	v1 = []string{"v1"}
	on = featuregate.Feature("")
)

// table says what there is. The order of groups is upstream's
// (CompletedConfig.StorageProviders in pkg/controlplane/instance.go); what each
// has is from pkg/registry/<group>/rest, less the versions that are past their
// removal in this release, which upstream's server sorts out as it starts.
func table() []group {
	return []group{
		{"", coreTable()},
		{"internal.apiserver.k8s.io", []resource{
			{"storageversions", []string{"v1alpha1"}, on, withStatus(storageversion.NewREST)},
		}},
		{"authentication.k8s.io", []resource{
			{"tokenreviews", v1, on, tokenReviews},
			{"selfsubjectreviews", v1, on, selfSubjectReviews},
		}},
		{"authorization.k8s.io", []resource{
			{"subjectaccessreviews", v1, on, subjectAccessReviews},
			{"selfsubjectaccessreviews", v1, on, selfSubjectAccessReviews},
			{"localsubjectaccessreviews", v1, on, localSubjectAccessReviews},
			{"selfsubjectrulesreviews", v1, on, selfSubjectRulesReviews},
		}},
		{"autoscaling", []resource{
			{"horizontalpodautoscalers", []string{"v2", "v1"}, on, withStatus(horizontalpodautoscaler.NewREST)},
		}},
		{"batch", []resource{
			{"jobs", v1, on, withStatus(job.NewREST)},
			{"cronjobs", v1, on, withStatus(cronjob.NewREST)},
		}},
		{"certificates.k8s.io", []resource{
			{"certificatesigningrequests", v1, on, certificateSigningRequests},
			{"clustertrustbundles", []string{"v1beta1", "v1alpha1"}, features.ClusterTrustBundle, alone(clustertrustbundle.NewREST)},
			{"podcertificaterequests", []string{"v1beta1"}, features.PodCertificateRequest, podCertificateRequests},
		}},
		{"coordination.k8s.io", []resource{
			{"leases", v1, on, alone(lease.NewREST)},
			{"leasecandidates", []string{"v1beta1", "v1alpha2"}, on, alone(leasecandidate.NewREST)},
		}},
		{"discovery.k8s.io", []resource{
			{"endpointslices", v1, on, alone(endpointslice.NewREST)},
		}},
		{"networking.k8s.io", []resource{
			{"networkpolicies", v1, on, alone(networkpolicy.NewREST)},
			{"ingresses", v1, on, withStatus(ingress.NewREST)},
			{"ingressclasses", v1, on, alone(ingressclass.NewREST)},
			{"ipaddresses", []string{"v1", "v1beta1"}, on, alone(ipaddress.NewREST)},
			{"servicecidrs", []string{"v1", "v1beta1"}, on, withStatus(servicecidr.NewREST)},
		}},
		{"node.k8s.io", []resource{
			{"runtimeclasses", v1, on, alone(runtimeclass.NewREST)},
		}},
		{"policy", []resource{
			{"poddisruptionbudgets", v1, on, withStatus(poddisruptionbudget.NewREST)},
		}},
		{"rbac.authorization.k8s.io", []resource{
			{"roles", v1, on, roles},
			{"rolebindings", v1, on, roleBindings},
			{"clusterroles", v1, on, clusterRoles},
			{"clusterrolebindings", v1, on, clusterRoleBindings},
		}},
		{"scheduling.k8s.io", []resource{
			{"priorityclasses", v1, on, alone(priorityclass.NewREST)},
			{"workloads", []string{"v1alpha2"}, features.GenericWorkload, alone(workload.NewREST)},
			{"podgroups", []string{"v1alpha2"}, features.GenericWorkload, withStatus(podgroup.NewREST)},
		}},
		{"storage.k8s.io", []resource{
			{"storageclasses", v1, on, alone(storageclass.NewREST)},
			{"volumeattachments", v1, on, volumeAttachments},
			{"volumeattributesclasses", []string{"v1", "v1beta1"}, on, alone(volumeattributesclass.NewREST)},
			{"csinodes", v1, on, csiNodes},
			{"csidrivers", v1, on, csiDrivers},
			{"csistoragecapacities", v1, on, csiStorageCapacities},
		}},
		{"storagemigration.k8s.io", []resource{
			{"storageversionmigrations", []string{"v1beta1"}, features.StorageVersionMigrator, withStatus(storagemigration.NewREST)},
		}},
		{"flowcontrol.apiserver.k8s.io", []resource{
			{"flowschemas", v1, on, withStatus(flowschema.NewREST)},
			{"prioritylevelconfigurations", v1, on, withStatus(prioritylevelconfiguration.NewREST)},
		}},
		{"apps", []resource{
			{"deployments", v1, on, deployments},
			{"statefulsets", v1, on, statefulSets},
			{"daemonsets", v1, on, withStatus(daemonset.NewREST)},
			{"replicasets", v1, on, replicaSets},
			{"controllerrevisions", v1, on, alone(controllerrevision.NewREST)},
		}},
		{"admissionregistration.k8s.io", []resource{
			{"validatingwebhookconfigurations", v1, on, alone(validatingwebhookconfiguration.NewREST)},
			{"mutatingwebhookconfigurations", v1, on, alone(mutatingwebhookconfiguration.NewREST)},
			{"validatingadmissionpolicies", v1, on, validatingAdmissionPolicies},
			{"validatingadmissionpolicybindings", v1, on, validatingAdmissionPolicyBindings},
			{"mutatingadmissionpolicies", []string{"v1", "v1beta1", "v1alpha1"}, on, mutatingAdmissionPolicies},
			{"mutatingadmissionpolicybindings", []string{"v1", "v1beta1", "v1alpha1"}, on, mutatingAdmissionPolicyBindings},
		}},
		{"events.k8s.io", []resource{
			{"events", v1, on, events},
		}},
		{"resource.k8s.io", []resource{
			{"deviceclasses", []string{"v1", "v1beta2", "v1beta1"}, on, alone(deviceclass.NewREST)},
			{"devicetaintrules", []string{"v1beta2", "v1alpha3"}, on, withStatus(devicetaintrule.NewREST)},
			{"resourceclaims", []string{"v1", "v1beta2", "v1beta1"}, on, resourceClaims},
			{"resourceclaimtemplates", []string{"v1", "v1beta2", "v1beta1"}, on, resourceClaimTemplates},
			{"resourceslices", []string{"v1", "v1beta2", "v1beta1"}, on, alone(resourceslice.NewREST)},
			{"resourcepoolstatusrequests", []string{"v1alpha3"}, on, withStatus(resourcepoolstatusrequest.NewREST)},
		}},
	}
}
