package instances

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

func ageColumn() apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{
		Name:        "Age",
		Type:        "date",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		JSONPath:    ".metadata.creationTimestamp",
	}
}

// Columns are the printer columns of a version: those that it asks for, or the age.
func Columns(spec *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(spec.AdditionalPrinterColumns) > 0 {
		return spec.AdditionalPrinterColumns
	}
	return []apiextensionsv1.CustomResourceColumnDefinition{ageColumn()}
}

// ScaleColumns are the printer columns of a version's scale subresource.
func ScaleColumns(spec *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	var columns []apiextensionsv1.CustomResourceColumnDefinition
	if spec.Subresources.Scale.SpecReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Desired", Type: "integer", Description: "Number of desired replicas", JSONPath: ".spec.replicas",
		})
	}
	if spec.Subresources.Scale.StatusReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Available", Type: "integer", Description: "Number of actual replicas", JSONPath: ".status.replicas",
		})
	}
	return append(columns, ageColumn())
}

// DeprecationWarnings are the warnings in every answer of a deprecated version.
func DeprecationWarnings(crd *apiextensionsv1.CustomResourceDefinition, spec *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	switch {
	case !spec.Deprecated:
		return nil
	case spec.DeprecationWarning != nil:
		return []string{*spec.DeprecationWarning}
	default:
		return []string{deprecationWarning(crd, spec.Name)}
	}
}

// deprecationWarning recommends the newest version that is served, not deprecated and
// newer than the deprecated one.
func deprecationWarning(crd *apiextensionsv1.CustomResourceDefinition, deprecated string) string {
	group, kind := crd.Spec.Group, crd.Spec.Names.Kind
	text := fmt.Sprintf("%s/%s %s is deprecated", group, deprecated, kind)
	var newer []string
	for _, v := range crd.Spec.Versions {
		if v.Served && !v.Deprecated && kubeversion.CompareKubeAwareVersionStrings(deprecated, v.Name) < 0 {
			newer = append(newer, v.Name)
		}
	}
	if len(newer) == 0 {
		return text
	}
	newest := slices.MaxFunc(newer, kubeversion.CompareKubeAwareVersionStrings)
	return text + fmt.Sprintf("; use %s/%s %s", group, newest, kind)
}
