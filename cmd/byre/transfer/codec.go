package transfer

import (
	"bytes"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/json"

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

// decode decodes a value to what byre will have of it. Protobuf tells values apart that JSON does not, such as bytes that are
// missing and bytes that are empty.
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
	if err := json.UnmarshalCaseSensitivePreserveInts(value, &custom); err != nil {
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
