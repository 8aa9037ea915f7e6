package projects

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Manifests are files with a project's objects, for kubectl. The objects have no namespace.
type Manifests struct {
	// Dir has definitions.yaml, samples.yaml and malformed.yaml.
	Dir string
	// Resources are what is defined, each in one served version.
	Resources []schema.GroupVersionResource
	// Definitions, Samples and Malformed are the numbers of objects in the files.
	Definitions, Samples, Malformed int
}

// WriteManifests reads the project's files in the root of its module, and what
// extra adds to the malformed objects, and writes them into dir.
func (p Project) WriteManifests(root fs.FS, extra []byte, dir string) (Manifests, error) {
	m := Manifests{Dir: dir}
	definitions, err := p.ReadDefinitions(root)
	if err != nil {
		return m, err
	}
	defined := map[schema.GroupVersionKind]bool{}
	for _, d := range definitions {
		kinds := kindsOf(d)
		for _, kind := range kinds {
			defined[kind] = true
		}
		if len(kinds) > 0 {
			plural, _, _ := unstructured.NestedString(d.Object, "spec", "names", "plural")
			m.Resources = append(m.Resources, kinds[0].GroupVersion().WithResource(plural))
		}
	}
	isDefined := func(o *unstructured.Unstructured) bool { return defined[o.GroupVersionKind()] }
	samples, err := readObjects(root, p.Samples, isDefined)
	if err != nil {
		return m, err
	}
	samples = firstOfEachName(slices.DeleteFunc(samples, func(o *unstructured.Unstructured) bool {
		return slices.Contains(p.Unfit, o.GetName())
	}))
	malformed, err := readObjects(root, p.Malformed, isDefined)
	if err != nil {
		return m, err
	}
	more, err := decodeObjects(extra)
	if err != nil {
		return m, err
	}
	malformed = append(malformed, more...)
	m.Definitions, m.Samples, m.Malformed = len(definitions), len(samples), len(malformed)
	return m, errors.Join(
		writeObjects(filepath.Join(dir, "definitions.yaml"), definitions),
		writeObjects(filepath.Join(dir, "samples.yaml"), samples),
		writeObjects(filepath.Join(dir, "malformed.yaml"), malformed))
}

// ReadDefinitions reads the CustomResourceDefinitions in the root of the module.
func (p Project) ReadDefinitions(root fs.FS) ([]*unstructured.Unstructured, error) {
	definitions, err := readObjects(root, p.Definitions, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "CustomResourceDefinition"
	})
	for _, d := range definitions {
		dropTemplates(d)
	}
	return definitions, err
}

// kindsOf are the kinds that a definition serves.
func kindsOf(definition *unstructured.Unstructured) (kinds []schema.GroupVersionKind) {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok && v["served"] == true {
			name, _ := v["name"].(string)
			kinds = append(kinds, schema.GroupVersionKind{Group: group, Version: name, Kind: kind})
		}
	}
	return kinds
}

// dropTemplates drops the labels that only Helm would have filled in.
func dropTemplates(o *unstructured.Unstructured) {
	labels := o.GetLabels()
	for name, value := range labels {
		if strings.Contains(value, "{{") {
			delete(labels, name)
		}
	}
	o.SetLabels(labels)
}

// firstOfEachName leaves one object of each kind and name: different examples
// use the same names.
func firstOfEachName(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	seen := map[string]bool{}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		key := o.GetKind() + "/" + o.GetName()
		defer func() { seen[key] = true }()
		return seen[key]
	})
}

// readObjects reads the objects that are wanted from files and folders.
func readObjects(
	root fs.FS, paths []string, wanted func(*unstructured.Unstructured) bool,
) (all []*unstructured.Unstructured, err error) {
	for _, start := range paths {
		before := len(all)
		err := fs.WalkDir(root, start, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
				return err
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			objects, err := decodeObjects(text)
			if err != nil {
				return nil // a template, or what is no object at all
			}
			for _, o := range objects {
				if wanted(o) {
					all = append(all, o)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(all) == before {
			return nil, fmt.Errorf("%s has none of the objects that are looked for", start)
		}
	}
	return all, nil
}

func decodeObjects(text []byte) (all []*unstructured.Unstructured, err error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue
		}
		o.SetNamespace("")
		all = append(all, o)
	}
}

func writeObjects(file string, objects []*unstructured.Unstructured) error {
	var text bytes.Buffer
	for _, o := range objects {
		one, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n%s", one)
	}
	return os.WriteFile(file, text.Bytes(), 0o600)
}
