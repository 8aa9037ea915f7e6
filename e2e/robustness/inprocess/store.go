package inprocess

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// Layers are what a Store is made of; the zero value is byre as it is. A test replaces
// one by a faulty one.
type Layers struct {
	// Source is what the feed reads; nil is the driver.
	Source watch.Source
	// Publish gets the changes on their way to the feed.
	Publish func(next sqlstore.Publish) sqlstore.Publish
	// Encode makes the protobuf of an object, without its resourceVersion.
	Encode func(cm *corev1.ConfigMap) ([]byte, error)
}

// Replica is a store that may be stopped and followed by another, as a process is by the
// next one.
type Replica struct {
	Name  string
	store atomic.Pointer[Store]
}

// Store is the present one; it may have been stopped.
func (r *Replica) Store() *Store { return r.store.Load() }

// Use makes a store the present one.
func (r *Replica) Use(s *Store) { r.store.Store(s) }

// Store keeps ConfigMaps.
type Store struct {
	objects  *storage.Store
	protobuf *encoding.Format
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// Retention is short, so that compactions are frequent.
const (
	keptChanges     = 400
	compactInterval = 100 * time.Millisecond
)

// Start runs a store over a driver, which stays the caller's.
func Start(driver sqlstore.Driver, layers Layers) *Store {
	source := layers.Source
	if source == nil {
		source = driver
	}
	feed := watch.New(source, watch.Options{Interval: 20 * time.Millisecond})
	publish := sqlstore.Publish(feed.Publish)
	if layers.Publish != nil {
		publish = layers.Publish(publish)
	}
	store := sqlstore.New(driver, sqlstore.Options{
		Publish: publish, RetentionChanges: keptChanges, CompactInterval: compactInterval,
	})
	encoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{})
	objects := storage.New(storage.Config{
		Store: store, Feed: feed,
		GroupResource:  schema.GroupResource{Resource: "configmaps"},
		ResourcePrefix: "/configmaps/",
		Codec: scheme.Codecs.CodecForVersions(encoder, scheme.Codecs.UniversalDeserializer(),
			corev1.SchemeGroupVersion, corev1.SchemeGroupVersion),
		StorageVersion:   corev1.SchemeGroupVersion,
		Encoding:         "robustness/v1",
		NewFunc:          func() runtime.Object { return &corev1.ConfigMap{} },
		BookmarkInterval: 100 * time.Millisecond,
	})
	encode := layers.Encode
	if encode == nil {
		encode = func(cm *corev1.ConfigMap) ([]byte, error) { return cm.Marshal() }
	}
	s := &Store{objects: objects}
	s.protobuf = encoding.Protobuf("protobuf", func(_ context.Context, o runtime.Object) ([]byte, error) {
		return encode(o.(*corev1.ConfigMap))
	})
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	// Both return nil when their context ends.
	s.running.Go(func() { _ = feed.Run(ctx) })
	s.running.Go(func() { _ = store.Run(ctx) })
	return s
}

// Stop ends the store and waits until it has.
func (s *Store) Stop() {
	s.cancel()
	s.running.Wait()
}
