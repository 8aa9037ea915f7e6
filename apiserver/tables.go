package apiserver

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/handlers/openapi"
	"byre/apiserver/query/catalog"
	"byre/apiserver/registry"
	"byre/apiserver/storage/factory"
)

// Tables describes the tables of all built-in resources that have objects, enabled or not, as a server of the
// effective version makes them, without Stores. They are in the order of their resources.
func Tables(effective compatibility.EffectiveVersion) ([]*catalog.Table, error) {
	resources, kinds, names := factory.BuiltinResources(effective), map[schema.GroupResource]schema.GroupVersionKind{}, []string{}
	for gr, name := range registry.Kinds() {
		if resources.StoredAs(gr) != gr {
			continue // its objects are another resource's
		}
		kind, err := resources.StorageKind(gr, name)
		if err != nil {
			return nil, err
		}
		object, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			return nil, err
		}
		kinds[gr] = kind
		names = append(names, util.GetCanonicalTypeName(object))
	}
	slices.Sort(names)
	models := openapi.NewModels(effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
	definitions, err := models.Schemas(names...)()
	if err != nil {
		return nil, err
	}
	var tables []*catalog.Table
	schemas := catalog.NewSchemas(definitions)
	for gr, kind := range kinds {
		tables = append(tables, schemas.Describe(gr, kind))
	}
	slices.SortFunc(tables, func(a, b *catalog.Table) int {
		return cmp.Or(cmp.Compare(a.Resource.Group, b.Resource.Group), cmp.Compare(a.Resource.Resource, b.Resource.Resource))
	})
	return tables, nil
}
