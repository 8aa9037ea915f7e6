package instances

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage"
	"byre/apiserver/storage/factory"
	"byre/crd/definition"
	"byre/sqlstore"
)

// resources describes how the registry of one version keeps its objects. The
// stores of a definition's versions keep the same rows; each decodes to its own version.
type resources struct {
	derived          *derived
	version          schema.GroupVersion
	requires         func(sqlstore.Op) *sqlstore.Requirement
	watchTermination *storage.WatchTermination
	// selectable are the version's selectable fields (KEP-4358).
	selectable []apiextensionsv1.SelectableField
}

var _ factory.Resources = (*resources)(nil)

// StoredAs implements factory.Resources.
func (*resources) StoredAs(gr schema.GroupResource) schema.GroupResource { return gr }

// StoreConfig implements factory.Resources. The prefix made of group and resource
// is that of a stock kube-apiserver: encryption at rest authenticates values by it.
func (r *resources) StoreConfig(gr schema.GroupResource, _ runtime.Object) (storage.Config, runtime.GroupVersioner, error) {
	codec := r.derived.storageCodec(r.version)
	config := storage.Config{
		GroupResource:    gr,
		Owner:            sqlstore.Custom,
		ResourcePrefix:   gr.Group + "/" + gr.Resource,
		Codec:            codec,
		Plain:            unstructured.UnstructuredJSONScheme,
		StorageVersion:   r.derived.storageVersion,
		Encoding:         r.derived.encoding,
		View:             r.derived.views[r.version.Version],
		Lossy:            r.version != r.derived.storageVersion,
		IndexFields:      r.indexFields(),
		Requires:         r.requires,
		WatchTermination: r.watchTermination,
	}
	if converting, ok := codec.(*convertingCodec); ok {
		config.DecodeAhead, config.DecodedAge = converting.convertAhead, sharedConversionAge
	}
	return config, r.derived.storageVersion, nil
}

// indexFields returns the fields that the watch cache indexes, so that a list with a field
// selector need not compare every instance. It returns none for a version other than the
// stored one: the index is made of the stored bytes.
func (r *resources) indexFields() []string {
	if r.version != r.derived.storageVersion || !definition.SelectableFieldsEnabled() {
		return nil
	}
	var names []string
	for _, field := range r.selectable {
		names = append(names, strings.TrimPrefix(field.JSONPath, "."))
	}
	return names
}
