package transfer

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/storage"
	"byre/sqlstore"
)

// NewOpener returns a function that returns the object in a stored value as JSON. It needs no running
// server, but the transformers, which are those of storage.Backend. It fails if a server could not read
// the object: the value cannot be decrypted with the keys of its resource and its path, or the result
// cannot be decoded.
func NewOpener(ctx context.Context, transformers func(schema.GroupResource) value.Transformer) (func(key sqlstore.Key, stored []byte) ([]byte, error), error) {
	table, err := newTable(DefaultPrefix)
	return func(key sqlstore.Key, stored []byte) ([]byte, error) {
		return table.open(ctx, transformers, key, stored)
	}, err
}

func (t *table) open(ctx context.Context, transformers func(schema.GroupResource) value.Transformer, key sqlstore.Key, stored []byte) ([]byte, error) {
	path, resource, reason, err := t.key(key)
	if err != nil {
		return nil, err
	}
	if reason != "" { // a stock server stores it elsewhere, or not at all
		path = t.prefix + key.Resource + "/" + nameIn(key)
	}
	data, err := storage.Decrypt(ctx, transformers(schema.GroupResource{Group: key.Group, Resource: key.Resource}), stored, path)
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
