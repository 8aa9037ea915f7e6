package transfer

import (
	"bytes"
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"byre/sqlstore"
	etcdserver "byre/sqlstore/etcd/server"
)

// Objects shows what a stock kube-apiserver keeps in "byre etcd" as the objects that it is: Get, Changes and Histories
// are of objects, whose values are as kube-apiserver has put them. All else is the Driver's own, of keys of etcd.
//
//   - The uid comes from the metadata of the value, if that has the name of its key; else there is none.
//   - The manager and the subresource come from the managed fields, and so does the verb apply; see changedBy. A verb
//     update may be that of a patch. Who has asked for a change is not known: the user is empty, but for what byre has
//     deleted itself at the end of a lease.
//   - A key below a prefix that no resource of this version has is of a custom resource without a group, which has
//     no definition: those may see it who may do everything. Other keys that are no object's are of the group byre, and
//     nobody sees them.
type Objects struct {
	sqlstore.Driver
	table *table
}

// NewObjects makes the Objects of a database of "byre etcd".
func NewObjects(driver sqlstore.Driver) (*Objects, error) {
	table, err := newTable(DefaultPrefix)
	return &Objects{driver, table}, err
}

// Get implements sqlstore.Driver.
func (o *Objects) Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	path, _ := o.path(key)
	at := etcdserver.RecordOf(path)
	if o.keyOf(at) != key { // such as a name with a slash
		return sqlstore.Record{}, 0, sqlstore.ErrNotFound
	}
	record, revision, err := o.Driver.Get(ctx, at)
	showAs(&record, key)
	return record, revision, err
}

// Histories implements sqlstore.Driver.
func (o *Objects) Histories(ctx context.Context) (all []sqlstore.History, err error) {
	stored, err := o.Driver.Histories(ctx)
	for _, h := range stored {
		for _, of := range o.resourcesOf(h.Resource) {
			h.Resource = of
			all = append(all, h)
		}
	}
	return all, err
}

// resourcesOf returns the resources of the objects that a resource of the store has: two of them begin with services.
func (o *Objects) resourcesOf(stored sqlstore.Resource) (all []sqlstore.Resource) {
	example := sqlstore.Key{Group: stored.Group, Resource: stored.Resource, Owner: stored.Owner, Name: "/name"}
	if _, ok := etcdserver.KeyOf(example); ok {
		for prefix, r := range o.table.byPrefix {
			if strings.HasPrefix(prefix+"/", stored.Resource+"/") {
				all = append(all, sqlstore.Resource{Group: r.Group, Resource: r.Resource})
			}
		}
	}
	if all == nil {
		all = append(all, o.keyOf(example).Of())
	}
	return all
}

// keyOf returns the key of the object of a record.
func (o *Objects) keyOf(record sqlstore.Key) sqlstore.Key {
	path, isOfEtcd := etcdserver.KeyOf(record)
	if isOfEtcd {
		found, leftOut, err := o.table.find(path)
		prefix := o.table.prefix + record.Resource + "/"
		switch {
		case err == nil && leftOut == "":
			return found.Key
		case err != nil && strings.HasPrefix(path, prefix):
			unknown := sqlstore.Key{Resource: record.Resource, Owner: sqlstore.Custom}
			var isNamespaced bool
			if unknown.Namespace, unknown.Name, isNamespaced = strings.Cut(path[len(prefix):], "/"); !isNamespaced {
				unknown.Namespace, unknown.Name = "", unknown.Namespace
			}
			return unknown
		}
	}
	return sqlstore.Key{Group: "byre", Resource: record.Resource, Name: record.Name}
}

// path is the reverse of keyOf, in etcd; false if there is none.
func (o *Objects) path(key sqlstore.Key) (path string, ok bool) {
	path, _, leftOut, err := o.table.key(key)
	if key.Group == "" { // of a custom resource whose group is not known
		path = strings.Replace(path, "//", "/", 1)
	}
	return path, err == nil && leftOut == ""
}

// Changes implements sqlstore.Driver, but for one thing: a query of namespaces and all resources finds the changes of
// all namespaces. With a resource, the query has one namespace at most, and that of cluster-scoped objects.
func (o *Objects) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	if q.Of == nil {
		q.Namespaces, q.Name = nil, ""
	} else if nonEmpty, err := o.narrow(ctx, &q); !nonEmpty || err != nil {
		return nil, err
	}
	found, err := o.Driver.Changes(ctx, q)
	for i := range found {
		o.show(&found[i])
	}
	return found, err
}

// narrow replaces a query of a resource's objects by that of their records, whose names begin with the namespaces of
// the objects. nonEmpty is false if there can be none.
func (o *Objects) narrow(ctx context.Context, q *sqlstore.ChangesQuery) (nonEmpty bool, err error) {
	path, isKnown := o.path(sqlstore.Key{Group: q.Of.Group, Resource: q.Of.Resource, Owner: q.Of.Owner})
	if !isKnown {
		return false, nil
	}
	first := etcdserver.RecordOf(path)
	of, in, name := first.Of(), q.Namespaces, q.Name
	q.Of, q.Namespaces, q.Name = &of, nil, ""
	if in == nil {
		if first.Name != "/" {
			q.Namespaces, q.NamePrefix = []string{""}, first.Name
		}
		return true, nil
	}
	some, err := o.Driver.Changes(ctx, sqlstore.ChangesQuery{Of: &of, Kept: true, KeysOnly: true, Limit: 1})
	if err != nil || len(some) == 0 {
		return false, err
	}
	isNamespaced := o.keyOf(some[0].New.Key).Namespace != ""
	i := slices.IndexFunc(in, func(namespace string) bool { return (namespace != "") == isNamespaced })
	if i < 0 {
		return false, nil
	}
	if isNamespaced {
		path += in[i] + "/"
	}
	switch at := etcdserver.RecordOf(path + name).Name; {
	case name != "":
		q.Namespaces, q.Name = []string{""}, at
	case isNamespaced:
		q.Namespaces, q.NamePrefix = []string{""}, at
	}
	return true, nil
}

// show has a change be that of an object.
func (o *Objects) show(c *sqlstore.Change) {
	key := o.keyOf(c.New.Key)
	if c.Author.Verb != "expire" {
		c.Author = sqlstore.Author{Verb: string(c.Op)}
	}
	var before, after *metav1.ObjectMeta
	if c.Old != nil {
		old := *c.Old
		before = showAs(&old, key)
		c.Old = &old
	}
	if after = showAs(&c.New, key); c.Op == sqlstore.Delete {
		c.New.UID = c.Old.UID
	}
	if after == nil || c.Old != nil && before == nil {
		return
	}
	if before == nil {
		before = &metav1.ObjectMeta{}
	}
	if by := changedBy(before.ManagedFields, after.ManagedFields); by != nil {
		c.Author.Manager, c.Author.Subresource = by.Manager, by.Subresource
		if by.Operation == metav1.ManagedFieldsOperationApply {
			c.Author.Verb = "apply"
		}
	}
}

// showAs has a record be that of an object. It returns the object's metadata; nil if the value has none.
func showAs(r *sqlstore.Record, key sqlstore.Key) *metav1.ObjectMeta {
	r.Key, r.UID = key, ""
	if len(r.Value) == 0 {
		return nil
	}
	value, err := etcdserver.ValueOf(r.Encoding, r.Value)
	if err != nil {
		return nil
	}
	r.Value = value
	m := metadataOf(value)
	if m == nil || m.Namespace != key.Namespace || m.Name != key.Name {
		return nil
	}
	r.UID = string(m.UID)
	return m
}

// metadataOf returns the metadata of an object in the form in which etcd has it; nil if it has none. In protobuf
// the metadata of every object is the field that they are of a PartialObjectMetadata.
func metadataOf(value []byte) *metav1.ObjectMeta {
	var object metav1.PartialObjectMetadata
	var err error
	if message, isProtobuf := bytes.CutPrefix(value, []byte("k8s\x00")); isProtobuf {
		var envelope runtime.Unknown
		if err = envelope.Unmarshal(message); err == nil {
			err = object.Unmarshal(envelope.Raw)
		}
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(value, &object)
	}
	if err != nil {
		return nil
	}
	return &object.ObjectMeta
}

// changedBy returns the one entry of the managed fields that a write has added, or given another time: kube-apiserver
// gives the entry of who changes a field the time of the change, in seconds. It returns nil if there is none, as after
// the second change of a manager in one second, or if there are several.
func changedBy(before, after []metav1.ManagedFieldsEntry) (by *metav1.ManagedFieldsEntry) {
	for i := range after {
		e := &after[i]
		if slices.ContainsFunc(before, func(b metav1.ManagedFieldsEntry) bool {
			return b.Manager == e.Manager && b.Operation == e.Operation && b.Subresource == e.Subresource &&
				b.APIVersion == e.APIVersion && b.Time.Equal(e.Time)
		}) {
			continue
		}
		if by != nil {
			return nil
		}
		by = e
	}
	return by
}
