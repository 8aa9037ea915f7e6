package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
)

// Leaf is a field of an object that has no fields below it, and the change that gave it its value.
type Leaf struct {
	Path  string `json:"path"`
	Value any    `json:"value"`
	// Change is nil if the field is older than the history; it has then had its value since
	// Since or before.
	Change *history.Change `json:"change,omitempty"`
	Since  int64           `json:"since,omitempty"`
}

// Blame returns the leaves of an object as it is, in the order of their paths, each with the last change
// that changed it. It reads changes from the newest back, until each leaf has one. The values of a Secret are
// masked, unless the caller wants them shown.
func (c *Client) Blame(ctx context.Context, o Object, showSecrets bool) ([]Leaf, error) {
	listed, err := c.Changes(ctx, o.Query(true))
	if err != nil {
		return nil, err
	}
	now := o
	if last := len(listed) - 1; last >= 0 {
		change, err := c.Change(ctx, o.changesIn(), listed[last].Revision)
		if err != nil {
			return nil, err
		}
		v, err := version(change.Revision, change, change.After)
		if err != nil {
			return nil, err
		}
		if stored, err := c.asStored(o, v.Content); err == nil && v.Content != nil { // the changes are in this version
			now = stored
		}
	}
	content, err := c.Now(ctx, now)
	if err != nil {
		return nil, err
	}
	if content == nil {
		return nil, fmt.Errorf("%s does not exist", o)
	}
	resourceVersion, _, _ := unstructured.NestedString(content, "metadata", "resourceVersion")
	since, _ := strconv.ParseInt(resourceVersion, 10, 64)            // a revision
	for _, name := range []string{"resourceVersion", "generation"} { // every write changes them
		unstructured.RemoveNestedField(content, "metadata", name)
	}
	values := flatten(content)
	leaves := make(map[string]*Leaf, len(values))
	for path, value := range values {
		leaves[path] = &Leaf{Path: path, Value: value}
	}
	open := maps.Clone(leaves)
	for _, item := range slices.Backward(listed) {
		if len(open) == 0 {
			break
		}
		change, err := c.Change(ctx, o.changesIn(), item.Revision)
		if err != nil {
			return nil, err
		}
		after, err := leavesOf(change, change.After)
		if err != nil {
			return nil, err
		}
		before, err := leavesOf(change, change.Before)
		if err != nil {
			return nil, err
		}
		if showSecrets && change.IsOfSecret() {
			change.ShowSecrets(change)
		}
		change.Before, change.After = nil, nil
		for path, leaf := range open {
			if !reflect.DeepEqual(after[path], leaf.Value) {
				continue // a change after this one has been made meanwhile
			}
			if old, existed := before[path]; !existed || !reflect.DeepEqual(old, leaf.Value) {
				leaf.Change = change
				delete(open, path)
			}
		}
		since = change.Replaces
	}
	for _, leaf := range open {
		leaf.Since = since
	}
	if o.IsSecret() && !showSecrets {
		_, content = changes.MaskSecret(nil, content)
		for path, value := range flatten(content) {
			leaves[path].Value = value
		}
	}
	all := make([]Leaf, 0, len(leaves))
	for _, path := range slices.Sorted(maps.Keys(leaves)) {
		all = append(all, *leaves[path])
	}
	return all, nil
}

// leavesOf returns the leaves of the object after a change, or before it.
func leavesOf(change *history.Change, content *runtime.RawExtension) (map[string]any, error) {
	v, err := version(change.Revision, change, content)
	return flatten(v.Content), err
}

// flatten returns the leaves of an object by their paths. An element of a list has the key by which
// people know it, where all elements have one, and otherwise its index: an element that is put before
// it does not change it then.
func flatten(object map[string]any) map[string]any {
	leaves := map[string]any{}
	flattenTo(leaves, "", object)
	return leaves
}

func flattenTo(leaves map[string]any, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			flattenTo(leaves, join(path, name), field)
		}
		if len(value) > 0 {
			return
		}
	case []any:
		key := keyOf(value)
		for i, element := range value {
			index := strconv.Itoa(i)
			if key != "" {
				index = fmt.Sprintf("%s=%v", key, element.(map[string]any)[key])
			}
			flattenTo(leaves, path+"["+index+"]", element)
		}
		if len(value) > 0 {
			return
		}
	}
	if path != "" {
		leaves[path] = value
	}
}

// keyOf returns the field by which the elements of a list differ; "" if there is none.
func keyOf(list []any) string {
	for _, key := range []string{"name", "type", "uid", "key", "containerPort", "port", "ip", "mountPath"} {
		seen := map[any]bool{}
		for _, element := range list {
			object, _ := element.(map[string]any)
			switch value := object[key].(type) {
			case string, int64:
				seen[value] = true
			}
		}
		if len(seen) > 0 && len(seen) == len(list) {
			return key
		}
	}
	return ""
}

// join returns the path of a field as people write it: spec.replicas, or
// metadata.labels["app.kubernetes.io/name"].
func join(path, name string) string {
	switch {
	case name == "" || strings.ContainsAny(name, ".[]\"'/ \n"):
		quoted, _ := json.Marshal(name) //nolint:errchkjson // a string
		return path + "[" + string(quoted) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}
