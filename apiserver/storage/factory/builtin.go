package factory

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// BuiltinResources describes how a server of the effective version stores the built-in
// resources.
func BuiltinResources(effective compatibility.EffectiveVersion) *SchemeResources {
	return &SchemeResources{
		Scheme:          legacyscheme.Scheme,
		Codecs:          legacyscheme.Codecs,
		Encoding:        builtinEncoding(legacyscheme.Scheme, effective),
		Prefixes:        builtinPrefixes(),
		Cohabitants:     builtinCohabitants(),
		DefaultedOnRead: builtinDefaultedOnRead(),
		Program:         Program(effective),
	}
}

// GroupResources describes resources of a group that is not built in, whose types
// scheme knows. Their keys begin with group and resource, as in stock API servers other
// than kube-apiserver.
func GroupResources(scheme *runtime.Scheme, codecs runtime.StorageSerializer, effective compatibility.EffectiveVersion, resources ...schema.GroupResource) *SchemeResources {
	prefixes := map[schema.GroupResource]string{}
	for _, gr := range resources {
		prefixes[gr] = gr.Group + "/" + gr.Resource
	}
	return &SchemeResources{
		Scheme:   scheme,
		Codecs:   codecs,
		Encoding: serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, effective),
		Program:  Program(effective),
		Prefixes: prefixes,
	}
}

// The tables below are those of Kubernetes 1.37's
// pkg/kubeapiserver/default_storage_factory_builder.go, which can't be imported
// without the whole generic server.

// builtinPrefixes are the key prefixes of built-in resources that differ from
// the resource's name.
func builtinPrefixes() map[schema.GroupResource]string {
	return map[schema.GroupResource]string{
		{Resource: "replicationcontrollers"}:                "controllers",
		{Resource: "endpoints"}:                             "services/endpoints",
		{Resource: "nodes"}:                                 "minions",
		{Resource: "services"}:                              "services/specs",
		{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
	}
}

// builtinCohabitants are the built-in resources whose objects are stored as those of
// another resource.
func builtinCohabitants() map[schema.GroupResource]schema.GroupResource {
	return map[schema.GroupResource]schema.GroupResource{
		{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
	}
}

// builtinDefaultedOnRead are the built-in resources whose defaults apply to what an encode
// leaves. The strategies of two set fields after defaulting: the labels of a Job default to the
// labels of its Pod template, which the strategy sets on create, and the strategy of a
// PersistentVolumeClaim resets the phase, which defaults to Pending. In others an empty field is
// not defaulted, but an encode leaves it out: the allocatable of a Node defaults to its
// capacity. TestDefaults_ThatAnEncodeUndoesAreStored finds those.
func builtinDefaultedOnRead() map[schema.GroupResource]bool {
	return map[schema.GroupResource]bool{
		{Group: "batch", Resource: "jobs"}:                           true,
		{Resource: "persistentvolumeclaims"}:                         true,
		{Resource: "nodes"}:                                          true,
		{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: true,
		{Group: "networking.k8s.io", Resource: "ingressclasses"}:     true,
		{Group: "storage.k8s.io", Resource: "volumeattachments"}:     true,
	}
}

// builtinEncoding chooses the storage versions of the built-in resources. It is the
// preferred version of the group that the effective version knows. The resources in the
// list have an older one, so that a server can read them after a downgrade.
func builtinEncoding(scheme *runtime.Scheme, effective compatibility.EffectiveVersion) serverstorage.ResourceEncodingConfig {
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, effective)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "coordination.k8s.io", Version: "v1beta1", Resource: "leasecandidates"},
		{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "clustertrustbundles"},
		{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "podcertificaterequests"},
		{Group: "storagemigration.k8s.io", Version: "v1beta1", Resource: "storageversionmigrations"},
		{Group: "resource.k8s.io", Version: "v1beta2", Resource: "devicetaintrules"},
		{Group: "resource.k8s.io", Version: "v1alpha3", Resource: "resourcepoolstatusrequests"},
		{Group: "scheduling.k8s.io", Version: "v1beta1", Resource: "workloads"},
		{Group: "scheduling.k8s.io", Version: "v1beta1", Resource: "podgroups"},
		{Group: "scheduling.k8s.io", Version: "v1alpha3", Resource: "compositepodgroups"},
		{Group: "lifecycle.k8s.io", Version: "v1alpha1", Resource: "evictions"},
		{Group: "lifecycle.k8s.io", Version: "v1alpha1", Resource: "evictionrequests"},
	} {
		encoding.SetResourceEncoding(gvr.GroupResource(), gvr.GroupVersion(),
			schema.GroupVersion{Group: gvr.Group, Version: runtime.APIVersionInternal})
	}
	return encoding
}
