package status

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"byre/sqlstore"
)

// customs are the custom resources and their definitions.
type customs struct {
	// definitions has the apiVersions of each definition by its name; nil for a definition
	// that could not be read.
	definitions map[string][]string
	// instances counts the custom resources by the definition that they need and their
	// apiVersion, which is empty for one that could not be read.
	instances map[[2]string]int
}

// add adds an object. value is nil if it could not be read.
func (c *customs) add(key sqlstore.Key, value []byte) {
	switch {
	case key.Group == "apiextensions.k8s.io" && key.Resource == "customresourcedefinitions":
		var crd struct {
			Spec struct {
				Group    string                  `json:"group"`
				Versions []struct{ Name string } `json:"versions"`
			} `json:"spec"`
		}
		_ = json.Unmarshal(value, &crd) // what can't be read is reported elsewhere
		var versions []string
		for _, v := range crd.Spec.Versions {
			versions = append(versions, crd.Spec.Group+"/"+v.Name)
		}
		c.definitions[key.Name] = versions
	case key.Owner == sqlstore.Custom:
		var object struct {
			APIVersion string `json:"apiVersion"`
		}
		_ = json.Unmarshal(value, &object)
		c.instances[[2]string{key.Resource + "." + key.Group, object.APIVersion}]++
	}
}

// compare reports the custom resources that nobody can read.
func (c *customs) compare(report func(row, reason string, arguments ...any)) {
	kinds := slices.SortedFunc(maps.Keys(c.instances), func(a, b [2]string) int {
		return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1])
	})
	for _, of := range kinds {
		definition, version := of[0], of[1]
		versions, exists := c.definitions[definition]
		switch {
		case !exists:
			report("objects: "+definition, "%d objects of version %q have no definition: create their definition again and delete it; they are deleted with it", c.instances[of], version)
		case versions != nil && version != "" && !slices.Contains(versions, version):
			report("objects: "+definition, "%d objects are of version %q, which their definition lacks: add the version to it, or delete it; they are deleted with it", c.instances[of], version)
		}
	}
}
