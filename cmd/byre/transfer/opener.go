package transfer

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/component-base/compatibility"

	"byre/apiserver/storage"
	"byre/sqlstore"
)

// Opener decrypts and decodes stored values with the keys of a server. It needs no
// running server.
type Opener struct {
	table        *table
	transformers func(schema.GroupResource) value.Transformer
}

// NewOpener makes an Opener. The transformers are those of factory.Backend.
func NewOpener(effective compatibility.EffectiveVersion, transformers func(schema.GroupResource) value.Transformer) (*Opener, error) {
	table, err := newTable(DefaultPrefix, effective)
	return &Opener{table, transformers}, err
}

// Open returns the object in a stored value as JSON. It fails if a server could not
// read the object: the value cannot be decrypted with the keys of its resource and its
// path, or the result cannot be decoded.
func (o *Opener) Open(ctx context.Context, key sqlstore.Key, stored []byte) ([]byte, error) {
	path, resource, reason, err := o.table.key(key)
	if err != nil {
		return nil, err
	}
	if reason != "" { // a stock server stores it elsewhere, or not at all
		path = o.table.prefix + key.Resource + "/" + nameIn(key)
	}
	data, err := storage.Decrypt(ctx, o.transformers(schema.GroupResource{Group: key.Group, Resource: key.Resource}), stored, path)
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
