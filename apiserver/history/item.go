package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/storage"
	"byre/sqlstore"
)

const (
	// mostFields bounds Change.Changed of an item of a list, and mostFieldsOfOne of one that is
	// got.
	mostFields      = 16
	mostFieldsOfOne = 1024
)

// item makes the item of a change; whole adds Before and After.
func (s *Storage) item(ctx context.Context, c *sqlstore.Change, whole bool) *Change {
	key := c.New.Key
	item := &Change{
		ObjectMeta: metav1.ObjectMeta{
			Name: strconv.FormatInt(c.Revision, 10), Namespace: shownIn(key.Namespace),
			ResourceVersion: strconv.FormatInt(c.Revision, 10), CreationTimestamp: metav1.Time{Time: c.Time},
		},
		Revision: c.Revision, Time: metav1.MicroTime{Time: c.Time},
		Who: c.Author.User, RealUser: c.Author.RealUser, Verb: c.Author.Verb, Subresource: c.Author.Subresource,
		Manager: c.Author.Manager, AuditID: c.Author.AuditID,
		Object: ObjectReference{Group: key.Group, Resource: key.Resource, Namespace: key.Namespace, Name: key.Name, UID: c.New.UID},
	}
	var before, after []byte
	var err error
	if c.Old != nil {
		item.Replaces = c.Old.Revision
		before, err = s.open(ctx, key, c.Old.Value)
	}
	if c.Op != sqlstore.Delete {
		var afterErr error
		after, afterErr = s.open(ctx, key, c.New.Value)
		err = errors.Join(err, afterErr)
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
		item.setChanged(before, after, whole)
	}
	return item
}

func (c *Change) setChanged(before, after []byte, whole bool) {
	most := mostFields
	if whole {
		most = mostFieldsOfOne
	}
	all := compare(nil, nil, before, after)
	c.MoreChanged = int64(max(0, len(all)-most))
	for i := range all[:min(len(all), most)] {
		c.Changed = append(c.Changed, all[i].fieldChange(mostText))
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
	encoded := fieldsOf(object)["kind"]
	if encoded == nil {
		return ""
	}
	kind, _ := decode(encoded).(string) // it may be no string
	return kind
}

// managedFields is the name of a field of the metadata.
const managedFields = "managedFields"

func withoutManagedFields(object []byte) []byte {
	if object == nil {
		return nil
	}
	decoded := decode(object).(map[string]any)
	if metadata, ok := decoded["metadata"].(map[string]any); ok {
		delete(metadata, managedFields)
	}
	return encode(decoded)
}

// errNoObject is the error for a stored value that is no JSON object.
var errNoObject = errors.New("the stored value is no JSON object")

// open decrypts a stored value: a valid JSON object.
func (s *Storage) open(ctx context.Context, key sqlstore.Key, value []byte) ([]byte, error) {
	gr := schema.GroupResource{Group: key.Group, Resource: key.Resource}
	path := "/registry/" + s.config.Prefix(key.Of()) + "/"
	if key.Namespace != "" {
		path += key.Namespace + "/"
	}
	data, err := storage.Decrypt(ctx, s.config.transformer(gr), value, path+key.Name)
	if err != nil {
		return nil, err
	}
	if data = bytes.TrimSpace(data); !json.Valid(data) || data[0] != '{' {
		return nil, errNoObject
	}
	return data, nil
}

// clusterScoped is the namespace in which changes of cluster-scoped objects are shown. A namespaced
// resource has no items without a namespace; Kubernetes shows the Events of cluster-scoped objects
// there too.
const clusterScoped = metav1.NamespaceDefault

func shownIn(namespace string) string {
	if namespace == "" {
		return clusterScoped
	}
	return namespace
}

// isInternal reports whether a record is no object of the API.
func isInternal(key sqlstore.Key) bool {
	if key.Owner == sqlstore.Custom {
		return false
	}
	return key.Group == "byre" || key.Group == "" && (key.Resource == "servicenodeportallocations" || key.Resource == "apiserveripinfo")
}
