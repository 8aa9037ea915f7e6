package crd

import (
	"errors"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"

	"byre/apiserver/discovery"
)

// announcer keeps discovery at what the table has. It does not need handlers:
// what a definition serves can be told from the definition.
type announcer struct {
	table    *table
	registry *discovery.Registry
	// announced has what is in discovery now, by group and version.
	announced map[string]map[string][]metav1.APIResource
}

// announce brings a group up to date.
func (a *announcer) announce(group string) error {
	resources := map[string][]metav1.APIResource{}
	for _, crd := range a.table.group(group) {
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			if !v.Served {
				continue
			}
			// The version is listed before any of its resources is served.
			served := resources[v.Name]
			if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
				served = append(served, describe(crd, v)...)
			}
			resources[v.Name] = served
		}
	}
	var errs []error
	last := a.announced[group]
	for version, served := range resources {
		before, known := last[version]
		if known && apiequality.Semantic.DeepEqual(before, served) && (before == nil) == (served == nil) {
			continue
		}
		gv := schema.GroupVersion{Group: group, Version: version}
		var described []apidiscoveryv2.APIResourceDiscovery
		if served != nil {
			var err error
			if described, err = endpoints.ConvertGroupVersionIntoToDiscovery(withKinds(gv, served)); err != nil {
				errs = append(errs, err)
				if resources[version] = before; !known {
					delete(resources, version)
				}
				continue
			}
		}
		errs = append(errs, a.registry.Add(discovery.Version{
			GroupVersion: gv,
			Origin:       discovery.Custom,
			Resources:    served,
			Described:    described,
		}))
	}
	for version := range last {
		if _, ok := resources[version]; !ok {
			a.registry.Remove(schema.GroupVersion{Group: group, Version: version}, discovery.Custom)
		}
	}
	if a.announced[group] = resources; len(resources) == 0 {
		delete(a.announced, group)
	}
	return errors.Join(errs...)
}

// withKinds names the kinds in full: the aggregated document does so for custom
// resources, the other one never.
func withKinds(gv schema.GroupVersion, resources []metav1.APIResource) []metav1.APIResource {
	resources = slices.Clone(resources)
	for i := range resources {
		if r := &resources[i]; r.Version == "" {
			r.Group, r.Version = gv.Group, gv.Version
		}
	}
	return resources
}

// describe lists a version's resource and its subresources.
func describe(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []metav1.APIResource {
	names := crd.Status.AcceptedNames
	namespaced := crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	main := metav1.APIResource{
		Name:         names.Plural,
		SingularName: names.Singular,
		Namespaced:   namespaced,
		Kind:         names.Kind,
		Verbs:        verbs,
		ShortNames:   names.ShortNames,
		Categories:   names.Categories,
	}
	if stored, err := apihelpers.GetCRDStorageVersion(crd); err == nil {
		main.StorageVersionHash = upstream.StorageVersionHash(crd.Spec.Group, stored, crd.Spec.Names.Kind)
	}
	resources := []metav1.APIResource{main}
	partly := metav1.Verbs{"get", "patch", "update"}
	if hasStatus(v) {
		resources = append(resources, metav1.APIResource{
			Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: partly,
		})
	}
	if hasScale(v) {
		resources = append(resources, metav1.APIResource{
			Group: scaleKind.Group, Version: scaleKind.Version, Kind: scaleKind.Kind,
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: partly,
		})
	}
	return resources
}
