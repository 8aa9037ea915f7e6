package storage

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubeapiserver"
)

// BuiltinResources describes how a server of the effective version stores the built-in
// resources.
func BuiltinResources(effective compatibility.EffectiveVersion) *SchemeResources {
	return &SchemeResources{
		Scheme:          legacyscheme.Scheme,
		Codecs:          legacyscheme.Codecs,
		Encoding:        builtinEncoding(effective),
		Prefixes:        kubeapiserver.SpecialDefaultResourcePrefixes,
		Cohabitants:     map[schema.GroupResource]schema.GroupResource{{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"}},
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

// builtinEncoding chooses the storage versions of the built-in resources as kube-apiserver does.
func builtinEncoding(effective compatibility.EffectiveVersion) serverstorage.ResourceEncodingConfig {
	stock := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(effective)
	return resourceconfig.MergeResourceEncodingConfigs(stock.DefaultResourceEncoding, stock.ResourceEncodingOverrides)
}
