package history

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// selectable are what a field selector may name: fields, the moments since and until, and the order of a list.
var selectable = []string{
	"metadata.name", "metadata.namespace",
	"object.group", "object.resource", "object.name", "object.uid", "who", "verb", "subresource",
	"since", "until", "order",
}

// chosen is what the options of a list select: query is what the database finds, and fields what
// the changes that it has found are compared with.
type chosen struct {
	query         sqlstore.ChangesQuery
	fields        fields.Selector
	labels        labels.Selector
	withoutStatus bool
	// since and until are the values of these in the selector: a list has the changes after the
	// one moment, up to the other. An empty one sets no bound.
	since, until string
	// order is newest if a list has the newest changes first, and else empty.
	order string
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
	c.since, _ = c.fields.RequiresExactMatch("since")
	c.until, _ = c.fields.RequiresExactMatch("until")
	c.order, _ = c.fields.RequiresExactMatch("order")
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
	matches := 0
	for i := range histories {
		if h := &histories[i]; c.concerns(h) {
			matches++
			of = &h.Resource
		}
	}
	if matches > 1 {
		return nil, false
	}
	return of, matches == 0
}

// concerns reports whether changes of a resource can be selected.
func (c *chosen) concerns(h *sqlstore.History) bool {
	for _, r := range c.fields.Requirements() {
		is, known := map[string]bool{"object.group": h.Group == r.Value, "object.resource": h.Resource.Resource == r.Value}[r.Field]
		if known && is == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	return true
}

// selects reports whether a change is selected.
func (c *chosen) selects(change *sqlstore.Change) bool {
	key := change.New.Key
	if changes.IsInternal(key) || c.withoutStatus && change.Author.Subresource == "status" || !c.labels.Matches(labels.Set{}) {
		return false
	}
	return c.fields.Empty() || c.fields.Matches(fields.Set{
		"since": c.since, "until": c.until, "order": c.order,
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
		if h := &histories[i]; h.Compacted > revision && c.concerns(h) {
			sum += h.Compacted
		}
	}
	return sum
}

// check fails if a moment or the order is what must not be selected.
func (c *chosen) check() error {
	for _, r := range c.fields.Requirements() {
		if (r.Field == "since" || r.Field == "until") && r.Operator == selection.NotEquals {
			return apierrors.NewBadRequest("the field selector " + r.Field + " takes = only")
		}
		if r.Field == "order" && (r.Operator == selection.NotEquals || r.Value != "newest") {
			return apierrors.NewBadRequest("the field selector order takes =newest only")
		}
	}
	return nil
}

// revisionAt returns the revision of a moment: the last one whose time is not after it. It fails with
// the code 410 if changes of the selected resources after the moment are deleted, or if they are older
// than the namespace or the definition, and so not to be seen.
func (s *Storage) revisionAt(ctx context.Context, moment string, chosen *chosen, histories []sqlstore.History) (int64, error) {
	revision, err := s.config.Revision(ctx, moment)
	if err != nil {
		return 0, err
	}
	selected := slices.DeleteFunc(slices.Clone(histories), func(h sqlstore.History) bool {
		return !chosen.concerns(&h)
	})
	what := "the history" // not of which resource: the user may not know that there is one
	if resource, isSelected := chosen.fields.RequiresExactMatch("object.resource"); isSelected {
		what += " of " + resource
	}
	if err := changes.Covers(what, moment, revision, selected...); err != nil {
		return 0, err
	}
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.withinNamespace(ctx, rights, moment, revision, chosen); err != nil {
		return 0, err
	}
	return revision, s.withinDefinition(ctx, rights, moment, revision, chosen.query, selected)
}

// withinNamespace fails with the code 410 if the request is for a namespace that did not exist yet at a
// moment, and its user does not see all of what is selected in one that had its name before.
func (s *Storage) withinNamespace(ctx context.Context, rights *changes.Rights, moment string, revision int64, chosen *chosen) error {
	namespace := request.NamespaceValue(ctx)
	if namespace == "" {
		return nil
	}
	if sees, err := rights.SeesAll(ctx, chosen.query.Of); sees || err != nil {
		return err
	}
	created, err := changes.CreatedNow(ctx, s.config.Driver, changes.NamespaceKey(namespace))
	if err != nil || revision >= created {
		return err
	}
	return createdAfter("the namespace "+namespace, moment, created)
}

// withinDefinition fails with the code 410 if the user of a request may list one of the selected resources, and does not see changes of
// it after a moment, because they are of a definition that was deleted and created again.
func (s *Storage) withinDefinition(ctx context.Context, rights *changes.Rights, moment string, revision int64, q sqlstore.ChangesQuery, selected []sqlstore.History) error {
	for i := range selected {
		of := selected[i].Resource
		hidden, err := rights.HiddenBefore(ctx, of, request.NamespaceValue(ctx))
		if err != nil {
			return err
		}
		if revision >= hidden {
			continue
		}
		// Not of one name: whether there was an object is not told.
		found, err := s.config.Driver.Changes(ctx, sqlstore.ChangesQuery{Of: &of, Namespaces: q.Namespaces, Before: hidden, Kept: true, KeysOnly: true, Limit: 1})
		if err != nil {
			return changes.APIError(err)
		}
		if len(found) > 0 && found[0].Revision > revision {
			return createdAfter("the definition of "+of.Resource+"."+of.Group, moment, hidden)
		}
	}
	return nil
}

func createdAfter(what, moment string, created int64) error {
	return apierrors.NewResourceExpired(what + " was created after " + moment + ": the earliest moment is revision " + strconv.FormatInt(created, 10))
}
