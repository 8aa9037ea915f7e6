package history

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// selectable are the fields that a field selector may name.
var selectable = []string{
	"metadata.name", "metadata.namespace",
	"object.group", "object.resource", "object.name", "object.uid", "who", "verb", "subresource",
}

// chosen is what the options of a list select: query is what the database finds, and fields what
// the changes that it has found are compared with.
type chosen struct {
	query         sqlstore.ChangesQuery
	fields        fields.Selector
	labels        labels.Selector
	withoutStatus bool
	// nothing: no change can match.
	nothing bool
}

func (s *Storage) choose(ctx context.Context, options *internalversion.ListOptions, histories []sqlstore.History) chosen {
	c := chosen{fields: options.FieldSelector, labels: options.LabelSelector, withoutStatus: true}
	if c.fields == nil {
		c.fields = fields.Everything()
	}
	if c.labels == nil {
		c.labels = labels.Everything()
	}
	for _, requirement := range c.fields.Requirements() {
		if requirement.Field == "subresource" {
			c.withoutStatus = false
		}
	}
	c.query.Kept = true
	c.query.Of, c.nothing = c.resource(histories)
	if namespace := request.NamespaceValue(ctx); namespace != "" {
		c.query.Namespaces = []string{namespace}
		if namespace == clusterScoped {
			c.query.Namespaces = append(c.query.Namespaces, "")
		}
		c.query.Name, _ = c.fields.RequiresExactMatch("object.name")
	}
	return c
}

// resource returns the only resource that the selector can match; nil if there are several.
func (c *chosen) resource(histories []sqlstore.History) (of *sqlstore.Resource, nothing bool) {
	requirements := fields.Everything()
	for _, field := range []string{"object.group", "object.resource"} {
		if value, exact := c.fields.RequiresExactMatch(field); exact {
			requirements = fields.AndSelectors(requirements, fields.OneTermEqualSelector(field, value))
		}
	}
	if requirements.Empty() {
		return nil, false
	}
	matches := 0
	for i := range histories {
		if h := &histories[i]; requirements.Matches(fields.Set{"object.group": h.Group, "object.resource": h.Resource.Resource}) {
			matches++
			of = &h.Resource
		}
	}
	if matches > 1 {
		return nil, false
	}
	return of, matches == 0
}

// selects reports whether a change is selected.
func (c *chosen) selects(change *sqlstore.Change) bool {
	key := change.New.Key
	if isInternal(key) || c.withoutStatus && change.Author.Subresource == "status" || !c.labels.Matches(labels.Set{}) {
		return false
	}
	return c.fields.Empty() || c.fields.Matches(fields.Set{
		"metadata.name": strconv.FormatInt(change.Revision, 10), "metadata.namespace": shownIn(key.Namespace),
		"object.group": key.Group, "object.resource": key.Resource, "object.name": key.Name, "object.uid": change.New.UID,
		"who": change.Author.User, "verb": change.Author.Verb, "subresource": change.Author.Subresource,
	})
}

// lostAfter adds up the compacted revisions of the selected resources that are after a revision.
// They only ever grow: the sum changes exactly if selected changes after the revision are
// deleted.
func (c *chosen) lostAfter(revision int64, histories []sqlstore.History) (sum int64) {
	for i := range histories {
		if h := &histories[i]; h.Compacted > revision && (c.query.Of == nil || h.Resource == *c.query.Of) {
			sum += h.Compacted
		}
	}
	return sum
}
