package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

const (
	// mostFields bounds Change.Changed of an item of a list, and mostFieldsOfOne of one that is
	// got.
	mostFields      = 16
	mostFieldsOfOne = 1024
	// mostText bounds the old and the new value of a FieldChange, in bytes.
	mostText = 256
)

// newItem makes the item of a change, without what its object tells.
func newItem(c *sqlstore.Change) *Change {
	key := c.New.Key
	item := &Change{
		ObjectMeta: metav1.ObjectMeta{
			Name: strconv.FormatInt(c.Revision, 10), Namespace: ShownIn(key.Namespace),
			ResourceVersion: strconv.FormatInt(c.Revision, 10), CreationTimestamp: metav1.Time{Time: c.Time},
		},
		Revision: c.Revision, Time: metav1.MicroTime{Time: c.Time},
		Who: c.Author.User, RealUser: c.Author.RealUser, Verb: c.Author.Verb, Subresource: c.Author.Subresource,
		Manager: c.Author.Manager, AuditID: c.Author.AuditID,
		Object: ObjectReference{Group: key.Group, Resource: key.Resource, Namespace: key.Namespace, Name: key.Name,
			UID: c.New.UID},
	}
	if c.Old != nil {
		item.Replaces = c.Old.Revision
	}
	return item
}

// item makes the item of a change; whole adds Before and After. It fails if the change may be read later.
func (s *Storage) item(ctx context.Context, c *sqlstore.Change, whole bool) (*Change, error) {
	key, item := c.New.Key, newItem(c)
	var before, after []byte
	var err error
	if c.Old != nil {
		before, err = s.config.Open(ctx, key, c.Old.Value)
	}
	if c.Op != sqlstore.Delete {
		var afterErr error
		after, afterErr = s.config.Open(ctx, key, c.New.Value)
		err = errors.Join(err, afterErr)
	}
	if err != nil && (ctx.Err() != nil || apierrors.IsTimeout(err)) {
		return nil, cmp.Or(ctx.Err(), err)
	}
	item.Unreadable = err != nil
	if item.Object.Kind = kindOf(after); item.Object.Kind == "" {
		item.Object.Kind = kindOf(before)
	}
	if whole {
		before, after = withoutManagedFields(before), withoutManagedFields(after)
		item.Before, item.After = raw(before), raw(after)
	}
	if before != nil && after != nil {
		most := mostFields
		if whole {
			most = mostFieldsOfOne
		}
		item.setChanged(s.config.Compare(ctx, key, before, after), most)
	}
	return item, nil
}

func (c *Change) setChanged(differences iter.Seq[*changes.Difference], most int) {
	c.Changed, c.MoreChanged = nil, 0
	for d := range differences {
		if len(c.Changed) < most {
			c.Changed = append(c.Changed, FieldChange(d.Field(mostText)))
		} else {
			c.MoreChanged++
		}
	}
}

// IsOfSecret reports whether Changed has masked values: the object is a Secret.
func (c *Change) IsOfSecret() bool { return changes.IsSecret(c.Object.Group, c.Object.Resource) }

// ShowSecrets replaces the masked values of Changed by those of Before and After of the same change, as it is got.
func (c *Change) ShowSecrets(got *Change) {
	if got.Before == nil || got.After == nil {
		return
	}
	fields := map[string]FieldChange{}
	for d := range changes.Compare(got.Before.Raw, got.After.Raw, nil) {
		field := FieldChange(d.Field(mostText))
		fields[field.Path] = field
	}
	for i := range c.Changed {
		if field, found := fields[c.Changed[i].Path]; found { // what is masked is not in a list
			c.Changed[i] = field
		}
	}
}

func raw(object []byte) *runtime.RawExtension {
	if object == nil {
		return nil
	}
	return &runtime.RawExtension{Raw: object}
}

func kindOf(object []byte) string {
	if object == nil {
		return ""
	}
	encoded := changes.Fields(object)["kind"]
	if encoded == nil {
		return ""
	}
	kind, _ := changes.Decode(encoded).(string) // it may be no string
	return kind
}

// managedFields is the name of a field of the metadata.
const managedFields = "managedFields"

func withoutManagedFields(object []byte) []byte {
	if object == nil {
		return nil
	}
	decoded := changes.Decode(object).(map[string]any)
	if metadata, ok := decoded["metadata"].(map[string]any); ok {
		delete(metadata, managedFields)
	}
	return changes.Encode(decoded)
}

// clusterScoped is the namespace in which changes of cluster-scoped objects are shown. A namespaced
// resource has no items without a namespace; Kubernetes shows the Events of cluster-scoped objects
// there too.
const clusterScoped = metav1.NamespaceDefault

// ShownIn returns the namespace in which changes of the objects of a namespace are shown; empty means cluster-scoped
// objects.
func ShownIn(namespace string) string { return cmp.Or(namespace, clusterScoped) }

// Compare returns the fields in which two versions of an object differ, as Change.Changed has them, but
// all of them, and with whole values. of is the type of the object. A nil version is that of an object that does not
// exist.
func Compare(before, after map[string]any, of changes.Type) ([]FieldChange, error) {
	texts := [2][]byte{[]byte("{}"), []byte("{}")}
	for i, version := range []map[string]any{before, after} {
		if version == nil {
			continue
		}
		text, err := json.Marshal(version)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	fields := []FieldChange{}
	types := func(schema.GroupVersionKind) changes.Type { return of }
	for d := range changes.Compare(texts[0], texts[1], types) {
		fields = append(fields, FieldChange(d.Field(math.MaxInt)))
	}
	return fields, nil
}

// shownFields is how many changed fields a row of a table shows.
const shownFields = 3

// ChangedColumn is the name of the column that has the Summary of a Change.
const ChangedColumn = "Changed"

var columns = []metav1.TableColumnDefinition{
	{Name: "Revision", Type: "string", Format: "name", Description: "The revision that the change gave to the object."},
	{Name: "Age", Type: "string", Description: "How long ago the change was made."},
	{Name: "Who", Type: "string", Description: "The user who made the change."},
	{Name: "Verb", Type: "string", Description: "The verb of the request, and its subresource."},
	{Name: "Object", Type: "string", Description: "The object that was changed."},
	{Name: ChangedColumn, Type: "string", Description: "The first fields that were changed."},
	{Name: "Real User", Type: "string", Priority: 1, Description: "The user who impersonated the user."},
	{Name: "Manager", Type: "string", Priority: 1, Description: "The field manager of the request."},
	{Name: "Audit ID", Type: "string", Priority: 1, Description: "The ID of the request in the audit log."},
}

// ConvertToTable implements rest.TableConvertor.
func (*Storage) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || o == nil || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	var items []Change
	switch object := object.(type) {
	case *ChangeList:
		table.ResourceVersion, table.Continue = object.ResourceVersion, object.Continue
		items = object.Items
	case *Change:
		table.ResourceVersion = object.ResourceVersion
		items = []Change{*object}
	default:
		return nil, fmt.Errorf("%T is no change", object)
	}
	table.Rows = make([]metav1.TableRow, 0, len(items))
	for i := range items {
		table.Rows = append(table.Rows, items[i].row())
	}
	return table, nil
}

func (c *Change) row() metav1.TableRow {
	age := "<unknown>"
	if !c.Time.IsZero() {
		age = duration.HumanDuration(time.Since(c.Time.Time))
	}
	return metav1.TableRow{
		Cells: []any{
			c.Name, age, c.Who, c.FullVerb(), c.Object.FullName(), c.Summary(),
			c.RealUser, c.Manager, c.AuditID,
		},
		Object: runtime.RawExtension{Object: c},
	}
}

// Summary is the cell of the column Changed: the first changed fields.
func (c *Change) Summary() string {
	if c.Unreadable {
		return "<unreadable>"
	}
	var shown []string
	for _, field := range c.Changed[:min(len(c.Changed), shownFields)] {
		shown = append(shown, field.Path+": "+brief(field.Old)+" → "+brief(field.New))
	}
	if more := int64(len(c.Changed)-len(shown)) + c.MoreChanged; more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return strings.Join(shown, ", ")
}

// brief cuts off a value.
func brief(value string) string {
	const most = 40
	if value == "" {
		return "<none>"
	}
	if runes := []rune(value); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return value
}
