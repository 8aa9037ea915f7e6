package client

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

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
// that changed it. The values of a Secret are masked, unless the caller wants them shown.
func (c *Client) Blame(ctx context.Context, o Object, showSecrets bool) (leaves []Leaf, err error) {
	query := o.Query(false)
	query.Fields["blame"] = "true"
	var list history.ChangeList
	err = c.getter(ctx)(history.Path(query.Namespace), url.Values{"fieldSelector": {query.selector().String()}}, &list)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist", o)
	}
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		change := &list.Items[i]
		fields := change.Changed
		change.Changed = nil // they are what the leaves say
		for _, field := range fields {
			leaf := Leaf{Path: field.Path, Change: change}
			if err := utiljson.Unmarshal([]byte(field.New), &leaf.Value); err != nil {
				return nil, err
			}
			if change.Time.IsZero() {
				leaf.Change, leaf.Since = nil, change.Revision
			}
			leaves = append(leaves, leaf)
		}
	}
	slices.SortFunc(leaves, func(a, b Leaf) int { return strings.Compare(a.Path, b.Path) })
	if o.IsSecret() && showSecrets {
		err = c.showValues(ctx, o, list.ResourceVersion, leaves)
	}
	return leaves, err
}

// showValues replaces the masked values of a Secret of a revision.
func (c *Client) showValues(ctx context.Context, o Object, revision string, leaves []Leaf) error {
	now, err := c.Now(ctx, o)
	if err != nil {
		return err
	}
	if (&unstructured.Unstructured{Object: now}).GetResourceVersion() != revision {
		return errors.New("the Secret has changed meanwhile: run the command again")
	}
	object := changes.Encode(now)
	values := map[string]any{}
	for _, leaf := range changes.NewLeaves(object, object, nil).Take(nil, nil) {
		values[leaf.Path] = changes.Decode([]byte(leaf.Value))
	}
	for i := range leaves {
		if value, found := values[leaves[i].Path]; found {
			leaves[i].Value = value
		}
	}
	return nil
}
