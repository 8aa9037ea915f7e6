package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. Store, Feed, GroupResource, ResourcePrefix, Codec, NewFunc
// and NewListFunc are required.
type Config struct {
	// Store is where objects are written, and read at old revisions.
	Store *sqlstore.Store
	// Feed has the current state and the changes.
	Feed *watch.Feed
	// GroupResource is the resource under which the records are stored. Owner is who
	// defines this resource.
	GroupResource schema.GroupResource
	Owner         sqlstore.Owner
	// ResourcePrefix is what every key of this resource begins with, as registry.Store
	// makes the keys: "/pods", "/services/specs".
	ResourcePrefix string
	// Codec encodes to the storage version and decodes to the version in
	// memory, with defaults.
	Codec runtime.Codec
	// DecodeAhead is called with values that the Store will decode with Codec, one by
	// one. It can prepare them together, as one call of a conversion webhook does. It
	// returns no error, because decoding a value that it could not prepare returns the
	// error. Nil prepares nothing.
	DecodeAhead func(ctx context.Context, values [][]byte)
	// DecodedAge bounds how long lists and watches show what was made of an object that
	// Codec converted, for a Codec that asks a webhook: the webhook may answer otherwise
	// later. A GET without resourceVersion decodes the object again. 0 means that Codec
	// always decodes a record alike.
	DecodedAge time.Duration
	// Plain encodes a decoded object for the Formats where Codec would add to the
	// object what only a write adds; nil means Codec.
	Plain runtime.Encoder
	// StorageVersion is the group and version that Codec encodes to.
	StorageVersion schema.GroupVersion
	// Message returns what transcodes the stored JSON to protobuf, or nil for a kind that
	// can't be transcoded. Message itself is nil for objects that have no protobuf.
	Message func() *transcode.Message
	// Encoding marks the records that this program writes; a record of another Encoding is
	// decoded before it is answered. The Encoding names the program's API version, the
	// storage version, and whatever else the bytes depend on.
	Encoding string
	// View names what the Store decodes records to: the version in memory and the
	// schema. Stores of one resource with different Views do not share the attributes
	// that they derive from its records. It is empty where all Stores of a resource
	// decode alike.
	View string
	// Requires returns what a create or an update of an object requires of another object.
	// Nil, or a nil result, requires nothing.
	Requires func(sqlstore.Op) *sqlstore.Requirement
	// IsReplaced reports whether what the Store decodes by was replaced, by this server or another, up to a revision that the
	// Feed has applied; nil means that it never is. What its successor has written can't be decoded by it without loss.
	IsReplaced func(ctx context.Context, revision int64) (bool, error)
	// Generation returns the sqlstore.Write.Generation of an object; nil means
	// metadata.generation.
	Generation func(metav1.Object) int64
	// Contents returns the resource that must have no objects when the object of a name is
	// deleted; nil means that there is none.
	Contents func(name string) *sqlstore.Resource
	// Lossy is true if encoding may change the content of an object, as a conversion
	// does. An object that was written is then decoded again to be returned.
	Lossy bool
	// NewFunc and NewListFunc make empty objects.
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object
	// AttrFunc returns the labels and the selectable fields of an object; nil means the
	// fields metadata.name and metadata.namespace.
	AttrFunc storage.AttrFunc
	// IndexFields name the selectable fields by which lists and watches are often
	// narrowed, such as "spec.nodeName" of pods. They must also be the paths of scalars
	// in the storage version.
	IndexFields []string
	// Transformer encrypts at rest; nil means no encryption.
	Transformer value.Transformer
	// Uncached says that upstream has no watch cache of the resource, as of Events: a limit counts at resourceVersion
	// "0" too.
	Uncached bool
	// WatchTermination ends all watches before their time; nil means that nothing does.
	WatchTermination *WatchTermination
	// Clock is for expiry and bookmarks; nil means the real clock.
	Clock clock.Clock
	// BookmarkInterval is the greatest time between two bookmarks of a watch that asked
	// for them; 0 means a minute, as in upstream's watch cache.
	BookmarkInterval time.Duration
	// FutureTimeout bounds how long a read waits for a revision that does not exist
	// yet; 0 means three seconds, as in upstream's watch cache.
	FutureTimeout time.Duration
}

const (
	// DefaultKeyPrefix comes before Config.ResourcePrefix in the path with which encryption at
	// rest authenticates a value. It is etcd's prefix in a stock kube-apiserver, so that
	// encrypted values of a stock server can be imported.
	DefaultKeyPrefix     = "/registry"
	defaultFutureTimeout = 3 * time.Second
	// DefaultBookmarkInterval is the greatest time between two bookmarks of a watch.
	DefaultBookmarkInterval = time.Minute
)

// Store keeps the objects of one resource. It is safe for concurrent use.
type Store struct {
	cfg        Config
	serializer *encoding.Serializer
	records    *records
	selector   *selector
	lister     *lister
}

// versioner has no state.
var versioner storage.APIObjectVersioner

var _ storage.Interface = (*Store)(nil)

// New makes a Store; it starts nothing.
func New(cfg Config) (*Store, error) {
	switch {
	case cfg.Store == nil || cfg.Feed == nil:
		return nil, errors.New("a Store and a Feed are required")
	case cfg.Codec == nil || cfg.NewFunc == nil || cfg.NewListFunc == nil:
		return nil, errors.New("a Codec, NewFunc and NewListFunc are required")
	case !strings.HasPrefix(cfg.ResourcePrefix, "/") || strings.Trim(cfg.ResourcePrefix, "/") == "":
		return nil, fmt.Errorf("resource prefix %q of %s is not a path", cfg.ResourcePrefix, cfg.GroupResource)
	}
	if cfg.Plain == nil {
		cfg.Plain = cfg.Codec
	}
	if cfg.AttrFunc == nil {
		cfg.AttrFunc = storage.DefaultNamespaceScopedAttr
	}
	if cfg.Requires == nil {
		cfg.Requires = func(sqlstore.Op) *sqlstore.Requirement { return nil }
	}
	if cfg.Generation == nil {
		cfg.Generation = metav1.Object.GetGeneration
	}
	if cfg.Contents == nil {
		cfg.Contents = func(string) *sqlstore.Resource { return nil }
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.BookmarkInterval == 0 {
		cfg.BookmarkInterval = DefaultBookmarkInterval
	}
	if cfg.FutureTimeout == 0 {
		cfg.FutureTimeout = defaultFutureTimeout
	}
	s := &Store{cfg: cfg}
	s.records = &records{
		keys:          keys{cfg.GroupResource, cfg.Owner, strings.TrimRight(cfg.ResourcePrefix, "/") + "/"},
		store:         cfg.Store,
		feed:          cfg.Feed,
		futureTimeout: cfg.FutureTimeout,
	}
	s.serializer = &encoding.Serializer{
		Check:       s.checkReplaced,
		Codec:       cfg.Codec,
		Plain:       cfg.Plain,
		Encoding:    cfg.Encoding,
		Lossy:       cfg.Lossy,
		DecodedAge:  cfg.DecodedAge,
		NewFunc:     cfg.NewFunc,
		Transformer: encoding.NewTransformer(cfg.Transformer),
		Path:        s.records.pathOf,
		Cache:       cfg.Feed.Representations(),
	}
	s.selector = &selector{serializer: s.serializer, prepare: cfg.DecodeAhead, view: cfg.View, attrs: cfg.AttrFunc}
	for _, field := range cfg.IndexFields {
		s.selector.indexes = append(s.selector.indexes, s.selector.newIndex(field))
	}
	s.lister = &lister{s.records, s.selector, cfg.Uncached}
	return s, nil
}

// checkReplaced fails with errReplaced if Config.IsReplaced. It waits for the revision, and asks the database for nothing
// that the Feed has.
func (s *Store) checkReplaced(ctx context.Context, revision int64) error {
	if s.cfg.IsReplaced == nil {
		return nil
	}
	if err := s.records.waitFor(ctx, revision); err != nil {
		return err
	}
	replaced, err := s.cfg.IsReplaced(ctx, revision)
	if replaced {
		return errReplaced
	}
	return s.records.apiError(err, s.records.prefix)
}

// Stored is the Format of the stored objects: JSON in the storage version.
func (s *Store) Stored() *encoding.Format { return s.serializer.Stored() }

// StorageVersion is the group and version of the objects in the Format Stored.
func (s *Store) StorageVersion() schema.GroupVersion { return s.cfg.StorageVersion }

// Message is Config.Message.
func (s *Store) Message() func() *transcode.Message { return s.cfg.Message }

// GroupResource is the resource whose objects the Store keeps.
func (s *Store) GroupResource() schema.GroupResource { return s.cfg.GroupResource }

// Resource identifies the resource to the feed.
func (s *Store) Resource() sqlstore.Resource { return s.records.resource() }

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return versioner }

// ReadinessCheck implements storage.Interface. A Store is ready as soon as it is made,
// because a read loads what it needs.
func (s *Store) ReadinessCheck() error { return nil }
