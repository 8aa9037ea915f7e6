package history

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. All fields are required.
type Config struct {
	*changes.Log
	// Feed follows the database of the Log's Driver.
	Feed *watch.Feed
}

// Storage is the rest.Storage of changes. It is safe for concurrent use.
type Storage struct {
	config Config
	tail   *tail
}

var (
	_ rest.Getter               = (*Storage)(nil)
	_ rest.Lister               = (*Storage)(nil)
	_ rest.Watcher              = (*Storage)(nil)
	_ rest.Scoper               = (*Storage)(nil)
	_ rest.SingularNameProvider = (*Storage)(nil)
)

// New makes a Storage.
func New(config Config) *Storage { return &Storage{config, newTail(config.Driver, config.Feed)} }

// Run serves watches until ctx ends. Then it ends them, and joins their goroutines.
func (s *Storage) Run(ctx context.Context) error {
	s.tail.run(ctx)
	return nil
}

// New implements rest.Storage.
func (*Storage) New() runtime.Object { return &Change{} }

// NewList implements rest.Lister.
func (*Storage) NewList() runtime.Object { return &ChangeList{} }

// Destroy implements rest.Storage.
func (*Storage) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Storage) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (*Storage) GetSingularName() string { return "change" }

// Get implements rest.Getter.
func (s *Storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	revision, err := strconv.ParseInt(name, 10, 64)
	if err != nil || revision < 1 || strconv.FormatInt(revision, 10) != name {
		return nil, apierrors.NewNotFound(groupResource, name)
	}
	found, err := s.config.Driver.Changes(ctx, sqlstore.ChangesQuery{After: revision - 1, Limit: 1, Kept: true})
	if err != nil {
		return nil, changes.APIError(err)
	}
	if len(found) == 0 || found[0].Revision != revision || changes.IsInternal(found[0].New.Key) ||
		ShownIn(found[0].New.Namespace) != request.NamespaceValue(ctx) {
		return nil, s.absent(ctx, revision)
	}
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return nil, err
	}
	if sees, err := rights.Sees(ctx, &found[0], changes.NewCreations(s.config.Driver)); err != nil {
		return nil, err
	} else if !sees {
		return nil, s.absent(ctx, revision)
	}
	return s.item(ctx, &found[0], true)
}

// absent returns the error for a revision that the user does not see. It is the same whether there
// is such a change or not.
func (s *Storage) absent(ctx context.Context, revision int64) error {
	histories, err := s.config.Driver.Histories(ctx)
	if err != nil {
		return changes.APIError(err)
	}
	var deleted int64
	for i := range histories {
		deleted = max(deleted, histories[i].CompleteAfter)
	}
	if revision <= deleted {
		return expired(revision, deleted)
	}
	return apierrors.NewNotFound(groupResource, strconv.FormatInt(revision, 10))
}

// expired is the error for a revision that is not after an end of the history.
func expired(revision, end int64) error {
	return apierrors.NewResourceExpired("revision " + strconv.FormatInt(revision, 10) +
		" is not covered by the history any more: the earliest that is, is " + strconv.FormatInt(end+1, 10))
}

const (
	// mostExamined is how many changes one request examines. A list that would examine more
	// ends with a continue token, whether or not it has reached the limit of the request: a
	// selector that matches few of millions of changes costs a client many short requests.
	mostExamined = 10_000
	// readChanges and readBytes bound what is read from the database at once.
	readChanges = 500
	readBytes   = 1 << 20
)

// continueToken is where a page of a list begins, the content of a token.
type continueToken struct {
	Version string `json:"v"`
	// Revision is the last one of the list, that of its first page.
	Revision int64 `json:"rv"`
	// After is the last revision that the pages before have examined, or that of the moment since if Before is not 0; at
	// the end of the list it is Revision.
	After int64 `json:"after"`
	// Before is the earliest revision that the pages before have examined, if the newest changes are first; else 0.
	Before int64 `json:"before,omitempty"`
	// Lost is chosen.lostAfter of After, and Epoch the store's, when the page before was read.
	Lost  int64  `json:"lost"`
	Epoch string `json:"epoch"`
}

// List implements rest.Lister. The order is that of the revisions: a later page has later changes,
// and the list of a terminal ends with the newest. The selector order=newest reverses it.
func (s *Storage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	state, err := s.config.Driver.State(ctx)
	if err != nil {
		return nil, changes.APIError(err)
	}
	// Histories is read before and after the changes. What is deleted in between is then noticed
	// by this page or by the next.
	histories, err := s.config.Driver.Histories(ctx)
	if err != nil {
		return nil, changes.APIError(err)
	}
	chosen := s.choose(ctx, options, histories)
	if chosen.blame != "" {
		if err := chosen.check(); err != nil {
			return nil, err
		}
		return s.blame(ctx, &chosen, histories)
	}
	at, err := begin(options, &chosen, state, histories)
	if err == nil && options.Continue == "" {
		err = s.bound(ctx, &at, &chosen, histories)
	}
	if err != nil {
		return nil, err
	}
	list := &ChangeList{Items: []Change{}, ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(at.Revision, 10)}}
	if chosen.nothing {
		return list, nil
	}
	if chosen.order != "" && at.Before == 0 {
		at.Before = at.Revision + 1
	}
	after := at.After
	if options.Continue == "" {
		at.Lost = chosen.lostAfter(after, histories)
	}
	if err := s.read(ctx, &chosen, &at, options.Limit, list); err != nil {
		return nil, err
	}
	// A list with the newest changes first ends with what is left, unless it has to reach back to a moment.
	if options.Continue != "" && at.Before == 0 || chosen.since != "" {
		now, err := s.config.Driver.Histories(ctx)
		if err != nil {
			return nil, changes.APIError(err)
		}
		if chosen.lostAfter(after, now) != at.Lost {
			return nil, expiredPage()
		}
	}
	if at.After < at.Revision {
		at.Lost = chosen.lostAfter(at.After, histories)
		list.Continue = at.encode()
	}
	return list, nil
}

// read appends items until the page is full or the list ends. It moves at to where the next page begins.
func (s *Storage) read(ctx context.Context, chosen *chosen, at *continueToken, limit int64, list *ChangeList) error {
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return err
	}
	for examined := 0; examined < mostExamined; {
		chosen.query.After, chosen.query.Before, chosen.query.Size, chosen.query.Limit = at.After, at.Before, readBytes,
			readChanges
		found, err := s.config.Driver.Changes(ctx, chosen.query)
		if err != nil {
			return changes.APIError(err)
		}
		created := changes.NewCreations(s.config.Driver)
		for i := range found {
			c := &found[i]
			switch {
			case at.Before != 0:
				at.Before = c.Revision
			case c.Revision > at.Revision:
				at.After = at.Revision
				return nil
			default:
				at.After = c.Revision
			}
			examined++
			if !chosen.selects(c) {
				continue
			}
			if sees, err := rights.Sees(ctx, c, created); err != nil {
				return err
			} else if !sees {
				continue
			}
			item, err := s.item(ctx, c, false)
			if err != nil {
				return err
			}
			list.Items = append(list.Items, *item)
			if limit > 0 && int64(len(list.Items)) >= limit {
				return nil
			}
		}
		if len(found) == 0 {
			at.After = at.Revision
			return nil
		}
	}
	return nil
}

// begin returns where the list of the options begins.
func begin(
	options *internalversion.ListOptions, chosen *chosen, state sqlstore.State, histories []sqlstore.History,
) (continueToken, error) {
	at := continueToken{Version: groupVersion.String(), Revision: state.Revision, Epoch: state.Epoch}
	asked, err := storage.APIObjectVersioner{}.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return at, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	wanted := int64(asked) //nolint:gosec // a greater one is too large, whether or not it overflows
	switch {
	case options.Continue != "" && wanted != 0:
		return at, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	case options.Continue != "":
		return resume(options.Continue, state)
	case asked > uint64(max(state.Revision, 0)):
		return at, storage.NewTooLargeResourceVersionError(asked, uint64(max(state.Revision, 0)), 1)
	case options.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		at.Revision = wanted
		if chosen.isCompacted(wanted, histories) {
			return at, expiredSince(wanted, histories)
		}
	}
	return at, nil
}

// bound moves the ends of a list to the moments that are chosen.
func (s *Storage) bound(
	ctx context.Context, at *continueToken, chosen *chosen, histories []sqlstore.History,
) (err error) {
	if err := chosen.check(); err != nil {
		return err
	}
	if chosen.since != "" {
		if at.After, err = s.revisionAt(ctx, chosen.since, chosen, histories); err != nil {
			return err
		}
	}
	if chosen.until != "" {
		until, err := s.revisionAt(ctx, chosen.until, chosen, histories)
		if err != nil {
			return err
		}
		at.Revision = min(at.Revision, until)
	}
	at.After = min(at.After, at.Revision)
	return nil
}

func resume(token string, state sqlstore.State) (at continueToken, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil || at.Version != groupVersion.String() || at.After < 0 || at.After > at.Revision || at.Before < 0 ||
		at.Before > at.Revision+1 {
		return at, apierrors.NewBadRequest("the continue parameter is not one of a list of changes")
	}
	if at.Epoch != state.Epoch || at.Revision > state.Revision {
		return at, expiredPage()
	}
	return at, nil
}

func expiredPage() error {
	return apierrors.NewResourceExpired(
		"changes of the remaining pages were deleted since the first page: begin a new list")
}

func (t *continueToken) encode() string {
	data, err := json.Marshal(t)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// selectable are what a field selector may name: fields, the moments since and until, the order of a list, and blame.
var selectable = []string{
	"metadata.name", "metadata.namespace",
	"object.group", "object.resource", "object.name", "object.uid", "who", "verb", "subresource",
	"since", "until", "order", "blame",
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
	// blame is true if a list has the last change of each field of one object, and else empty.
	blame string
	// nothing: no change can match.
	nothing bool
}

func (s *Storage) choose(
	ctx context.Context, options *internalversion.ListOptions, histories []sqlstore.History,
) chosen {
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
	c.blame, _ = c.fields.RequiresExactMatch("blame")
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
		is, known := map[string]bool{"object.group": h.Group == r.Value,
			"object.resource": h.Resource.Resource == r.Value}[r.Field]
		if known && is == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	return true
}

// selects reports whether a change is selected.
func (c *chosen) selects(change *sqlstore.Change) bool {
	key, in := change.New.Key, c.query.Namespaces
	if changes.IsInternal(key) || in != nil && !slices.Contains(in, key.Namespace) ||
		c.withoutStatus && change.Author.Subresource == "status" || !c.labels.Matches(labels.Set{}) {
		return false
	}
	return c.fields.Empty() || c.fields.Matches(fields.Set{
		"since": c.since, "until": c.until, "order": c.order, "blame": c.blame,
		"metadata.name": strconv.FormatInt(change.Revision, 10), "metadata.namespace": ShownIn(key.Namespace),
		"object.group": key.Group, "object.resource": key.Resource, "object.name": key.Name, "object.uid": change.New.UID,
		"who": change.Author.User, "verb": change.Author.Verb, "subresource": change.Author.Subresource,
	})
}

// lostAfter adds up the ends of the histories of the selected resources that are after a revision.
// They only ever grow: the sum changes exactly if selected changes after the revision are
// deleted, or a new epoch begins.
func (c *chosen) lostAfter(revision int64, histories []sqlstore.History) (sum int64) {
	for i := range histories {
		for _, end := range []int64{histories[i].ResumableAfter, histories[i].CompleteAfter} {
			if end > revision && c.concerns(&histories[i]) {
				sum += end
			}
		}
	}
	return sum
}

// isCompacted reports whether a client can't go on from a revision: changes of a selected resource after it may be
// deleted, or it is of an epoch before.
func (c *chosen) isCompacted(revision int64, histories []sqlstore.History) bool {
	return slices.ContainsFunc(histories, func(h sqlstore.History) bool {
		return h.ResumableAfter > revision && c.concerns(&h)
	})
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
		if r.Field == "blame" && (r.Operator == selection.NotEquals || r.Value != "true") {
			return apierrors.NewBadRequest("the field selector blame takes =true only")
		}
	}
	return nil
}

// revisionAt returns the revision of a moment: the last one whose time is not after it. It fails with
// the code 410 if changes of the selected resources after the moment are deleted, or if they are older
// than the namespace or the definition, and so not to be seen.
func (s *Storage) revisionAt(
	ctx context.Context, moment string, chosen *chosen, histories []sqlstore.History,
) (int64, error) {
	_, revision, err := s.config.Revision(ctx, moment)
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
func (s *Storage) withinNamespace(
	ctx context.Context, rights *changes.Rights, moment string, revision int64, chosen *chosen,
) error {
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

// withinDefinition fails with the code 410 if the user of a request may list one of the selected resources, and does
// not see changes of it after a moment, because they are of a definition that was deleted and created again.
func (s *Storage) withinDefinition(
	ctx context.Context, rights *changes.Rights, moment string, revision int64, q sqlstore.ChangesQuery,
	selected []sqlstore.History,
) error {
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
		found, err := s.config.Driver.Changes(ctx,
			sqlstore.ChangesQuery{Of: &of, Namespaces: q.Namespaces, Before: hidden, Kept: true, KeysOnly: true, Limit: 1})
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
	return apierrors.NewResourceExpired(what + " was created after " + moment + ": the earliest moment is revision " +
		strconv.FormatInt(created, 10))
}
