package objectstore

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

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
	// Program is StorageConfig.Program.
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

// StoreConfig implements Resources.
func (r *SchemeResources) StoreConfig(gr schema.GroupResource, example runtime.Object) (Config, runtime.GroupVersioner, error) {
	stored := r.StoredAs(gr)
	codec, versioner, version, err := r.codec(gr, stored, example)
	if err != nil {
		return Config{}, nil, fmt.Errorf("storage codec of %s: %w", gr, err)
	}
	return Config{
		GroupResource:  stored,
		Owner:          sqlstore.BuiltIn,
		ResourcePrefix: r.ResourcePrefix(stored),
		Codec:          codec,
		StorageVersion: version,
		Lossy:          r.DefaultedOnRead[stored],
		Form:           r.Program + "/" + version.String(),
	}, versioner, nil
}

func (r *SchemeResources) codec(gr, stored schema.GroupResource, example runtime.Object) (runtime.Codec, runtime.GroupVersioner, schema.GroupVersion, error) {
	fail := func(err error) (runtime.Codec, runtime.GroupVersioner, schema.GroupVersion, error) {
		return nil, nil, schema.GroupVersion{}, err
	}
	var version schema.GroupVersion
	var err error
	if compatible, ok := r.Encoding.(serverstorage.CompatibilityResourceEncodingConfig); ok {
		version, err = compatible.BackwardCompatibileStorageEncodingFor(stored, example)
	} else {
		version, err = r.Encoding.StorageEncodingFor(stored)
	}
	if err != nil {
		return fail(err)
	}
	memory, err := r.Encoding.InMemoryEncodingFor(gr)
	if err != nil {
		return fail(err)
	}
	codec, versioner, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:   runtime.ContentTypeJSON,
		StorageSerializer:  r.Codecs,
		StorageVersion:     version,
		MemoryVersion:      memory,
		DecoderDecoratorFn: r.decoders,
	})
	if err != nil {
		return fail(err)
	}
	if r.DefaultedOnRead[stored] {
		codec = roundTripCodec{codec}
	}
	return codec, versioner, version, nil
}

// roundTripCodec encodes an object, decodes it with its defaults, and encodes the
// result.
type roundTripCodec struct{ runtime.Codec }

// Encode implements runtime.Encoder.
func (c roundTripCodec) Encode(obj runtime.Object, w io.Writer) error {
	var first bytes.Buffer
	if err := c.Codec.Encode(obj, &first); err != nil {
		return err
	}
	decoded, _, err := c.Decode(first.Bytes(), nil, nil)
	if err != nil {
		return err
	}
	return c.Codec.Encode(decoded, w)
}

// decoders puts a decoder before upstream's that expects the kind at the beginning of
// an object, where encoders write it. Upstream's decoder parses the whole value to find
// the kind, and then parses it again.
func (r *SchemeResources) decoders(all []runtime.Decoder) []runtime.Decoder {
	quick := json.NewSerializerWithOptions(kindFirst{}, r.Scheme, r.Scheme, json.SerializerOptions{})
	return append([]runtime.Decoder{quick}, all...)
}

// kindFirst reads the kind of an object that begins with it. Upstream's factory reads
// the kind of other objects.
type kindFirst struct{}

var _ json.MetaFactory = kindFirst{}

// Interpret implements json.MetaFactory.
func (kindFirst) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	s := scanner{data, 0}
	if s.nextMember() && string(s.readKey()) == "kind" {
		kind, plain := s.readPlainString()
		if plain && s.nextMember() && string(s.readKey()) == "apiVersion" {
			if version, plain := s.readPlainString(); plain {
				if gv, err := schema.ParseGroupVersion(version); err == nil {
					gvk := gv.WithKind(kind)
					return &gvk, nil
				}
			}
		}
	}
	return json.DefaultMetaFactory.Interpret(data)
}
