package history

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

const (
	// mostBlamed is how many changes a request for the last change of each field examines. Fields that have not changed
	// in them are listed as those that are older than the history.
	mostBlamed = 100_000
	// blameBytes bounds what such a request reads from the database at once.
	blameBytes = 4 << 20
)

// errNoBlame is the error for a selector blame=true that does not name one object.
var errNoBlame = apierrors.NewBadRequest(
	"the field selector blame=true takes object.resource, object.name and object.group in a namespace, and no others")

// blame returns the changes that gave an object, as it is, the values of its fields: each with these fields as Changed,
// in which Old is empty. The fields that are older than what the history has, and the user may see, are those of a
// change without a time, of the last revision from which on they are known to have had their values. The
// resourceVersion of the list is that of the object.
//
// It reads the changes of the object, the newest first, until each field has one.
func (s *Storage) blame(ctx context.Context, chosen *chosen, histories []sqlstore.History) (*ChangeList, error) {
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return nil, err
	}
	record, err := s.named(ctx, rights, chosen, histories)
	if err != nil {
		return nil, err
	}
	object, err := s.config.Open(ctx, record.Key, record.Value)
	if apierrors.IsTimeout(err) || ctx.Err() != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(errors.New("the object can't be read any more"))
	}
	shown := object
	if changes.IsSecret(record.Group, record.Resource) {
		decoded, _ := changes.Decode(object).(map[string]any)
		_, decoded = changes.MaskSecret(nil, decoded)
		shown = changes.Encode(decoded)
	}
	b := blaming{
		storage: s, rights: rights, leaves: changes.NewLeaves(object, shown, s.config.TypesOf(ctx, record.Of())),
		after: object, revision: record.Revision,
		list: &ChangeList{Items: []Change{},
			ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(record.Revision, 10)}},
	}
	if err := b.read(ctx, record.Key); err != nil {
		return nil, err
	}
	if b.leaves.Left() {
		b.add(&Change{
			ObjectMeta: metav1.ObjectMeta{
				Name: strconv.FormatInt(b.revision, 10), Namespace: ShownIn(record.Namespace),
				ResourceVersion: strconv.FormatInt(b.revision, 10),
			},
			Revision: b.revision,
			Object: ObjectReference{Group: record.Group, Resource: record.Resource, Namespace: record.Namespace,
				Name: record.Name, UID: record.UID},
		}, b.leaves.Take(nil, nil))
	}
	kind := kindOf(object)
	for i := range b.list.Items {
		b.list.Items[i].Object.Kind = kind
	}
	slices.Reverse(b.list.Items)
	return b.list, nil
}

// named returns the object that is selected. That it does not exist, only a user learns who may list it.
func (s *Storage) named(
	ctx context.Context, rights *changes.Rights, chosen *chosen, histories []sqlstore.History,
) (r sqlstore.Record, err error) {
	namespace := request.NamespaceValue(ctx)
	name, hasName := chosen.fields.RequiresExactMatch("object.name")
	resource, hasResource := chosen.fields.RequiresExactMatch("object.resource")
	group, _ := chosen.fields.RequiresExactMatch("object.group") // the core group if it is not named
	for _, field := range chosen.fields.Requirements() {
		if !slices.Contains([]string{"blame", "object.group", "object.resource", "object.name"}, field.Field) {
			return r, errNoBlame
		}
	}
	if !hasName || !hasResource || namespace == "" {
		return r, errNoBlame
	}
	created := changes.NewCreations(s.config.Driver)
	for i := range histories {
		of := histories[i].Resource
		if of.Group != group || of.Resource != resource {
			continue
		}
		for _, in := range chosen.query.Namespaces {
			key := sqlstore.Key{Group: group, Resource: resource, Owner: of.Owner, Namespace: in, Name: name}
			record, _, err := s.config.Driver.Get(ctx, key)
			if errors.Is(err, sqlstore.ErrNotFound) || changes.IsInternal(key) {
				continue
			}
			if err != nil {
				return r, changes.APIError(err)
			}
			sees, err := rights.Sees(ctx, &sqlstore.Change{Revision: record.Revision, New: record}, created)
			if sees || err != nil {
				return record, err
			}
		}
	}
	gr := schema.GroupResource{Group: group, Resource: resource}
	lists, err := rights.Lists(ctx, gr, namespace)
	if err == nil && !lists {
		err = apierrors.NewForbidden(gr, name, errors.New("you may not list these objects and changes of "+GroupName))
	}
	return r, cmp.Or(err, error(apierrors.NewNotFound(gr, name)))
}

// blaming finds the last change of each field of an object. One goroutine uses it.
type blaming struct {
	storage *Storage
	rights  *changes.Rights
	leaves  *changes.Leaves
	// after is the object at revision: all later changes have been examined.
	after    []byte
	revision int64
	list     *ChangeList // the newest first
}

// read reads changes until each field has one, or the history ends.
func (b *blaming) read(ctx context.Context, key sqlstore.Key) error {
	driver := b.storage.config.Driver
	of, before := key.Of(), b.revision+1
	for examined := 0; b.leaves.Left() && examined < mostBlamed; {
		found, err := driver.Changes(ctx, sqlstore.ChangesQuery{
			Of: &of, Namespaces: []string{key.Namespace}, Name: key.Name, Before: before, Kept: true,
			Limit: readChanges, Size: blameBytes,
		})
		if len(found) == 0 || err != nil {
			return changes.APIError(err)
		}
		created := changes.NewCreations(driver)
		for i := range found {
			if more, err := b.examine(ctx, &found[i], created); !more || err != nil {
				return err
			}
		}
		examined += len(found)
		before = b.revision + 1
	}
	return nil
}

// examine takes the fields that a change has changed, and goes back to before it. more is false if nothing that is
// before it can be told.
func (b *blaming) examine(
	ctx context.Context, c *sqlstore.Change, created *changes.Creations,
) (more bool, err error) {
	if c.Revision != b.revision {
		return false, ctx.Err() // the change that made this state is deleted
	}
	if sees, err := b.rights.Sees(ctx, c, created); !sees || err != nil {
		return false, err
	}
	var before []byte
	if c.Old != nil {
		before, err = b.storage.config.Open(ctx, c.Old.Key, c.Old.Value)
		if apierrors.IsTimeout(err) || ctx.Err() != nil {
			return false, cmp.Or(ctx.Err(), err)
		}
		if err != nil {
			return false, nil //nolint:nilerr // what can't be read any more is as what is deleted
		}
	}
	if taken := b.leaves.Take(before, b.after); len(taken) > 0 {
		b.add(newItem(c), taken)
	}
	if c.Old == nil {
		return false, nil
	}
	b.after, b.revision = before, c.Old.Revision
	return b.leaves.Left(), nil
}

// add adds a change with the fields whose values it gave.
func (b *blaming) add(item *Change, leaves []changes.Leaf) {
	slices.SortFunc(leaves, func(a, b changes.Leaf) int { return strings.Compare(a.Path, b.Path) })
	for _, leaf := range leaves {
		item.Changed = append(item.Changed, FieldChange{Path: leaf.Path, New: leaf.Value})
	}
	b.list.Items = append(b.list.Items, *item)
}
