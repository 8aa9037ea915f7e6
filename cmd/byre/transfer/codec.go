package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationinstall "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	kjson "sigs.k8s.io/json"

	"byre/apiserver/handlers"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
)

// carriedEncoding is the Encoding of values that this program has not encoded. A Store decodes
// such a value before it answers with it.
const carriedEncoding = "etcd"

// codec encodes and decodes the objects of one resource.
type codec struct {
	config storage.Config
	// stock encodes as a stock server does.
	stock runtime.Encoder
}

// prepare makes the codec of the resource. value is one of its objects.
func (r *resource) prepare(value []byte) error {
	if r.codec != nil {
		return nil
	}
	_, kind, err := r.resources.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return err
	}
	example, err := r.resources.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return err
	}
	config, versioner, err := r.resources.StoreConfig(r.GroupResource, example)
	if err != nil {
		return err
	}
	info, ok := runtime.SerializerInfoForMediaType(r.resources.Codecs.SupportedMediaTypes(), r.mediaType)
	if !ok {
		return fmt.Errorf("%s has no encoder for %s", r.GroupResource, r.mediaType)
	}
	r.codec = &codec{config: config, stock: r.resources.Codecs.EncoderForVersion(info.Serializer, versioner)}
	return nil
}

// object is one object, read from etcd or from a row.
type object struct {
	key objectKey
	uid string
	// typed is nil if the value is carried over as it is.
	typed runtime.Object
	// carried is the value that is carried over, in the form in which etcd has it.
	carried     []byte
	isEncrypted bool
}

// read reads a value in the form in which etcd has it.
func read(at objectKey, value []byte) (*object, error) {
	o := &object{key: at}
	if encoding.IsEncrypted(value) {
		o.carried, o.isEncrypted = value, true
		return o, nil
	}
	if at.resource == nil {
		return o, o.readCustom(value)
	}
	if err := at.resource.prepare(value); err != nil {
		return nil, err
	}
	typed, err := decode(at.resource.codec.config.Codec, value)
	if err != nil {
		return nil, err
	}
	// Objects in etcd have no resourceVersion. This makes sure of it.
	if err := (apistorage.APIObjectVersioner{}).PrepareObjectForStorage(typed); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(typed)
	if err != nil {
		return nil, err
	}
	o.uid, o.typed = string(accessor.GetUID()), typed
	return o, o.checkName(accessor.GetNamespace(), accessor.GetName())
}

// decode decodes a value to what byre will have of it. Protobuf tells values apart that JSON does not, such as bytes
// that are missing and bytes that are empty.
func decode(codec runtime.Codec, value []byte) (runtime.Object, error) {
	object, err := runtime.Decode(codec, value)
	if err != nil || bytes.HasPrefix(value, []byte("{")) {
		return object, err
	}
	if value, err = runtime.Encode(codec, object); err != nil {
		return nil, err
	}
	return runtime.Decode(codec, value)
}

// readCustom reads a custom resource. The value stays as it is, because only its
// definition says how it is converted, defaulted and pruned when a client reads it.
func (o *object) readCustom(value []byte) error {
	var custom metav1.PartialObjectMetadata
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &custom); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	o.uid, o.carried = string(custom.UID), bytes.TrimSpace(value)
	return o.checkName(custom.Namespace, custom.Name)
}

var errOtherName = errors.New("the object has another namespace or name than its key")

func (o *object) checkName(namespace, name string) error {
	if namespace != o.key.Namespace || name != o.key.Name {
		return fmt.Errorf("%w: %q, %q", errOtherName, namespace, name)
	}
	return nil
}

// readRow reads a value in the form in which byre stores it.
func readRow(at objectKey, value []byte) (*object, error) {
	if encoding.IsWrapped(value) {
		sealed, err := encoding.UnwrapEncrypted(value)
		if err != nil {
			return nil, err
		}
		if !encoding.IsEncrypted(sealed) {
			return nil, errors.New("it is encrypted by a transformer that no stock server has")
		}
		return &object{key: at, carried: sealed, isEncrypted: true}, nil
	}
	return read(at, value)
}

// row sets the fields of a record that depend on the object.
func (o *object) row(into *sqlstore.Record) error {
	into.Key, into.UID, into.Encoding = o.key.Key, o.uid, carriedEncoding
	switch {
	case o.typed != nil:
		into.Encoding = o.key.resource.codec.config.Encoding
		var encoded bytes.Buffer
		if err := o.key.resource.codec.config.Codec.Encode(o.typed, &encoded); err != nil {
			return err
		}
		into.Value = bytes.TrimSpace(encoded.Bytes())
	case o.isEncrypted:
		into.Value = encoding.WrapEncrypted(o.carried)
	default:
		into.Value = o.carried
	}
	return nil
}

// stockValue is the value that a stock server stores for the object.
func (o *object) stockValue() ([]byte, error) {
	if o.typed == nil {
		return o.carried, nil
	}
	var encoded bytes.Buffer
	err := o.key.resource.codec.stock.Encode(o.typed, &encoded)
	return encoded.Bytes(), err
}

// DefaultPrefix is kube-apiserver's default of --etcd-prefix.
const DefaultPrefix = "/registry"

// resource is a resource whose types a scheme knows.
type resource struct {
	schema.GroupResource
	resources *storage.SchemeResources
	// mediaType is the media type in which a stock server stores the objects.
	mediaType string
	// codec is made with the first object, because it depends on the object's kind.
	codec *codec
}

// table finds the resource of a key.
type table struct {
	prefix   string // with a slash at its end
	byPrefix map[string]*resource
	byName   map[schema.GroupResource]*resource
}

// newTable makes the table of the version of this program, which will read the imported objects.
func newTable(prefix string) (*table, error) {
	effective := compatibility.DefaultBuildEffectiveVersion()
	t := &table{
		prefix:   "/" + strings.Trim(prefix, "/") + "/",
		byPrefix: map[string]*resource{},
		byName:   map[schema.GroupResource]*resource{},
	}
	for _, gr := range registry.Resources() {
		if err := t.add(gr, storage.BuiltinResources(effective), runtime.ContentTypeProtobuf); err != nil {
			return nil, err
		}
	}
	// A stock server's codecs of these groups have no protobuf either.
	for gr, install := range map[schema.GroupResource]func(*runtime.Scheme){
		apiextensions.Resource("customresourcedefinitions"): apiextensionsinstall.Install,
		apiregistration.Resource("apiservices"):             apiregistrationinstall.Install,
	} {
		scheme := handlers.NewScheme(install)
		resources := storage.GroupResources(scheme, handlers.NewCodecs(scheme), effective, gr)
		if err := t.add(gr, resources, runtime.ContentTypeJSON); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *table) add(gr schema.GroupResource, resources *storage.SchemeResources, mediaType string) error {
	stored := resources.StoredAs(gr)
	prefix := resources.ResourcePrefix(stored)
	if other := t.byPrefix[prefix]; other != nil && other.GroupResource != stored {
		return fmt.Errorf("%s and %s are both kept under %q", other.GroupResource, stored, prefix)
	}
	r := &resource{GroupResource: stored, resources: resources, mediaType: mediaType}
	t.byPrefix[prefix], t.byName[stored] = r, r
	return nil
}

// objectKey identifies an object in etcd and in the database.
type objectKey struct {
	sqlstore.Key
	// resource is nil for a custom resource.
	resource *resource
}

// The reasons for which keys are left out.
const (
	outsidePrefix  = "not below the prefix"
	serverAddress  = "address of a server that ran"
	allocatorRange = "range of an allocator, rebuilt at the start"
	kineHealth     = "kine's health"
	ownRecord      = "record of byre's own"
)

// leftOut returns the reason why a key below the prefix is left out; "" if it is not.
func leftOut(rest string) string {
	first, _, _ := strings.Cut(rest, "/")
	switch first {
	case "masterleases", "peerserverleases":
		return serverAddress
	case "ranges":
		return allocatorRange
	case "health":
		return kineHealth
	}
	return ""
}

// prefixOf returns what a key of etcd has before its built-in resource: the --etcd-prefix of the
// server that wrote it. For a key without one it returns the first part.
func (t *table) prefixOf(key string) string {
	parts := strings.Split(key, "/")
	for i := 1; i < len(parts); i++ {
		for n := 1; n <= 2 && i+n < len(parts); n++ {
			if t.byPrefix[strings.Join(parts[i:i+n], "/")] != nil {
				return strings.Join(parts[:i], "/")
			}
		}
	}
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// find returns the objectKey of a key of etcd, or the reason why the key is left out. If
// the key has neither, it returns an UnknownKeyError.
func (t *table) find(key string) (objectKey, string, error) {
	rest, below := strings.CutPrefix(key, t.prefix)
	if !below {
		return objectKey{}, outsidePrefix, nil
	}
	if reason := leftOut(rest); reason != "" {
		return objectKey{}, reason, nil
	}
	parts := strings.Split(rest, "/")
	for n := 1; n <= 2 && n < len(parts); n++ {
		if r := t.byPrefix[strings.Join(parts[:n], "/")]; r != nil {
			p := objectKey{Key: sqlstore.Key{Group: r.Group, Resource: r.Resource, Owner: sqlstore.BuiltIn}, resource: r}
			return p.named(key, parts[n:])
		}
	}
	// The group of a definition contains a dot, and no prefix of a built-in resource
	// does.
	if len(parts) < 3 || !strings.Contains(parts[0], ".") {
		return objectKey{}, "", &UnknownKeyError{key}
	}
	p := objectKey{Key: sqlstore.Key{Group: parts[0], Resource: parts[1], Owner: sqlstore.Custom}}
	return p.named(key, parts[2:])
}

func (p objectKey) named(key string, parts []string) (objectKey, string, error) {
	switch len(parts) {
	case 1:
		p.Name = parts[0]
	case 2:
		p.Namespace, p.Name = parts[0], parts[1]
	}
	if p.Name == "" || len(parts) == 2 && p.Namespace == "" {
		return objectKey{}, "", &UnknownKeyError{key}
	}
	return p, "", nil
}

// UnknownKeyError is a key of etcd that belongs to no resource of this version.
type UnknownKeyError struct{ Key string }

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%s belongs to no resource that this version knows", e.Key)
}

// key returns the key of etcd for a row, or the reason why the row is left out.
func (t *table) key(k sqlstore.Key) (key string, r *resource, reason string, err error) {
	name := nameIn(k)
	gr := schema.GroupResource{Group: k.Group, Resource: k.Resource}
	if k.Owner == sqlstore.Custom {
		return t.prefix + k.Group + "/" + k.Resource + "/" + name, nil, "", nil
	}
	switch {
	case k.Group == "byre":
		return "", nil, ownRecord, nil
	case k.Group == "" && k.Resource == "servicenodeportallocations":
		return "", nil, allocatorRange, nil
	case k.Group == "" && k.Resource == "apiserveripinfo":
		return "", nil, serverAddress, nil
	}
	if r = t.byName[gr]; r == nil {
		return "", nil, "", fmt.Errorf("%s is no resource that this version knows", gr)
	}
	return t.prefix + r.resources.ResourcePrefix(r.GroupResource) + "/" + name, r, "", nil
}

// nameIn is the part of a key of etcd that follows the resource: NAME or
// NAMESPACE/NAME.
func nameIn(k sqlstore.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// NewOpener returns a function that returns the object in a stored value as JSON. It needs no running
// server, but the transformers, which are those of storage.Backend. It fails if a server could not read
// the object: the value cannot be decrypted with the keys of its resource and its path, or the result
// cannot be decoded.
func NewOpener(
	ctx context.Context, transformers func(schema.GroupResource) value.Transformer,
) (func(key sqlstore.Key, stored []byte) ([]byte, error), error) {
	table, err := newTable(DefaultPrefix)
	return func(key sqlstore.Key, stored []byte) ([]byte, error) {
		return table.open(ctx, transformers, key, stored)
	}, err
}

func (t *table) open(
	ctx context.Context, transformers func(schema.GroupResource) value.Transformer, key sqlstore.Key, stored []byte,
) ([]byte, error) {
	path, resource, reason, err := t.key(key)
	if err != nil {
		return nil, err
	}
	if reason != "" { // a stock server stores it elsewhere, or not at all
		path = t.prefix + key.Resource + "/" + nameIn(key)
	}
	data, err := storage.Decrypt(ctx, transformers(schema.GroupResource{Group: key.Group, Resource: key.Resource}), stored,
		path)
	if err != nil {
		return nil, fmt.Errorf("does not decrypt: %w", err)
	}
	if resource == nil {
		return data, nil
	}
	object, _, err := resource.resources.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("does not decode: %w", err)
	}
	if json.Valid(data) {
		return data, nil
	}
	// An imported value that is encrypted contains protobuf, because a stock server
	// encrypted it.
	return json.Marshal(object)
}
