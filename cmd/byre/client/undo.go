package client

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
)

// Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// PlanUndo returns how a change is reversed: if it created the object, by its deletion, and otherwise by a patch of
// the fields that it changed, which tests that nothing else has changed them since. If something has, it fails
// and names their paths. The patch is empty if there is nothing to do.
func (c *Client) PlanUndo(ctx context.Context, revision int64) (*Step, error) {
	change, err := c.Change(ctx, c.namespace, revision)
	if err != nil {
		return nil, err
	}
	u := &Step{Verb: "patch", subresource: change.Subresource}
	if u.Object, err = c.object(change); err != nil {
		return nil, err
	}
	after, err := version(revision, change, change.After)
	if err != nil {
		return nil, err
	}
	if after.Content == nil {
		return nil, fmt.Errorf("revision %d deleted %s: use undelete", revision, u.Object)
	}
	if u.Object, err = c.asStored(u.Object, after.Content); err != nil {
		return nil, err
	}
	now, err := c.Now(ctx, u.Object)
	if err != nil {
		return nil, err
	}
	if now == nil {
		if change.Before == nil {
			return u, nil // it is deleted already
		}
		return nil, fmt.Errorf("%s does not exist any more", u.Object)
	}
	metadata, _ := now["metadata"].(map[string]any)
	uid, _ := metadata["uid"].(string)
	u.uid = types.UID(uid)
	u.resourceVersion, _ = metadata["resourceVersion"].(string)
	if uid != change.Object.UID {
		return nil, fmt.Errorf("%s is another object since revision %d: it was deleted and created again", u.Object, revision)
	}
	if metadata["deletionTimestamp"] != nil { // without the finalizers that the deletion added, it would be at its end
		return nil, fmt.Errorf("%s is being deleted, which can't be reversed: use undelete when it is gone", u.Object)
	}
	if change.Before == nil {
		if holdsOthers(u.Object) {
			return nil,
				fmt.Errorf("revision %d created %s: its deletion would delete all that it holds: use kubectl delete", revision,
					u.Object)
		}
		u.Verb = "delete"
		var later []string
		for _, r := range reverse(nil, "", strip(now), strip(after.Content)) {
			later = append(later, r.path)
		}
		return u, laterError(revision, slices.DeleteFunc(later, isStatus))
	}
	before, err := version(change.Replaces, change, change.Before)
	if err != nil {
		return nil, err
	}
	all := reverse(nil, "", strip(after.Content), strip(before.Content))
	if change.Subresource != "status" {
		all = slices.DeleteFunc(all, func(r reversal) bool { return isStatus(r.path) })
	}
	var later []string
	for _, r := range all {
		parent := r.path[:strings.LastIndexByte(r.path, '/')]
		switch value, exists := lookup(now, r.path); {
		case r.before.is(value, exists): // it is undone already
		case parent != "" && !isObject(now, parent): // so that there is nothing to add it to
			later = append(later, parent)
		case r.after.is(value, exists):
			u.Patch = append(u.Patch, r.operations()...)
		default:
			later = append(later, r.path)
		}
	}
	if err := laterError(revision, slices.Compact(later)); err != nil {
		return nil, err
	}
	if len(u.Patch) > 0 {
		u.Patch = append([]Operation{
			{Op: "test", Path: "/metadata/resourceVersion", Value: u.resourceVersion},
		}, u.Patch...)
	}
	return u, nil
}

// holdsOthers reports whether other objects are deleted with an object, whoever owns them.
func holdsOthers(o Object) bool {
	switch o.Resource.GroupResource().String() {
	case "namespaces", "customresourcedefinitions.apiextensions.k8s.io":
		return true
	}
	return false
}

func isStatus(path string) bool { return path == "/status" || strings.HasPrefix(path, "/status/") }

// laterError is the error if others have changed the paths since a revision; nil if there are none.
func laterError(revision int64, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	return fmt.Errorf("nothing is undone: after revision %d others have changed %s", revision, strings.Join(paths, ", "))
}

// object returns the object of a change.
func (c *Client) object(change *history.Change) (Object, error) {
	ref := change.Object
	resource, err := c.mapper.ResourceFor(schema.GroupVersionResource{Group: ref.Group, Resource: ref.Resource})
	if err != nil {
		return Object{}, err
	}
	return Object{resource, ref.Namespace, ref.Name}, nil
}

// asStored returns the object in the version of a content that is from a change: that in which it was stored.
func (c *Client) asStored(o Object, content map[string]any) (Object, error) {
	o.Resource.Version = (&unstructured.Unstructured{Object: content}).GroupVersionKind().Version
	_, err := c.mapper.ResourceFor(o.Resource)
	if err != nil {
		err = fmt.Errorf("%s was stored in the version %s, which is not served any more: %w", o, o.Resource.Version, err)
	}
	return o, err
}

// manager is the field manager of what the plugin writes.
const manager = "byre"

func dryRunOption(dryRun bool) []string {
	if dryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// state is the value of a field, if there is one.
type state struct {
	value  any
	exists bool
}

func (s state) is(value any, exists bool) bool {
	return s.exists == exists && (!exists || reflect.DeepEqual(s.value, value))
}

// reversal is the difference that a change has made at a path, a JSON pointer (RFC 6901).
type reversal struct {
	path          string
	after, before state
}

// operations reverse the difference, and test that it is still there.
func (r *reversal) operations() []Operation {
	if !r.after.exists {
		return []Operation{{"add", r.path, r.before.value}}
	}
	test := Operation{"test", r.path, r.after.value}
	if !r.before.exists {
		return []Operation{test, {Op: "remove", Path: r.path}}
	}
	return []Operation{test, {"replace", r.path, r.before.value}}
}

// reverse appends the differences of the objects after and before a change. A list is one value: the
// place of an element says little after other changes.
func reverse(all []reversal, path string, after, before map[string]any) []reversal {
	names := maps.Clone(after)
	maps.Copy(names, before)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		at := path + "/" + pointerEscape.Replace(name)
		var a, b state
		a.value, a.exists = after[name]
		b.value, b.exists = before[name]
		objectAfter, bothObjects := a.value.(map[string]any)
		objectBefore, isObject := b.value.(map[string]any)
		switch {
		case a.is(b.value, b.exists):
		case bothObjects && isObject:
			all = reverse(all, at, objectAfter, objectBefore)
		default:
			all = append(all, reversal{at, a, b})
		}
	}
	return all
}

// MaskedPatch returns the step's patch as people may see it: without the values of a Secret.
func (s *Step) MaskedPatch() []Operation {
	if !s.Object.IsSecret() {
		return s.Patch
	}
	patch := slices.Clone(s.Patch)
	for i := range patch {
		object := patch[i].Value
		names := strings.Split(patch[i].Path, "/")[1:]
		for _, name := range slices.Backward(names) {
			object = map[string]any{pointerUnescape.Replace(name): object}
		}
		whole, _ := object.(map[string]any)
		_, whole = changes.MaskSecret(nil, whole)
		patch[i].Value, _ = lookup(whole, patch[i].Path)
	}
	return patch
}

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// lookup returns the value of a field.
func lookup(object map[string]any, pointer string) (value any, exists bool) {
	value = object
	for _, part := range strings.Split(pointer, "/")[1:] {
		parent, _ := value.(map[string]any)
		if value, exists = parent[pointerUnescape.Replace(part)]; !exists {
			return nil, false
		}
	}
	return value, exists
}

// isObject reports whether a field exists and has fields.
func isObject(object map[string]any, pointer string) bool {
	value, _ := lookup(object, pointer)
	_, ok := value.(map[string]any)
	return ok
}

// strip returns an object without what only the server writes into its metadata.
func strip(object map[string]any) map[string]any {
	stripped := maps.Clone(object)
	if metadata, ok := object["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		for _, name := range ofServer {
			delete(metadata, name)
		}
		stripped["metadata"] = metadata
	}
	return stripped
}

// ofServer are the fields of the metadata that the server sets.
var ofServer = []string{
	"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	"managedFields", "selfLink",
}
