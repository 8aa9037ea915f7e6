package instances

import (
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// Resources are a version's resource and its subresources, as discovery lists them.
func Resources(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []metav1.APIResource {
	names := crd.Status.AcceptedNames
	namespaced := crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if IsTerminating(crd) {
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
	if stored, err := apihelpers.GetCRDStorageVersion(crd); err == nil && apihelpers.HasServedCRDVersion(crd, stored) {
		main.StorageVersionHash = discovery.StorageVersionHash(crd.Spec.Group, stored, crd.Spec.Names.Kind)
	}
	resources := []metav1.APIResource{main}
	subresourceVerbs := metav1.Verbs{"get", "patch", "update"}
	if HasStatus(v) {
		resources = append(resources, metav1.APIResource{
			Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: subresourceVerbs,
		})
	}
	if HasScale(v) {
		resources = append(resources, metav1.APIResource{
			Group: ScaleKind.Group, Version: ScaleKind.Version, Kind: ScaleKind.Kind,
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: subresourceVerbs,
		})
	}
	return resources
}
