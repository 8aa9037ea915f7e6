package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/transcode"
	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. Store, Feed, GroupResource, ResourcePrefix, Codec and NewFunc
// are required.
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
	// IsReplaced reports whether what the Store decodes by was replaced, by this server or another, up to a revision that
	// the Feed has applied; nil means that it never is. What its successor has written can't be decoded by it without
	// loss.
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
	// NewFunc makes an empty object.
	NewFunc func() runtime.Object
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
func New(cfg Config) *Store {
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
	return s
}

// checkReplaced fails with errReplaced if Config.IsReplaced. It waits for the revision, and asks the database for
// nothing that the Feed has.
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

// keys are the keys of the objects of one resource.
type keys struct {
	groupResource schema.GroupResource
	owner         sqlstore.Owner
	// prefix is Config.ResourcePrefix with a slash at its end.
	prefix string
}

// resource identifies the resource to the feed.
func (k *keys) resource() sqlstore.Resource {
	return sqlstore.Resource{Group: k.groupResource.Group, Resource: k.groupResource.Resource, Owner: k.owner}
}

// pathOf is the path of a key of the resource.
func (k *keys) pathOf(key sqlstore.Key) string {
	return DefaultKeyPrefix + k.prefix + joinName(key.Namespace, key.Name)
}

// location says where one object is stored: its key in the store, and its path in etcd's
// form, which errors contain and with which encryption authenticates the value.
type location struct {
	sqlstore.Key
	path string
}

// locate parses a registry's key ("<prefix>/<namespace>/<name>", or without a
// namespace). It refuses keys that would leave the prefix, as upstream does.
func (k *keys) locate(key string) (location, error) {
	prepared, err := storage.PrepareKey(k.prefix, key, false)
	if err != nil {
		return location{}, err
	}
	namespace, name := splitName(prepared[len(k.prefix):])
	if namespace == "" && name != noName && strings.Contains(name, "/") {
		// This key would have the same path as another one, and encryption
		// authenticates values with the path.
		return location{}, fmt.Errorf("invalid key: %q has a name of two parts and no namespace", key)
	}
	return k.at(namespace, name), nil
}

func (k *keys) at(namespace, name string) location {
	key := sqlstore.Key{Group: k.groupResource.Group, Resource: k.groupResource.Resource, Owner: k.owner,
		Namespace: namespace, Name: name}
	return location{key, k.pathOf(key)}
}

// keyRange is the range of objects of a list or a watch.
type keyRange struct {
	// path is the prepared key. The path of a recursive range ends in a slash, and
	// continue tokens are relative to it.
	path      string
	recursive bool
	namespace string // empty: all
	name      string // empty: all, when recursive
}

func (k *keys) keyRange(key string, recursive bool) (keyRange, error) {
	prepared, err := storage.PrepareKey(k.prefix, key, recursive)
	if err != nil {
		return keyRange{}, err
	}
	r := keyRange{path: prepared, recursive: recursive}
	rest := prepared[len(k.prefix):]
	if recursive {
		// A path below a name matches no object, because a namespace contains no slash.
		r.namespace = strings.Trim(rest, "/")
	} else {
		r.namespace, r.name = splitName(rest)
	}
	return r, nil
}

// noName is stored in place of an empty name. The API has no objects without a name,
// but storage.Interface allows them and sqlstore does not.
const noName = "/"

func splitName(rest string) (namespace, name string) {
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		namespace, name = "", rest
	}
	if name == "" {
		name = noName
	}
	return namespace, name
}

func joinName(namespace, name string) string {
	if name == noName {
		name = ""
	}
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// records are the records of one resource, in the revision store and in the feed.
type records struct {
	keys
	store *sqlstore.Store
	feed  *watch.Feed
	// futureTimeout is Config.FutureTimeout.
	futureTimeout time.Duration
	// lostKeys has the prefixes of encrypted history that reportLost has logged.
	lostKeys sync.Map
}

// get, list and write are the requests to the revision store. Each
// is counted in kube-apiserver's metrics of requests to etcd, such as
// etcd_request_duration_seconds, because dashboards and alerts query these.

func (r *records) get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	start := time.Now()
	record, revision, err := r.store.Get(ctx, key)
	r.count("get", start, err)
	return record, revision, err
}

func (r *records) list(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	start := time.Now()
	listed, err := r.store.List(ctx, q, yield)
	r.count("list", start, err)
	return listed, err
}

func (r *records) write(ctx context.Context, w sqlstore.Write) (sqlstore.Change, error) {
	start := time.Now()
	change, err := r.store.Commit(ctx, w)
	r.count(string(w.Op), start, err)
	return change, err
}

// count counts a request, as an error where etcd would answer with one. etcd
// does not answer with an error for a missing key or a failed precondition.
func (r *records) count(operation string, start time.Time, err error) {
	for _, answer := range []error{sqlstore.ErrNotFound, sqlstore.ErrExists, sqlstore.ErrConflict, sqlstore.ErrRequired,
		sqlstore.ErrInUse} {
		if errors.Is(err, answer) {
			err = nil
		}
	}
	metrics.RecordEtcdRequest(operation, r.groupResource, err, start)
}

// entry reads one object that is at least as recent as resourceVersion demands. It
// returns nil if the object does not exist.
func (r *records) entry(ctx context.Context, at location, resourceVersion string) (*watch.Entry, error) {
	asked, err := parseVersion(resourceVersion)
	if err != nil {
		return nil, err
	}
	if !r.feed.IsLoaded(r.resource()) {
		return r.storedEntry(ctx, at, asked)
	}
	if resourceVersion == "" {
		if _, err := r.feed.Latest(ctx); err != nil {
			return nil, r.apiError(err, at.path)
		}
	} else if err := r.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	e, _, loaded := r.feed.Lookup(at.Key)
	if !loaded { // the feed has dropped the resource in the meantime
		return r.storedEntry(ctx, at, asked)
	}
	return e, nil
}

// storedEntry reads one object from the database. It serves resources that the feed has
// not loaded.
func (r *records) storedEntry(ctx context.Context, at location, asked int64) (*watch.Entry, error) {
	if err := r.waitFor(ctx, asked); err != nil {
		return nil, err
	}
	record, _, err := r.get(ctx, at.Key)
	missing := errors.Is(err, sqlstore.ErrNotFound)
	if err != nil && !missing {
		return nil, r.apiError(err, at.path)
	}
	if missing {
		return nil, nil
	}
	return watch.NewEntry(record), nil
}

// parseVersion parses a resourceVersion. One that is too large for a revision is the largest revision, which never
// exists.
func parseVersion(resourceVersion string) (int64, error) {
	asked, err := versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return int64(min(asked, math.MaxInt64)), nil
}

// waitFor waits, for at most Config.FutureTimeout, until the feed has applied a
// revision. The client may have learned the revision from another replica. If a new epoch begins
// meanwhile, the revision may be one of it, which that replica has seen first.
func (r *records) waitFor(ctx context.Context, revision int64) error {
	if revision <= 0 || r.feed.Revision() >= revision {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, r.futureTimeout)
	defer cancel()
	err := r.feed.WaitFor(short, revision)
	for errors.Is(err, watch.ErrCompacted) {
		err = r.feed.WaitFor(short, revision)
	}
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return r.tooLarge(revision)
	}
	return r.apiError(err, "")
}

// checkHistory fails with ErrCompacted if changes of the resource after a revision may be
// deleted. They may still be in this process's memory. The database decides, so that every
// replica gives the same answer. state is that of the database, which is asked for the
// resource's compacted revision only if another resource's is later than the revision.
func (r *records) checkHistory(ctx context.Context, revision int64, state sqlstore.State) error {
	if revision >= state.Compacted {
		return nil
	}
	compacted, err := r.store.Compacted(ctx, r.at("", "").Key.Of())
	if err == nil && revision < compacted {
		err = sqlstore.ErrCompacted
	}
	return err
}

// currentState reads the state of the database. While the database is not available, it
// returns the feed's state, with a zero Time.
func (r *records) currentState(ctx context.Context) sqlstore.State {
	state, err := r.feed.State(ctx)
	if err != nil {
		return sqlstore.State{Revision: r.feed.Revision(), Compacted: r.feed.Compacted()}
	}
	return state
}

// ensureFirstRevision calls EnsureFirstRevision for a reader that comes before the
// server has called it.
func (r *records) ensureFirstRevision(ctx context.Context) error {
	return r.apiError(EnsureFirstRevision(ctx, r.store, r.feed), r.prefix)
}

// isLostHistory reports whether err says that an entry can't be decrypted, and the entry is not
// the current state of its object. After a key was removed, the current objects are encrypted
// with another key, and the history still with the removed one. A reader of that history gets
// 410, as if it were compacted, and reads the current objects. A current object that can't be
// decrypted is an error of the server, as upstream's is.
func (r *records) isLostHistory(ctx context.Context, err error, e *watch.Entry) bool {
	var corrupt *encoding.CorruptError
	if !errors.As(err, &corrupt) || !corrupt.IsEncrypted || encoding.IsOfAbsentPlugin(corrupt.Err) {
		return false
	}
	current, _, getErr := r.store.Get(ctx, e.Key)
	if getErr == nil && current.Revision == e.Revision || getErr != nil && !errors.Is(getErr, sqlstore.ErrNotFound) {
		return false
	}
	r.reportLost(err, e)
	return true
}

// reportLost logs the key with which history is encrypted, once for each key.
func (r *records) reportLost(err error, e *watch.Entry) {
	encrypted, _ := encoding.UnwrapEncrypted(e.Value())
	key := string(encoding.ReadablePrefix(encrypted))
	if _, known := r.lostKeys.LoadOrStore(key, nil); !known {
		klog.ErrorS(err,
			"History is encrypted with a key that is not in the encryption configuration, so that watches and lists that need it end with 410: "+
				"put the key back until the history is compacted, or ignore this", "resource", r.groupResource, "key", key,
			"revision", e.Revision)
	}
}

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	e, path, err := s.entry(ctx, key, opts)
	if err != nil {
		if opts.IgnoreNotFound && storage.IsNotFound(err) {
			return runtime.SetZeroValue(out)
		}
		return err
	}
	return keyError(s.serializer.ReadInto(ctx, e, out), path)
}

// entry reads the entry of a key, and returns its path. It fails with NotFound if the object does not exist.
func (s *Store) entry(ctx context.Context, key string, opts storage.GetOptions) (*watch.Entry, string, error) {
	at, err := s.records.locate(key)
	if err != nil {
		return nil, "", err
	}
	e, err := s.records.entry(ctx, at, opts.ResourceVersion)
	if err == nil && e == nil {
		err = storage.NewKeyNotFoundError(at.path, 0)
	}
	return e, at.path, err
}

// Load loads the resource into memory, so that later reads at resourceVersion "0" are
// answered without a query.
func (s *Store) Load(ctx context.Context) error {
	if s.cfg.Feed.IsLoaded(s.records.resource()) {
		return nil
	}
	_, err := s.cfg.Feed.Snapshot(ctx, s.records.resource())
	return s.records.apiError(err, s.records.prefix)
}

// Prefix is what the keys of the Store's objects begin with, without a slash at its
// end.
func (s *Store) Prefix() string { return strings.TrimSuffix(s.records.prefix, "/") }

// GetEncoded is Get in a Format. It fails with NotFound if the object does not exist,
// even where opts.IgnoreNotFound is set.
func (s *Store) GetEncoded(
	ctx context.Context, key string, opts storage.GetOptions, f *encoding.Format,
) (encoding.Encoded, error) {
	e, path, err := s.entry(ctx, key, opts)
	if err != nil {
		return encoding.Encoded{}, err
	}
	represent := s.serializer.Represent
	if opts.ResourceVersion == "" {
		represent = s.serializer.RepresentCurrent
	}
	r, err := represent(ctx, e, f)
	if err != nil {
		return encoding.Encoded{}, keyError(err, path)
	}
	return s.serializer.Encoded(f, r, e, e.Revision), nil
}

// Decrypt returns the plain text of a Record's Value. transformer is the one of the
// object's resource, which may be nil, and path is the object's path in etcd's form.
func Decrypt(ctx context.Context, transformer value.Transformer, stored []byte, path string) ([]byte, error) {
	t := encoding.NewTransformer(transformer)
	data, _, err := t.Decrypt(ctx, stored, path)
	return data, err
}

// EnsureFirstRevision writes a first record to a store that has none, so that the
// store's revision is at least 1, as etcd's is. A list at revision 0 is not possible,
// because to clients the resourceVersion "0" means any. The caller runs the store and
// the feed.
//
// The record's key and value are stored data: every database has them, and they must
// not change.
func EnsureFirstRevision(ctx context.Context, store *sqlstore.Store, feed *watch.Feed) error {
	if revision, err := feed.Latest(ctx); err != nil || revision > 0 {
		return err
	}
	change, err := store.Commit(ctx, sqlstore.Write{
		Op:       sqlstore.Create,
		Key:      sqlstore.Key{Group: programName, Resource: "foundations", Owner: sqlstore.BuiltIn, Name: "store"},
		Encoding: "byre/1",
		Value:    []byte(`{"apiVersion":"byre/1","kind":"Foundation","metadata":{"name":"store"}}`),
		Author:   sqlstore.Author{User: programName, Verb: "create"},
	})
	if err != nil && !errors.Is(err, sqlstore.ErrExists) { // by another server that starts now
		return fmt.Errorf("first write: %w", err)
	}
	return feed.WaitFor(ctx, max(change.Revision, 1))
}

// Stats implements storage.Interface, from the feed's running counts.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	if _, err := s.cfg.Feed.Latest(ctx); err != nil {
		return storage.Stats{}, s.records.apiError(err, s.records.prefix)
	}
	usage, err := s.cfg.Feed.WaitForUsage(ctx, s.records.resource())
	if err != nil {
		return storage.Stats{}, s.records.apiError(err, s.records.prefix)
	}
	return StatsOf(usage), nil
}

// StatsOf converts counts to upstream's type.
func StatsOf(usage watch.Usage) storage.Stats {
	stats := storage.Stats{ObjectCount: usage.Objects}
	if usage.Objects > 0 {
		// Upstream counts the newline that encoders end an object with.
		stats.EstimatedAverageObjectSizeBytes = usage.Bytes/usage.Objects + 1
	}
	return stats
}

// EnableResourceSizeEstimation implements storage.Interface. It does nothing, because
// the feed always knows the sizes.
func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// compactTimeout bounds CompactRevision, which has no context.
const compactTimeout = 2 * time.Second

// CompactRevision implements storage.Interface. It returns the compacted revision of
// the database, or, while the database does not answer, the last one that the feed has
// seen.
func (s *Store) CompactRevision() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), compactTimeout)
	defer cancel()
	state, err := s.cfg.Store.State(ctx)
	if err != nil {
		return s.cfg.Feed.Compacted()
	}
	return state.Compacted
}

// RequestWatchProgress implements storage.Interface. It does nothing, because every
// watch knows the feed's revision and needs no request for a bookmark.
func (s *Store) RequestWatchProgress(context.Context) error { return nil }
