package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/openapi3"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
)

// PlanUndo returns how a change is reversed: if it created the object, by its deletion, and otherwise by a patch of
// the fields that it changed, which tests that nothing else has changed them since. If something has, it fails, and
// names their paths and who has changed them. The patch is empty if there is nothing to do.
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
		was, is := strip(after.Content), strip(now)
		delete(was, "status")
		delete(is, "status")
		of, err := c.typeOf(after.Content)
		if err != nil {
			return nil, err
		}
		return u, c.laterError(ctx, u.Object, change, fieldsOf(differences(of, was, is)))
	}
	before, err := version(change.Replaces, change, change.Before)
	if err != nil {
		return nil, err
	}
	is, was := strip(after.Content), strip(before.Content)
	if change.Subresource != "status" {
		delete(is, "status")
		delete(was, "status")
	}
	of, err := c.typeOf(after.Content)
	if err != nil {
		return nil, err
	}
	r := reversal{}
	r.value(place{of: of}, state{now, true}, state{is, true}, state{was, true})
	if err := c.laterError(ctx, u.Object, change, r.later); err != nil {
		return nil, err
	}
	if len(r.patch) > 0 {
		u.Patch = append(u.Patch, Operation{Op: "test", Path: "/metadata/uid", Value: uid})
		if r.adds {
			u.Patch = append(u.Patch, Operation{Op: "test", Path: "/metadata/resourceVersion", Value: u.resourceVersion})
		}
		u.Patch = append(u.Patch, r.patch...)
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

// laterError is the error if others have changed fields since a change, of which it names the paths and who has changed
// each last; nil if there are none.
func (c *Client) laterError(ctx context.Context, o Object, change *history.Change, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	q := o.Query(change.Subresource == "status").newest()
	q.Fields["since"] = strconv.FormatInt(change.Revision, 10)
	who := make([]string, len(paths))
	for later, err := range c.Changes(ctx, q) {
		if err != nil {
			break // the paths alone say what is wrong
		}
		for i, path := range paths {
			if who[i] == "" && touches(later, path) {
				who[i] = fmt.Sprintf(" (%s, revision %d)", later.Who, later.Revision)
			}
		}
		if !slices.Contains(who, "") {
			break
		}
	}
	for i := range paths {
		who[i] = paths[i] + who[i]
	}
	return fmt.Errorf("nothing is undone: after revision %d others have changed %s", change.Revision,
		strings.Join(who, ", "))
}

// touches reports whether a change has changed a field, or one below or above it.
func touches(c *history.Change, path string) bool {
	isBelow := func(path, above string) bool {
		rest, found := strings.CutPrefix(path, above)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return slices.ContainsFunc(c.Changed, func(f history.FieldChange) bool {
		return isBelow(f.Path, path) || isBelow(path, f.Path)
	})
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

// typeOf returns the type of an object, by which paths name the elements of its lists; zero if the server has no schema
// of its kind.
func (c *Client) typeOf(object map[string]any) (changes.Type, error) {
	kind := (&unstructured.Unstructured{Object: object}).GroupVersionKind()
	if known, ok := c.types.Load(kind.GroupVersion()); ok {
		return changes.TypeOf(known.(managedfields.TypeConverter), kind), nil
	}
	document, err := openapi3.NewRoot(c.resources.OpenAPIV3()).GVSpec(kind.GroupVersion())
	var unknown *openapi3.GroupVersionNotFoundError
	if errors.As(err, &unknown) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return changes.Type{}, nil
	}
	if err != nil || document.Components == nil {
		return changes.Type{}, err
	}
	converter, err := managedfields.NewTypeConverter(document.Components.Schemas, false)
	if err != nil {
		return changes.Type{}, err
	}
	c.types.Store(kind.GroupVersion(), converter)
	return changes.TypeOf(converter, kind), nil
}

// compare returns the fields in which two versions of an object differ. A nil version is that of an object that does
// not exist.
func (c *Client) compare(before, after map[string]any) ([]history.FieldChange, error) {
	content := after
	if content == nil {
		content = before
	}
	of, err := c.typeOf(content)
	if err != nil {
		return nil, err
	}
	return history.Compare(before, after, of)
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
