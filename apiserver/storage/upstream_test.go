package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	apistorage "k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/sqlstore"
	"byre/watch"
)

// exampleScheme has upstream's example group, which its suite stores.
func exampleScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	return scheme
}

// fixture is a store with everything behind it running.
type fixture struct {
	*Store
	store *sqlstore.Store
	feed  *watch.Feed
	codec runtime.Codec
}

// testPrefix is what upstream's prefix transformer puts before values.
const testPrefix = "test!"

// podAttrs are the selectable fields that upstream's watch cache test has.
func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", obj)
	}
	return labels.Set(pod.Labels), fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

type backend struct {
	name       string
	open       func(testing.TB) sqlstore.Driver
	soleWriter bool
}

var backends = []backend{
	{"memory", func(testing.TB) sqlstore.Driver { return &memory{rows: map[sqlstore.Key]sqlstore.Record{}} }, true},
}

func newFixture(t testing.TB, b backend, change ...func(*Config)) *fixture {
	t.Helper()
	driver := b.open(t)
	feed := watch.New(driver, watch.Options{SoleWriter: b.soleWriter, Interval: 50 * time.Millisecond})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish, ExpireInterval: 100 * time.Millisecond})
	run(t, feed.Run)
	run(t, store.Run)

	codecs := serializer.NewCodecFactory(exampleScheme())
	cfg := Config{
		Store:            store,
		Feed:             feed,
		GroupResource:    schema.GroupResource{Resource: "pods"},
		ResourcePrefix:   "/pods/",
		Codec:            apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		StorageVersion:   examplev1.SchemeGroupVersion,
		Form:             "test/v1",
		NewFunc:          func() runtime.Object { return &example.Pod{} },
		NewListFunc:      func() runtime.Object { return &example.PodList{} },
		AttrFunc:         podAttrs,
		IndexField:       "spec.nodeName",
		BookmarkInterval: time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Store: s, store: store, feed: feed, codec: cfg.Codec}
	// etcd's first revision is 1, and upstream's tests count from there.
	if err := f.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs a service until the test ends.
func run(t testing.TB, service func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("service: %v", err)
		}
	})
}

// increase moves the revision by one, by a change that no test looks at.
func (f *fixture) increase(ctx context.Context, t *testing.T) int64 {
	c, err := f.store.Commit(ctx, sqlstore.Write{
		Op:    sqlstore.Create,
		Key:   sqlstore.Key{Resource: "increases", Name: fmt.Sprint(time.Now().UnixNano())},
		Value: []byte("{}"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.Revision
}

func (f *fixture) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	revision, err := f.parseVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.store.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
}

// compactAndIncrease is compaction as etcd's is done: it writes a key.
func (f *fixture) compactAndIncrease(ctx context.Context, t *testing.T, resourceVersion string) {
	f.compact(ctx, t, resourceVersion)
	f.increase(ctx, t)
}

// stored checks what upstream's etcd test checks of a stored value.
func (f *fixture) stored(ctx context.Context, t *testing.T, key string) {
	at, err := f.object(key)
	if err != nil {
		t.Fatal(err)
	}
	record, _, err := f.store.Get(ctx, at.Key)
	if err != nil {
		t.Fatalf("no value under %q: %v", key, err)
	}
	data, _, err := f.open(ctx, &record)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(f.codec, data)
	if err != nil {
		t.Fatalf("can't decode %s: %v", data, err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("stored with resourceVersion %q, selfLink %q", pod.ResourceVersion, pod.SelfLink)
	}
}

// swap changes the transformer under a running store, which only tests do, and
// forgets what was read through the old one.
func (f *fixture) swap(transformer value.Transformer) {
	f.sealer.transformer = transformer
	f.forget()
}

func (f *fixture) forget() {
	snapshot, err := f.feed.Snapshot(context.Background(), "", "pods")
	if err != nil {
		return
	}
	for e := range snapshot.All("", nil) {
		e.SetMemo(f.newMemo())
	}
}

func withPrefix(cfg *Config) {
	cfg.Transformer = storagetesting.NewPrefixTransformer([]byte(testPrefix), false)
}

type prefixed struct{ *fixture }

func (p prefixed) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	before := p.sealer.transformer.(*storagetesting.PrefixTransformer)
	changed := *before
	p.swap(modify(&changed))
	return func() { p.swap(before) }
}

type corruptible struct{ *fixture }

type corruptTransformer struct{ value.Transformer }

func (corruptTransformer) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, fmt.Errorf("bits flipped")
}

func (c corruptible) CorruptTransformer() func() {
	before := c.sealer.transformer
	c.swap(corruptTransformer{before})
	return func() { c.swap(before) }
}

// upstreamSuite is every test of k8s.io/apiserver/pkg/storage/testing.
var upstreamSuite = map[string]func(*testing.T, backend){
	"Create": func(t *testing.T, b backend) {
		f := newFixture(t, b, withPrefix)
		storagetesting.RunTestCreate(t.Context(), t, f, f.stored)
	},
	"GuaranteedUpdate": func(t *testing.T, b backend) {
		f := newFixture(t, b, withPrefix)
		storagetesting.RunTestGuaranteedUpdate(t.Context(), t, prefixed{f}, f.stored)
	},
	"GuaranteedUpdateChecksStoredData": func(t *testing.T, b backend) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"TransformationFailure": func(t *testing.T, b backend) {
		storagetesting.RunTestTransformationFailure(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"ListResourceVersionMatch": func(t *testing.T, b backend) {
		storagetesting.RunTestListResourceVersionMatch(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"WatchError": func(t *testing.T, b backend) {
		storagetesting.RunTestWatchError(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"WatchErrorIsBlockingFurtherEvents": func(t *testing.T, b backend) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"WatchWithUnsafeDelete": func(t *testing.T, b backend) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestWatchWithUnsafeDelete(t.Context(), t, corruptible{newFixture(t, b, withPrefix)})
	},
	"List": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestList(t.Context(), t, f, f.compactAndIncrease, false, nil)
	},
	"ConsistentList": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestConsistentList(t.Context(), t, f, f.increase, !b.soleWriter, true, true)
	},
	"GetListNonRecursive": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestGetListNonRecursive(t.Context(), t, f.increase, f)
	},
	"ListContinuation": func(t *testing.T, b backend) {
		storagetesting.RunTestListContinuation(t.Context(), t, newFixture(t, b), noCallsToCount)
	},
	"ListPaginationRareObject": func(t *testing.T, b backend) {
		storagetesting.RunTestListPaginationRareObject(t.Context(), t, newFixture(t, b), noCallsToCount)
	},
	"ListContinuationWithFilter": func(t *testing.T, b backend) {
		storagetesting.RunTestListContinuationWithFilter(t.Context(), t, newFixture(t, b), noCallsToCount)
	},
	"ListInconsistentContinuation": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestListInconsistentContinuation(t.Context(), t, f, f.compact)
	},
	"CompactRevision": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestCompactRevision(t.Context(), t, f, f.increase, f.compact)
	},
	"Stats": func(t *testing.T, b backend) {
		storagetesting.RunTestStats(t.Context(), t, newFixture(t, b), newFixture(t, b).codec, identity.NewEncryptCheckTransformer(), false)
	},
	"StatsWithSizes": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		if err := f.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		storagetesting.RunTestStats(t.Context(), t, f, f.codec, identity.NewEncryptCheckTransformer(), true)
	},
	"WatchFromZero": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestWatchFromZero(t.Context(), t, f, f.compact)
	},
	"ProgressNotify": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunOptionalTestProgressNotify(t.Context(), t, f, f.increase)
	},
	"WatchDispatchBookmarkEvents": func(t *testing.T, b backend) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(t.Context(), t, newFixture(t, b), true)
	},
	"CreateWithTTL":                              plainly(storagetesting.RunTestCreateWithTTL),
	"CreateWithKeyExist":                         plainly(storagetesting.RunTestCreateWithKeyExist),
	"Get":                                        plainly(storagetesting.RunTestGet),
	"UnconditionalDelete":                        plainly(storagetesting.RunTestUnconditionalDelete),
	"ConditionalDelete":                          plainly(storagetesting.RunTestConditionalDelete),
	"DeleteWithSuggestion":                       plainly(storagetesting.RunTestDeleteWithSuggestion),
	"DeleteWithSuggestionAndConflict":            plainly(storagetesting.RunTestDeleteWithSuggestionAndConflict),
	"DeleteWithConflict":                         plainly(storagetesting.RunTestDeleteWithConflict),
	"DeleteWithSuggestionOfDeletedObject":        plainly(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	"ValidateDeletionWithSuggestion":             plainly(storagetesting.RunTestValidateDeletionWithSuggestion),
	"ValidateDeletionWithOnlySuggestionValid":    plainly(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	"PreconditionalDeleteWithSuggestion":         plainly(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	"PreconditionalDeleteWithOnlySuggestionPass": plainly(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	"GetListRecursivePrefix":                     plainly(storagetesting.RunTestGetListRecursivePrefix),
	"GuaranteedUpdateWithTTL":                    plainly(storagetesting.RunTestGuaranteedUpdateWithTTL),
	"GuaranteedUpdateWithConflict":               plainly(storagetesting.RunTestGuaranteedUpdateWithConflict),
	"GuaranteedUpdateWithSuggestionAndConflict":  plainly(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	"ListPaging":                                 plainly(storagetesting.RunTestListPaging),
	"NamespaceScopedList":                        plainly(storagetesting.RunTestNamespaceScopedList),
	"KeySchema":                                  plainly(storagetesting.RunTestKeySchema),
	"Watch":                                      plainly(storagetesting.RunTestWatch),
	"DeleteTriggerWatch":                         plainly(storagetesting.RunTestDeleteTriggerWatch),
	"WatchFromNonZero":                           plainly(storagetesting.RunTestWatchFromNonZero),
	"DelayedWatchDelivery":                       plainly(storagetesting.RunTestDelayedWatchDelivery),
	"WatchContextCancel":                         plainly(storagetesting.RunTestWatchContextCancel),
	"WatcherTimeout":                             plainly(storagetesting.RunTestWatcherTimeout),
	"WatchDeleteEventObjectHaveLatestRV":         plainly(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
	"WatchInitializationSignal":                  plainly(storagetesting.RunTestWatchInitializationSignal),
	"ClusterScopedWatch":                         plainly(storagetesting.RunTestClusterScopedWatch),
	"NamespaceScopedWatch":                       plainly(storagetesting.RunTestNamespaceScopedWatch),
	"WatchBookmarksWithCorrectResourceVersion":   plainly(storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	"SendInitialEventsBackwardCompatibility":     plainly(storagetesting.RunSendInitialEventsBackwardCompatibility),
	"WatchSemantics":                             plainly(storagetesting.RunWatchSemantics),
	"WatchSemanticInitialEventsExtended":         plainly(storagetesting.RunWatchSemanticInitialEventsExtended),
	"WatchListMatchSingle":                       plainly(storagetesting.RunWatchListMatchSingle),
}

func plainly(test func(context.Context, *testing.T, apistorage.Interface)) func(*testing.T, backend) {
	return func(t *testing.T, b backend) { test(t.Context(), t, newFixture(t, b)) }
}

// noCallsToCount: upstream counts etcd's round trips here; pages of current
// state need none.
func noCallsToCount(*testing.T, uint64, uint64) {}

func TestUpstream(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			for name, test := range upstreamSuite {
				t.Run(name, func(t *testing.T) { test(t, b) })
			}
		})
	}
}
