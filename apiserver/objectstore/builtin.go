package objectstore

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Program is how a record's Form names the program that serves a version of the API.
func Program(effective compatibility.EffectiveVersion) string {
	return "v" + effective.BinaryVersion().String()
}

// BuiltinResources describes the built-in resources as a server of a version keeps them.
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

// GroupResources describes resources of a group that is not built in, whose types scheme
// knows. Their keys begin with group and resource, like those of a stock server that is
// not kube-apiserver itself.
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

// The tables below are those of Kubernetes 1.36's
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

// builtinCohabitants are the built-in resources that are kept as another one.
func builtinCohabitants() map[schema.GroupResource]schema.GroupResource {
	return map[schema.GroupResource]schema.GroupResource{
		{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
	}
}

// builtinDefaultedOnRead are the built-in resources with defaults that depend on what
// their strategies set. A Job's labels default to those of its Pods, which the strategy
// sets on create. The strategy of a claim resets the phase, which defaults to Pending.
func builtinDefaultedOnRead() map[schema.GroupResource]bool {
	return map[schema.GroupResource]bool{
		{Group: "batch", Resource: "jobs"}:   true,
		{Resource: "persistentvolumeclaims"}: true,
	}
}

// builtinEncoding picks storage versions for the built-in resources: the
// group's preferred version that the effective version knows, except for those
// that a downgraded server must still be able to read.
func builtinEncoding(scheme *runtime.Scheme, effective compatibility.EffectiveVersion) serverstorage.ResourceEncodingConfig {
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, effective)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "coordination.k8s.io", Version: "v1beta1", Resource: "leasecandidates"},
		{Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "mutatingadmissionpolicies"},
		{Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "mutatingadmissionpolicybindings"},
		{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "clustertrustbundles"},
		{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "podcertificaterequests"},
		{Group: "storagemigration.k8s.io", Version: "v1beta1", Resource: "storagemigrations"},
		{Group: "resource.k8s.io", Version: "v1alpha3", Resource: "devicetaintrules"},
		{Group: "resource.k8s.io", Version: "v1alpha3", Resource: "resourcepoolstatusrequests"},
		{Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "workloads"},
		{Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "podgroups"},
	} {
		encoding.SetResourceEncoding(gvr.GroupResource(), gvr.GroupVersion(),
			schema.GroupVersion{Group: gvr.Group, Version: runtime.APIVersionInternal})
	}
	return encoding
}
