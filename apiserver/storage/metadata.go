package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// MetadataEvent is one event of a MetadataWatch: ADDED, MODIFIED or DELETED.
type MetadataEvent struct {
	Type apiwatch.EventType
	// Object has the metadata that the garbage collector's graph consists of, and
	// nothing else: name, namespace, uid, resourceVersion, owners, finalizers and
	// deletionTimestamp. With DELETED it is the last state, without the owners.
	Object *metav1.PartialObjectMetadata
	// Old is the state before a MODIFIED, without the owners.
	Old *metav1.PartialObjectMetadata
}

// MetadataWatch follows all objects of one resource, whichever server of the delegation
// chain serves it. It reads stored bytes, decodes no object, and does not need the
// resource's records in memory. It has no goroutine and no buffer. Only one goroutine
// may use it.
type MetadataWatch struct {
	store       *sqlstore.Store
	feed        *watch.Feed
	resource    sqlstore.Resource
	path        string // the path of every object, up to its namespace and name
	transformer encoding.Transformer
	sub         *watch.Subscription // nil before the first Next
	// known are the objects that exist. By them the watch tells what an event changed,
	// and which objects were deleted in history that it could not read.
	known map[types.NamespacedName]knownObject
}

// knownObject is what the watch remembers of an object.
type knownObject struct {
	uid      types.UID
	revision int64
	// deletion has the finalizers and the deletionTimestamp; nil for an object with
	// neither.
	deletion *metav1.ObjectMeta
}

// NewMetadataWatch makes a MetadataWatch of a resource. path is what the paths of its objects begin
// with, such as "/registry/pods/". transformer decrypts the objects; nil means no encryption.
func NewMetadataWatch(
	store *sqlstore.Store, feed *watch.Feed, resource sqlstore.Resource, path string, transformer value.Transformer,
) *MetadataWatch {
	return &MetadataWatch{
		store: store, feed: feed, resource: resource, path: path,
		transformer: encoding.NewTransformer(transformer),
		known:       map[types.NamespacedName]knownObject{},
	}
}

// Next returns the objects that exist, perhaps none, at its first call. Each later call
// waits for changes and returns at least one. It may return changes with an error. The caller may
// call Next again after an error. Errors: watch.ErrClosed when the server stops; ctx's own; those of
// reading history, and of the KMS plugin that decrypts.
func (w *MetadataWatch) Next(ctx context.Context) ([]MetadataEvent, error) {
	if w.sub == nil {
		return w.begin(ctx)
	}
	changes, _, err := w.sub.Next(ctx)
	if errors.Is(err, watch.ErrCompacted) {
		w.Close()
		return w.begin(ctx)
	}
	if err != nil {
		return nil, err
	}
	events := make([]MetadataEvent, 0, len(changes))
	for _, c := range changes {
		event, err := w.event(ctx, c)
		if err != nil {
			w.Close() // the next call lists, and finds what this one has not returned
			return events, err
		}
		events = append(events, event)
	}
	return events, nil
}

// Close ends the subscription to the feed. A later Next begins anew.
func (w *MetadataWatch) Close() {
	if w.sub != nil {
		w.sub.Close()
		w.sub = nil
	}
}

// begin lists the objects that exist, and returns how they differ from those that were
// known.
func (w *MetadataWatch) begin(ctx context.Context) ([]MetadataEvent, error) {
	sub, err := w.feed.Follow(ctx, w.resource, 0)
	if err != nil {
		return nil, err
	}
	now := map[types.NamespacedName]knownObject{}
	var events []MetadataEvent
	revision, err := w.list(ctx, func(e *watch.Entry) error {
		object, err := w.metadata(ctx, e, e.Revision)
		if err != nil {
			return err
		}
		name := nameOf(e.Key)
		events = append(events, w.written(name, object))
		now[name] = newKnownObject(object, e.Revision)
		return nil
	})
	if err != nil {
		sub.Close()
		return nil, err
	}
	sub.SkipTo(revision)
	for name, before := range w.known {
		if after, ok := now[name]; !ok || after.uid != before.uid {
			events = append(events, MetadataEvent{Type: apiwatch.Deleted, Object: before.object(name)})
		}
	}
	w.sub, w.known = sub, now
	return events, nil
}

// list calls yield for each record of the resource at one revision, which it returns. A
// resource that is not too large is read from the feed: after a start the garbage
// collector is its first reader, and the clients that list the resource next find it in
// memory. Other resources are read from the database, one page at a time, and are not
// kept.
func (w *MetadataWatch) list(ctx context.Context, yield func(*watch.Entry) error) (int64, error) {
	snapshot, ok, err := w.feed.SnapshotSmall(ctx, w.resource)
	if err != nil {
		return 0, err
	}
	if ok {
		for e := range snapshot.All("", nil) {
			if err := yield(e); err != nil {
				return 0, err
			}
		}
		return snapshot.Revision(), nil
	}
	query := sqlstore.Query{
		Range: sqlstore.Range{Group: w.resource.Group, Resource: w.resource.Resource, Owner: w.resource.Owner},
		Limit: pageRecords,
	}
	for {
		listed, err := w.store.List(ctx, query, func(r sqlstore.Record) error {
			query.After = &sqlstore.Position{Namespace: r.Namespace, Name: r.Name}
			return yield(watch.NewEntry(r))
		})
		if err != nil || !listed.More {
			return listed.Revision, err
		}
		query.At = listed.Revision
	}
}

func (w *MetadataWatch) event(ctx context.Context, c watch.Event) (MetadataEvent, error) {
	name := nameOf(c.Key())
	if c.New == nil {
		event := MetadataEvent{Type: apiwatch.Deleted, Object: w.known[name].object(name)}
		delete(w.known, name)
		if c.Old.UID != "" { // the record of a value that was imported encrypted has none
			event.Object.UID = types.UID(c.Old.UID)
		}
		event.Object.ResourceVersion = strconv.FormatInt(c.Revision, 10)
		return event, nil
	}
	object, err := w.metadata(ctx, c.New, c.Revision)
	if err != nil {
		return MetadataEvent{}, err
	}
	event := w.written(name, object)
	w.known[name] = newKnownObject(object, c.Revision)
	return event, nil
}

// written returns the event of an object that was created or updated.
func (w *MetadataWatch) written(name types.NamespacedName, object *metav1.PartialObjectMetadata) MetadataEvent {
	if before, ok := w.known[name]; ok && before.uid == object.UID {
		return MetadataEvent{Type: apiwatch.Modified, Object: object, Old: before.object(name)}
	}
	return MetadataEvent{Type: apiwatch.Added, Object: object}
}

func newKnownObject(o *metav1.PartialObjectMetadata, revision int64) knownObject {
	k := knownObject{uid: o.UID, revision: revision}
	if len(o.Finalizers) > 0 || o.DeletionTimestamp != nil {
		k.deletion = &metav1.ObjectMeta{Finalizers: o.Finalizers, DeletionTimestamp: o.DeletionTimestamp}
	}
	return k
}

func (k knownObject) object(name types.NamespacedName) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       name.Namespace,
		Name:            name.Name,
		UID:             k.uid,
		ResourceVersion: strconv.FormatInt(k.revision, 10),
	}}
	if k.deletion != nil {
		o.Finalizers, o.DeletionTimestamp = k.deletion.Finalizers, k.deletion.DeletionTimestamp
	}
	return o
}

func nameOf(key sqlstore.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// metadata reads the metadata of an entry. One that can't be read counts as an object without
// owners. It fails while a KMS plugin does: the garbage collector would not delete an object whose
// owners it has not seen, until the object changes.
func (w *MetadataWatch) metadata(
	ctx context.Context, e *watch.Entry, revision int64,
) (*metav1.PartialObjectMetadata, error) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       e.Namespace,
		Name:            e.Name,
		UID:             types.UID(e.UID),
		ResourceVersion: strconv.FormatInt(revision, 10),
	}}
	data, _, err := w.transformer.Decrypt(ctx, e.Value(), w.path+joinName(e.Namespace, e.Name))
	if err != nil {
		if _, isPlugins := status.FromError(err); isPlugins {
			return nil, err
		}
		return o, nil
	}
	if message, ok := bytes.CutPrefix(data, protobufPrefix); ok {
		readProtobufMetadata(message, &o.ObjectMeta)
		return o, nil
	}
	for top := (transcode.NewScanner(data, 0)); top.NextMember(); top.SkipValue() {
		if string(top.ReadKey()) == "metadata" {
			readMetadata(data[top.Pos:], &o.ObjectMeta)
			break
		}
	}
	return o, nil
}

// protobufPrefix begins a value in Kubernetes' protobuf. Only a value that was imported
// in encrypted form is stored so, until an update writes it again.
var protobufPrefix = []byte("k8s\x00")

// readProtobufMetadata is readMetadata for an object in protobuf, as a message of
// runtime.Unknown.
func readProtobufMetadata(message []byte, into *metav1.ObjectMeta) {
	var unknown runtime.Unknown
	var o metav1.PartialObjectMetadata
	// The metadata is the first field of every API type. Unmarshal skips the other
	// fields.
	if unknown.Unmarshal(message) != nil || o.Unmarshal(unknown.Raw) != nil {
		return
	}
	into.OwnerReferences, into.Finalizers, into.DeletionTimestamp = o.OwnerReferences, o.Finalizers, o.DeletionTimestamp
	if into.UID == "" {
		into.UID = o.UID
	}
}

// readMetadata decodes those members of an object's metadata that the garbage collector
// needs.
func readMetadata(data []byte, into *metav1.ObjectMeta) {
	for in := (transcode.NewScanner(data, 0)); in.NextMember(); {
		var field any
		switch string(in.ReadKey()) {
		case "ownerReferences":
			field = &into.OwnerReferences
		case "finalizers":
			field = &into.Finalizers
		case "deletionTimestamp":
			field = &into.DeletionTimestamp
		case "uid":
			if into.UID == "" {
				field = &into.UID
			}
		}
		start := in.Pos
		in.SkipValue()
		if field != nil {
			// A member that can't be decoded counts as missing: no other reader can
			// decode it either.
			_ = json.Unmarshal(data[start:in.Pos], field)
		}
	}
}
