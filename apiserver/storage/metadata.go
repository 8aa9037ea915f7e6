package storage

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// time of deletion. After a DELETED it is the last state.
	Object *metav1.PartialObjectMetadata
	// Old is the state before a MODIFIED; nil where it is not known.
	Old *metav1.PartialObjectMetadata
}

// MetadataWatch follows all objects of one resource, whichever server of this
// program serves it. It reads stored bytes and decodes no object, has no
// goroutine and no buffer. It is for one goroutine.
type MetadataWatch struct {
	feed     *watch.Feed
	resource watch.Resource
	path     string // of every object, before its namespace and name
	sealer   sealer
	sub      *watch.Subscription // nil before the first Next
	// known are the uids of the objects that are there: with them it can be
	// told what was deleted meanwhile, when history has been lost.
	known map[types.NamespacedName]types.UID
}

// WatchMetadata makes a MetadataWatch of a resource whose objects are in the
// store, under this Getter's configuration or as custom resources are kept.
func (g *Getter) WatchMetadata(gr schema.GroupResource) *MetadataWatch {
	kept := g.keptAs(gr)
	w := &MetadataWatch{
		feed:     g.cfg.Feed,
		resource: watch.Resource{Group: kept.Group, Name: kept.Resource, Owner: sqlstore.Custom},
		path:     defaultKeyPrefix + "/" + kept.Group + "/" + kept.Resource + "/",
		known:    map[types.NamespacedName]types.UID{},
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

// Next returns, when it is called first, what exists, which may be nothing; then
// it waits for changes and returns at least one. After an error it can be
// called again. Errors: watch.ErrClosed when the server stops; ctx's own; those
// of reading history.
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
	snapshot, err := w.feed.Snapshot(ctx, w.resource)
	if err != nil {
		return nil, err
	}
	sub, err := w.feed.Subscribe(ctx, watch.Interest{Resource: w.resource}, snapshot.Revision())
	if err != nil {
		return nil, err
	}
	w.sub = sub
	before := w.known
	w.known = make(map[types.NamespacedName]types.UID, snapshot.Len())
	events := make([]MetadataEvent, 0, snapshot.Len())
	for e := range snapshot.All("", nil) {
		name := nameOf(e.Key)
		uid, existed := before[name]
		if existed && uid == types.UID(e.UID) {
			delete(before, name)
			events = append(events, MetadataEvent{Type: apiwatch.Modified, Object: w.metadata(ctx, e, e.Revision)})
		} else {
			events = append(events, MetadataEvent{Type: apiwatch.Added, Object: w.metadata(ctx, e, e.Revision)})
		}
		w.known[name] = types.UID(e.UID)
	}
	for name, uid := range before {
		gone := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: uid}}
		events = append(events, MetadataEvent{Type: apiwatch.Deleted, Object: gone})
	}
	return events, nil
}

func (w *MetadataWatch) event(ctx context.Context, c watch.Event) MetadataEvent {
	name := nameOf(c.Key())
	if c.New == nil {
		delete(w.known, name)
		return MetadataEvent{Type: apiwatch.Deleted, Object: w.metadata(ctx, c.Old, c.Revision)}
	}
	w.known[name] = types.UID(c.New.UID)
	event := MetadataEvent{Type: apiwatch.Added, Object: w.metadata(ctx, c.New, c.Revision)}
	if c.Old != nil {
		event.Type, event.Old = apiwatch.Modified, w.metadata(ctx, c.Old, c.Old.Revision)
	}
	return event
}

func nameOf(key sqlstore.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

// metadata reads a record. One that can't be read is there all the same: as far
// as can be told, it has no owners.
func (w *MetadataWatch) metadata(ctx context.Context, e *watch.Entry, revision int64) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       e.Namespace,
		Name:            e.Name,
		UID:             types.UID(e.UID),
		ResourceVersion: strconv.FormatInt(revision, 10),
	}}
	data, _, err := w.sealer.open(ctx, e.Value, w.path+joinName(e.Namespace, e.Name))
	if err != nil {
		return o
	}
	for top := (scanner{data, 0}); top.member(); top.skip() {
		if string(top.key()) == "metadata" {
			readMetadata(data[top.pos:], &o.ObjectMeta)
			break
		}
	}
	return o
}

// readMetadata decodes what the graph needs from an object's metadata.
func readMetadata(data []byte, into *metav1.ObjectMeta) {
	for in := (scanner{data, 0}); in.member(); {
		var field any
		switch string(in.key()) {
		case "ownerReferences":
			field = &into.OwnerReferences
		case "finalizers":
			field = &into.Finalizers
		case "deletionTimestamp":
			field = &into.DeletionTimestamp
		}
		start := in.pos
		in.skip()
		if field != nil {
			// What a decoder can't read, nobody reads: the object is as if it
			// did not have it.
			_ = json.Unmarshal(data[start:in.pos], field)
		}
	}
}
