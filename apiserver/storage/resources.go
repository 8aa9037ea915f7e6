package storage

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
)

// SchemeResources describes the resources whose types a scheme knows. Scheme, Codecs,
// Encoding and Program are required.
type SchemeResources struct {
	Scheme *runtime.Scheme
	// Codecs is the scheme's codec factory.
	Codecs runtime.StorageSerializer
	// Encoding chooses the storage version and the version in memory of a resource.
	Encoding serverstorage.ResourceEncodingConfig
	// Program is Backend.Program.
	Program string
	// Prefixes are the key prefixes that differ from the resource's name.
	Prefixes map[schema.GroupResource]string
	// Cohabitants are the resources whose objects are stored as those of another
	// resource.
	Cohabitants map[schema.GroupResource]schema.GroupResource
	// DefaultedOnRead are the resources whose strategies reset fields that the next
	// decode defaults. Their objects are stored with these defaults, because reads are
	// answered with the stored bytes.
	DefaultedOnRead map[schema.GroupResource]bool
}

var _ Resources = (*SchemeResources)(nil)

// StoredAs implements Resources.
func (r *SchemeResources) StoredAs(gr schema.GroupResource) schema.GroupResource {
	if stored, ok := r.Cohabitants[gr]; ok {
		return stored
	}
	return gr
}

// ResourcePrefix is what the keys of a resource begin with in etcd, after "/registry",
// without slashes around it.
func (r *SchemeResources) ResourcePrefix(gr schema.GroupResource) string {
	stored := r.StoredAs(gr)
	if prefix, ok := r.Prefixes[stored]; ok {
		return prefix
	}
	return strings.ToLower(stored.Resource)
}

// eventResource is what kube-apiserver has no watch cache of: see DefaultWatchCacheSizes of
// k8s.io/kubernetes/pkg/kubeapiserver.
var eventResource = schema.GroupResource{Resource: "events"}

// StoreConfig implements Resources.
func (r *SchemeResources) StoreConfig(
	gr schema.GroupResource, example runtime.Object,
) (Config, runtime.GroupVersioner, error) {
	stored := r.StoredAs(gr)
	version, err := r.storageVersion(stored, example)
	if err != nil {
		return Config{}, nil, fmt.Errorf("storage version of %s: %w", gr, err)
	}
	kinds, _, err := r.Scheme.ObjectKinds(example)
	if err != nil {
		return Config{}, nil, fmt.Errorf("kind of %s: %w", gr, err)
	}
	kind := version.WithKind(kinds[0].Kind)
	message := encoding.NewMessage(r.Scheme, kind)
	codec, versioner, err := r.codec(gr, stored, kind, message)
	if err != nil {
		return Config{}, nil, fmt.Errorf("storage codec of %s: %w", gr, err)
	}
	return Config{
		GroupResource:  stored,
		Owner:          sqlstore.BuiltIn,
		ResourcePrefix: r.ResourcePrefix(stored),
		Codec:          codec,
		StorageVersion: version,
		Message:        message,
		Lossy:          r.DefaultedOnRead[stored],
		Uncached:       stored == eventResource,
		Encoding:       r.Program + "/" + version.String(),
	}, versioner, nil
}

// StorageKind returns the version and the kind in which the objects of a resource are stored.
func (r *SchemeResources) StorageKind(gr schema.GroupResource, kind string) (schema.GroupVersionKind, error) {
	stored := r.StoredAs(gr)
	example, err := r.Scheme.New(schema.GroupVersionKind{Group: gr.Group, Version: runtime.APIVersionInternal, Kind: kind})
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	version, err := r.storageVersion(stored, example)
	return version.WithKind(kind), err
}

// storageVersion returns the version in which the objects of a resource are stored.
func (r *SchemeResources) storageVersion(
	stored schema.GroupResource, example runtime.Object,
) (schema.GroupVersion, error) {
	if compatible, ok := r.Encoding.(serverstorage.CompatibilityResourceEncodingConfig); ok {
		return compatible.BackwardCompatibileStorageEncodingFor(stored, example)
	}
	return r.Encoding.StorageEncodingFor(stored)
}

// codec makes the codec of a resource whose objects are stored as objects of kind.
func (r *SchemeResources) codec(
	gr, stored schema.GroupResource, kind schema.GroupVersionKind, message func() *transcode.Message,
) (runtime.Codec, runtime.GroupVersioner, error) {
	memory, err := r.Encoding.InMemoryEncodingFor(gr)
	if err != nil {
		return nil, nil, err
	}
	// The decoder comes before upstream's. It expects the kind at the beginning of an
	// object, where encoders write it. Upstream's decoder parses the whole value to find the
	// kind, and then parses it again.
	decoder := encoding.NewDecoder(r.Scheme, kind, message)
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeJSON,
		StorageSerializer: r.Codecs,
		StorageVersion:    kind.GroupVersion(),
		MemoryVersion:     memory,
		DecoderDecoratorFn: func(all []runtime.Decoder) []runtime.Decoder {
			return append([]runtime.Decoder{decoder}, all...)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	if r.DefaultedOnRead[stored] {
		codec = roundTripCodec{codec}
	}
	return codec, versioner, nil
}

// roundTripCodec encodes an object, decodes it with its defaults, and encodes the
// result. An object without a UID is a bookmark, which has no defaults in upstream either.
type roundTripCodec struct{ runtime.Codec }

// Encode implements runtime.Encoder.
func (c roundTripCodec) Encode(obj runtime.Object, w io.Writer) error {
	var first bytes.Buffer
	if err := c.Codec.Encode(obj, &first); err != nil {
		return err
	}
	if object, err := meta.Accessor(obj); err == nil && object.GetUID() == "" {
		_, err := first.WriteTo(w)
		return err
	}
	decoded, _, err := c.Decode(first.Bytes(), nil, nil)
	if err != nil {
		return err
	}
	return c.Codec.Encode(decoded, w)
}

// BuiltinResources describes how a server of the effective version stores the built-in
// resources.
func BuiltinResources(effective compatibility.EffectiveVersion) *SchemeResources {
	return &SchemeResources{
		Scheme:   legacyscheme.Scheme,
		Codecs:   legacyscheme.Codecs,
		Encoding: builtinEncoding(effective),
		Prefixes: kubeapiserver.SpecialDefaultResourcePrefixes,
		Cohabitants: map[schema.GroupResource]schema.GroupResource{{Group: "events.k8s.io",
			Resource: "events"}: {Resource: "events"}},
		DefaultedOnRead: builtinDefaultedOnRead(),
		Program:         Program(effective),
	}
}

// GroupResources describes resources of a group that is not built in, whose types
// scheme knows. Their keys begin with group and resource, as in stock API servers other
// than kube-apiserver.
func GroupResources(
	scheme *runtime.Scheme, codecs runtime.StorageSerializer, effective compatibility.EffectiveVersion,
	resources ...schema.GroupResource,
) *SchemeResources {
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

// Program names, in a record's Encoding, what a decode depends on in this process besides the
// record: the release of Kubernetes with its patch level, the emulated version if it is
// another, and a hash of the feature gates that are not as the emulated version has them by
// default. A record that was stored otherwise is decoded and defaulted when it is read, as a
// stock server does with every record.
//
// The feature gates of the process must not change after the call.
func Program(effective compatibility.EffectiveVersion) string {
	name := KubernetesVersion(effective)
	if emulated := effective.EmulationVersion(); !effective.BinaryVersion().WithPatch(0).EqualTo(emulated) {
		name += "~" + emulated.String()
	}
	var changed []byte
	gates := utilfeature.DefaultMutableFeatureGate
	all := gates.GetAll()
	for _, gate := range slices.Sorted(maps.Keys(all)) {
		if enabled := gates.Enabled(gate); enabled != all[gate].Default {
			changed = fmt.Appendf(changed, "%s=%t,", gate, enabled)
		}
	}
	if len(changed) > 0 {
		hash := sha256.Sum256(changed)
		name += fmt.Sprintf("+%x", hash[:8])
	}
	return name
}

// KubernetesVersion is the release of Kubernetes that the program was built with, such as
// v1.37.2. It comes from the build information that the Go toolchain records in every binary.
func KubernetesVersion(effective compatibility.EffectiveVersion) string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if dep.Path == "k8s.io/kubernetes" {
				return dep.Version
			}
		}
	}
	return "v" + effective.BinaryVersion().String()
}
