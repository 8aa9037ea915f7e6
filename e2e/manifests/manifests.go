// Package manifests has manifests of objects of nearly all built-in kinds.
package manifests

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Files are the manifests. ${NS} stands for the namespace of the objects.
//
//go:embed *.yaml
var Files embed.FS

// Read returns the objects of Files in the order of their files, for a namespace.
func Read(namespace string) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(Files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, name := range names {
		text, err := Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		objects, err := Parse(strings.ReplaceAll(string(text), "${NS}", namespace))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// Parse returns the objects of YAML documents that lines of "---" separate.
func Parse(text string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}
