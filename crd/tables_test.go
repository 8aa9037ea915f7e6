package crd_test

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/crd"
)

// A table has the columns of the version that discovery prefers, where all versions are the same JSON, and else those
// of the one that is stored.
func TestDescribe_ChoosesTheVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		conversion *apiextensionsv1.CustomResourceConversion
		served     []bool // of v1, which is stored, v2 and v3alpha1
		want       string
	}{
		{nil, []bool{true, true, true}, "v2"},
		{&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}, []bool{true, true, true}, "v2"},
		{nil, []bool{true, false, true}, "v1"},
		{nil, []bool{false, false, true}, "v3alpha1"},
		{nil, []bool{false, false, false}, "v1"},
		{&apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}, []bool{true, true, true},
			"v1"},
	} {
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gears.example.com"}}
		definition.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Conversion: test.conversion,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Kind: "Gear"},
		}
		definition.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established,
			Status: apiextensionsv1.ConditionTrue}}
		for i, name := range []string{"v1", "v2", "v3alpha1"} {
			spec := apiextensionsv1.JSONSchemaProps{Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"of" + name: {Type: "string"}}}
			definition.Spec.Versions = append(definition.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
				Name: name, Served: test.served[i], Storage: i == 0,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
				}},
			})
		}
		table, err := crd.Describe(definition)
		if err != nil {
			t.Fatal(err)
		}
		columns := ""
		for _, c := range table.Columns {
			if len(c.Path) > 1 && c.Path[0] == "spec" {
				columns += c.Path[1]
			}
		}
		if table.Version != test.want || columns != "of"+test.want {
			t.Errorf("%v, %v: version %s with %s, want %s", test.conversion, test.served, table.Version, columns, test.want)
		}
	}
}
