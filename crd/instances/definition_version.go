package instances

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// ScaleKind is the kind of every scale subresource.
var ScaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// DefinitionVersion returns a version of a definition, or nil.
func DefinitionVersion(crd *apiextensionsv1.CustomResourceDefinition, name string) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == name {
			return &crd.Spec.Versions[i]
		}
	}
	return nil
}

// HasStatus tells whether a version has the status subresource.
func HasStatus(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Status != nil
}

// HasScale tells whether a version has the scale subresource.
func HasScale(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Scale != nil
}

// SelectableFieldsEnabled tells whether the program honours selectable fields (KEP-4358).
func SelectableFieldsEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors)
}
