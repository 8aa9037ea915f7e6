package handlers

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// NewScheme returns a scheme with the types that install adds and with the types that every
// API uses: options, watch events, Status and the discovery types.
func NewScheme(install func(*runtime.Scheme)) *runtime.Scheme {
	scheme := runtime.NewScheme()
	install(scheme)
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned,
		&metav1.Status{},
		&metav1.WatchEvent{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return scheme
}

// NewCodecs returns the codec factory of a scheme, with the encodings of streams and the one that a
// feature gate enables, as upstream's NewDefaultAPIGroupInfo does for each group.
func NewCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	options := []serializer.CodecFactoryOptionsMutator{
		serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf(),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		options = append(options, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return serializer.NewCodecFactory(scheme, options...)
}

// NewTextGroup returns a group of one version, whose types have no protobuf: it is served as JSON and YAML.
func NewTextGroup(gv schema.GroupVersion, scheme *runtime.Scheme, storages map[string]rest.Storage) Group {
	return Group{
		Name:           gv.Group,
		Versions:       []string{gv.Version},
		Storage:        map[string]map[string]rest.Storage{gv.Version: storages},
		Scheme:         scheme,
		Codecs:         textCodecs{serializer.NewCodecFactory(scheme)},
		ParameterCodec: runtime.NewParameterCodec(scheme),
	}
}

// textCodecs are the JSON and YAML of a codec factory.
type textCodecs struct{ serializer.CodecFactory }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c textCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(c.CodecFactory.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeYAML
	})
}
