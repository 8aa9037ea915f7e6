package objectstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/sqlstore"
	"byre/watch"
)

// MetadataEvent is one event of a MetadataWatch: ADDED, MODIFIED or DELETED.
type MetadataEvent struct {
	Type apiwatch.EventType
	// Object has what the garbage collector's graph is made of, and nothing
	// else: name, namespace, uid, resourceVersion, owners, finalizers and the
	// time of deletion. After a DELETED it is the last state, but for the owners.
	Object *metav1.PartialObjectMetadata
	// Old is the state before a MODIFIED, but for the owners.
	Old *metav1.PartialObjectMetadata
}

// MetadataWatch follows all objects of one resource, whichever server of this
// program serves it. It reads stored bytes and decodes no object, and doesn't
// need the records in memory. It has no goroutine and no buffer. It is for one
// goroutine.
type MetadataWatch struct {
	store    *sqlstore.Store
	feed     *watch.Feed
	resource watch.Resource
	path     string // of every object, before its namespace and name
	sealer   sealer
	sub      *watch.Subscription // nil before the first Next
	// known are the objects that exist. They tell what an event changed, and what was
	// deleted while history was lost.
	known map[types.NamespacedName]knownObject
}

// knownObject is what is remembered of an object.
type knownObject struct {
	uid      types.UID
	revision int64
	// leaving has the finalizers and the time of deletion; nil where there are
	// neither.
	leaving *metav1.ObjectMeta
}

// WatchMetadata makes a MetadataWatch of a resource whose objects are in the
// store, under this Getter's configuration or as custom resources are kept.
func (g *Getter) WatchMetadata(gr schema.GroupResource) *MetadataWatch {
	kept := g.resources.StoredAs(gr)
	w := &MetadataWatch{
		store:    g.cfg.Store,
		feed:     g.cfg.Feed,
		resource: watch.Resource{Group: kept.Group, Name: kept.Resource, Owner: sqlstore.Custom},
		path:     defaultKeyPrefix + "/" + kept.Group + "/" + kept.Resource + "/",
		known:    map[types.NamespacedName]knownObject{},
	}
	if s := g.Lookup(gr); s != nil {
		w.path, w.resource = s.cfg.KeyPrefix+s.prefix, s.resource()
	}
	if g.cfg.Transformers != nil {
		w.sealer = newSealer(g.cfg.Transformers(gr))
	} else {
		w.sealer = newSealer(nil)
	}
	return w
}

// Next returns the objects that exist, perhaps none, when it is called first. Each later
// call waits for changes and returns at least one. After an error it can be called again.
// Errors: watch.ErrClosed when the server stops; ctx's own; those of reading history.
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
	events := make([]MetadataEvent, len(changes))
	for i, c := range changes {
		events[i] = w.event(ctx, c)
	}
	return events, nil
}

// Close frees what the watch holds.
func (w *MetadataWatch) Close() {
	if w.sub != nil {
		w.sub.Close()
		w.sub = nil
	}
}

// begin reads what exists, and compares it with what was known.
func (w *MetadataWatch) begin(ctx context.Context) ([]MetadataEvent, error) {
	sub, err := w.feed.Follow(ctx, w.resource, 0)
	if err != nil {
		return nil, err
	}
	now := map[types.NamespacedName]knownObject{}
	var events []MetadataEvent
	revision, err := w.list(ctx, func(r *sqlstore.Record) {
		object := w.metadata(ctx, r, r.Revision)
		name := nameOf(r.Key)
		event := MetadataEvent{Type: apiwatch.Added, Object: object}
		if before, ok := w.known[name]; ok && before.uid == object.UID {
			event.Type, event.Old = apiwatch.Modified, before.object(name)
		}
		events = append(events, event)
		now[name] = knownAs(object, r.Revision)
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

// list calls yield for each record as of the revision it returns. It reads a resource that
// is not too large from the feed, which then has it for the clients that list it next:
// after a start the garbage collector is the first reader of a resource. It reads others
// from the database, one page at a time, and keeps no records.
func (w *MetadataWatch) list(ctx context.Context, yield func(*sqlstore.Record)) (int64, error) {
	snapshot, ok, err := w.feed.SnapshotSmall(ctx, w.resource)
	if err != nil {
		return 0, err
	}
	if ok {
		for e := range snapshot.All("", nil) {
			yield(&e.Record)
		}
		return snapshot.Revision(), nil
	}
	query := sqlstore.Query{
		Range: sqlstore.Range{Group: w.resource.Group, Resource: w.resource.Name, Owner: w.resource.Owner},
		Limit: pageRecords,
	}
	for {
		listed, err := w.store.List(ctx, query, func(r sqlstore.Record) error {
			yield(&r)
			query.After = &sqlstore.Position{Namespace: r.Namespace, Name: r.Name}
			return nil
		})
		if err != nil || !listed.More {
			return listed.Revision, err
		}
		query.At = listed.Revision
	}
}

func (w *MetadataWatch) event(ctx context.Context, c watch.Event) MetadataEvent {
	name := nameOf(c.Key())
	before, existed := w.known[name]
	if c.New == nil {
		delete(w.known, name)
		event := MetadataEvent{Type: apiwatch.Deleted, Object: before.object(name)}
		if c.Old.UID != "" { // the record of a value that was imported encrypted has none
			event.Object.UID = types.UID(c.Old.UID)
		}
		event.Object.ResourceVersion = strconv.FormatInt(c.Revision, 10)
		return event
	}
	event := MetadataEvent{Type: apiwatch.Added, Object: w.metadata(ctx, &c.New.Record, c.Revision)}
	if existed && before.uid == event.Object.UID {
		event.Type, event.Old = apiwatch.Modified, before.object(name)
	}
	w.known[name] = knownAs(event.Object, c.Revision)
	return event
}

func knownAs(o *metav1.PartialObjectMetadata, revision int64) knownObject {
	k := knownObject{uid: o.UID, revision: revision}
	if len(o.Finalizers) > 0 || o.DeletionTimestamp != nil {
		k.leaving = &metav1.ObjectMeta{Finalizers: o.Finalizers, DeletionTimestamp: o.DeletionTimestamp}
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
	if k.leaving != nil {
		o.Finalizers, o.DeletionTimestamp = k.leaving.Finalizers, k.leaving.DeletionTimestamp
	}
	return o
}

func nameOf(key sqlstore.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// metadata reads the metadata of a record. A record that can't be read counts as an
// object without owners.
func (w *MetadataWatch) metadata(ctx context.Context, r *sqlstore.Record, revision int64) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       r.Namespace,
		Name:            r.Name,
		UID:             types.UID(r.UID),
		ResourceVersion: strconv.FormatInt(revision, 10),
	}}
	data, _, err := w.sealer.open(ctx, r.Value, w.path+joinName(r.Namespace, r.Name))
	if err != nil {
		return o
	}
	if message, ok := bytes.CutPrefix(data, protobufPrefix); ok {
		readProtobufMetadata(message, &o.ObjectMeta)
		return o
	}
	for top := (scanner{data, 0}); top.nextMember(); top.skipValue() {
		if string(top.readKey()) == "metadata" {
			readMetadata(data[top.pos:], &o.ObjectMeta)
			break
		}
	}
	return o
}

// protobufPrefix is what a value in Kubernetes' protobuf begins with. Only a value that
// was imported encrypted is one, until it is written again.
var protobufPrefix = []byte("k8s\x00")

// readProtobufMetadata is readMetadata for a message of runtime.Unknown.
func readProtobufMetadata(message []byte, into *metav1.ObjectMeta) {
	var unknown runtime.Unknown
	var o metav1.PartialObjectMetadata
	// Metadata is the first field of every API type, and others are skipped.
	if unknown.Unmarshal(message) != nil || o.Unmarshal(unknown.Raw) != nil {
		return
	}
	into.OwnerReferences, into.Finalizers, into.DeletionTimestamp = o.OwnerReferences, o.Finalizers, o.DeletionTimestamp
	if into.UID == "" {
		into.UID = o.UID
	}
}

// readMetadata decodes what the graph needs from an object's metadata.
func readMetadata(data []byte, into *metav1.ObjectMeta) {
	for in := (scanner{data, 0}); in.nextMember(); {
		var field any
		switch string(in.readKey()) {
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
		start := in.pos
		in.skipValue()
		if field != nil {
			// A member that can't be decoded counts as missing: no other reader can
			// decode it either.
			_ = json.Unmarshal(data[start:in.pos], field)
		}
	}
}
