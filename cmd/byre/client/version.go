package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"byre/apiserver/history"
)

// Version is an object at a moment.
type Version struct {
	// Revision is that of the change that made it; 0 if the history does not have that change.
	Revision int64
	// Content is the object, without its managed fields; nil if it did not exist.
	Content map[string]any
}

// At returns an object as it was at a moment. It fails with the code 410 if the history does not reach back to the
// moment: there may have been changes since that are deleted.
func (c *Client) At(ctx context.Context, o Object, m Moment) (Version, error) {
	changes, err := c.Changes(ctx, o.Query(true))
	if err != nil {
		return Version{}, err
	}
	next := slices.IndexFunc(changes, func(change history.Change) bool { return !m.covers(&change) })
	if next < 0 {
		next = len(changes)
	}
	if next > 0 {
		change, err := c.Change(ctx, o.changesIn(), changes[next-1].Revision)
		if err != nil {
			return Version{}, err
		}
		return version(change.Revision, change, change.After)
	}
	q := o.Query(true)
	q.Fields["since"] = m.selector()
	if _, err := answer(c.get(q, "application/json").Param("limit", "1").Do(ctx)); err != nil {
		return Version{}, err
	}
	if len(changes) > 0 { // the moment is before the first change that is left
		change, err := c.Change(ctx, o.changesIn(), changes[0].Revision)
		if err != nil {
			return Version{}, err
		}
		return version(change.Replaces, change, change.Before)
	}
	// The object has not changed since the history of its resource was deleted, or never was.
	content, err := c.Now(ctx, o)
	if err != nil {
		return Version{}, err
	}
	return Version{Content: content}, nil
}

func version(revision int64, change *history.Change, content *runtime.RawExtension) (Version, error) {
	if change.Unreadable {
		return Version{}, fmt.Errorf("revision %d: %w", change.Revision, errUnreadable)
	}
	v := Version{Revision: revision}
	if content == nil {
		return v, nil
	}
	object := &unstructured.Unstructured{} // its numbers are as clients of Kubernetes hold them
	err := object.UnmarshalJSON(content.Raw)
	v.Content = object.Object
	return v, err
}

// Now returns an object as it is, without its managed fields; nil if it does not exist.
func (c *Client) Now(ctx context.Context, o Object) (map[string]any, error) {
	object, err := c.client(o).Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil is an object that does not exist
	}
	if err != nil {
		return nil, err
	}
	object.SetManagedFields(nil)
	return object.Object, nil
}

// YAML returns a version as YAML; nothing if the object did not exist.
func (v Version) YAML() (string, error) {
	if v.Content == nil {
		return "", nil
	}
	text, err := yaml.Marshal(v.Content)
	return string(text), err
}

var (
	errNoVersion  = errors.New("the history has no version of it")
	errUnreadable = errors.New("the object can't be read any more")
)
