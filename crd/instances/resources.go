package instances

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage"

	"byre/sqlstore"
)

// A versionBuilder describes how the registry of its version keeps its objects. The stores of a
// definition's versions keep the same rows; each decodes to its own version.
var _ storage.Resources = (*versionBuilder)(nil)

// StoredAs implements storage.Resources.
func (*versionBuilder) StoredAs(gr schema.GroupResource) schema.GroupResource { return gr }

// StoreConfig implements storage.Resources. The prefix made of group and resource
// is that of a stock kube-apiserver: encryption at rest authenticates values by it.
func (b *versionBuilder) StoreConfig(gr schema.GroupResource, _ runtime.Object) (storage.Config, runtime.GroupVersioner, error) {
	codec := b.derived.storageCodec(b.gv)
	config := storage.Config{
		GroupResource:    gr,
		Owner:            sqlstore.Custom,
		ResourcePrefix:   gr.Group + "/" + gr.Resource,
		Codec:            codec,
		Plain:            unstructured.UnstructuredJSONScheme,
		StorageVersion:   b.derived.storageVersion,
		Encoding:         b.derived.encoding,
		View:             b.derived.view(b.gv.Version),
		Lossy:            b.gv != b.derived.storageVersion,
		IndexFields:      b.indexFields(),
		Requires:         b.requires,
		IsReplaced:       b.isReplaced,
		WatchTermination: b.watchTermination,
	}
	if converting, ok := codec.(*convertingCodec); ok {
		config.DecodeAhead, config.DecodedAge = converting.convertAhead, sharedConversionAge
	}
	return config, b.derived.storageVersion, nil
}

// indexFields returns the fields that the watch cache indexes, so that a list with a field
// selector need not compare every instance. It returns none for a version other than the
// stored one: the index is made of the stored bytes.
func (b *versionBuilder) indexFields() []string {
	if b.gv != b.derived.storageVersion || !SelectableFieldsEnabled() {
		return nil
	}
	var names []string
	for _, field := range b.spec.SelectableFields {
		names = append(names, strings.TrimPrefix(field.JSONPath, "."))
	}
	return names
}
