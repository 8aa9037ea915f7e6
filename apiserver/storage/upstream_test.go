package storage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"byre/sqlstore"
)

// upstreamSuite is every test of k8s.io/apiserver/pkg/storage/testing but those of lists
// with objects that can't be read, whose transformer has errors that mean something else
// (TestList_NamesCorruptObjects has their cases). Where a test can be told whether there is a watch cache before the
// store, it is told no, though a current list is answered from memory:
//
//   - RunTestList would count requests to etcd. Its Store is Config.Uncached, so that a limit
//     counts at resourceVersion 0.
//   - RunTestConsistentList would expect that resourceVersion 0 shows an older
//     state than the latest; the feed has the latest before a writer is answered.
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
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.AllowUnsafeMalformedObjectDeletion, false)
		storagetesting.RunTestTransformationFailure(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"ListResourceVersionMatch": func(t *testing.T, b backend) {
		storagetesting.RunTestListResourceVersionMatch(t.Context(), t, prefixed{newFixture(t, b.undated(), withPrefix)})
	},
	"WatchError": func(t *testing.T, b backend) {
		storagetesting.RunTestWatchError(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"WatchErrorIsBlockingFurtherEvents": func(t *testing.T, b backend) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(t.Context(), t, prefixed{newFixture(t, b, withPrefix)})
	},
	"WatchWithUnsafeDelete": func(t *testing.T, b backend) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestWatchWithUnsafeDelete(t.Context(), t, corruptible{newFixture(t, b, withPrefix)},
			errors.New("bits flipped"))
	},
	"DeleteWithConflictAndMissingExpectedTransformOrDecodeError": func(t *testing.T, b backend) {
		f, setFailing := newFailing(t, b)
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(t.Context(), t, f, setFailing)
	},
	"DeleteExpectedTransformOrDecodeError": func(t *testing.T, b backend) {
		f, setFailing := newFailing(t, b)
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(t.Context(), t, f, setFailing)
	},
	"DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError": func(t *testing.T, b backend) {
		f, _ := newFailing(t, b)
		storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(t.Context(), t, f)
	},
	"List": func(t *testing.T, b backend) {
		f := newFixture(t, b.undated(), uncached)
		storagetesting.RunTestList(t.Context(), t, f, f.compactAndIncrease, false, nil)
	},
	"ConsistentList": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestConsistentList(t.Context(), t, f, f.increase, false, true, true)
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
		f := newFixture(t, b, uncached)
		storagetesting.RunTestListInconsistentContinuation(t.Context(), t, f, f.compact)
	},
	"CompactRevision": func(t *testing.T, b backend) {
		f := newFixture(t, b)
		storagetesting.RunTestCompactRevision(t.Context(), t, f, f.increase, f.compact)
	},
	"Stats": func(t *testing.T, b backend) {
		storagetesting.RunTestStats(t.Context(), t, newFixture(t, b), newFixture(t, b).codec,
			identity.NewEncryptCheckTransformer(), true)
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
	"CreateWithTTL":                           plainly(storagetesting.RunTestCreateWithTTL),
	"CreateWithKeyExist":                      plainly(storagetesting.RunTestCreateWithKeyExist),
	"Get":                                     plainly(storagetesting.RunTestGet),
	"UnconditionalDelete":                     plainly(storagetesting.RunTestUnconditionalDelete),
	"ConditionalDelete":                       plainly(storagetesting.RunTestConditionalDelete),
	"DeleteWithSuggestion":                    plainly(storagetesting.RunTestDeleteWithSuggestion),
	"DeleteWithSuggestionAndConflict":         plainly(storagetesting.RunTestDeleteWithSuggestionAndConflict),
	"DeleteWithConflict":                      plainly(storagetesting.RunTestDeleteWithConflict),
	"DeleteWithSuggestionOfDeletedObject":     plainly(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	"ValidateDeletionWithSuggestion":          plainly(storagetesting.RunTestValidateDeletionWithSuggestion),
	"ValidateDeletionWithOnlySuggestionValid": plainly(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	"PreconditionalDeleteWithSuggestion":      plainly(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	"PreconditionalDeleteWithOnlySuggestionPass": plainly(
		storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	"GetListRecursivePrefix":                    plainly(storagetesting.RunTestGetListRecursivePrefix),
	"GuaranteedUpdateWithTTL":                   plainly(storagetesting.RunTestGuaranteedUpdateWithTTL),
	"GuaranteedUpdateWithConflict":              plainly(storagetesting.RunTestGuaranteedUpdateWithConflict),
	"GuaranteedUpdateWithSuggestionAndConflict": plainly(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	"ListPaging":                                plainly(storagetesting.RunTestListPaging),
	"NamespaceScopedList":                       plainly(storagetesting.RunTestNamespaceScopedList),
	"KeySchema":                                 plainly(storagetesting.RunTestKeySchema),
	"Watch":                                     plainly(storagetesting.RunTestWatch),
	"DeleteTriggerWatch":                        plainly(storagetesting.RunTestDeleteTriggerWatch),
	"WatchFromNonZero":                          plainly(storagetesting.RunTestWatchFromNonZero),
	"DelayedWatchDelivery":                      plainly(storagetesting.RunTestDelayedWatchDelivery),
	"WatchContextCancel":                        plainly(storagetesting.RunTestWatchContextCancel),
	"WatcherTimeout":                            plainly(storagetesting.RunTestWatcherTimeout),
	"WatchDeleteEventObjectHaveLatestRV":        plainly(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
	"WatchInitializationSignal":                 plainly(storagetesting.RunTestWatchInitializationSignal),
	"ClusterScopedWatch":                        plainly(storagetesting.RunTestClusterScopedWatch),
	"NamespaceScopedWatch":                      plainly(storagetesting.RunTestNamespaceScopedWatch),
	"WatchBookmarksWithCorrectResourceVersion": plainly(
		storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	"SendInitialEventsBackwardCompatibility": plainly(storagetesting.RunSendInitialEventsBackwardCompatibility),
	"WatchSemantics":                         plainly(storagetesting.RunWatchSemantics),
	"WatchSemanticInitialEventsExtended":     plainly(storagetesting.RunWatchSemanticInitialEventsExtended),
	"WatchListMatchSingle":                   plainly(storagetesting.RunWatchListMatchSingle),
}

// undated returns the backend without a clock. Its continue tokens equal upstream's, which
// tests need that compare the tokens of two lists byte by byte.
func (b backend) undated() backend {
	open := b.open
	b.open = func(t testing.TB) sqlstore.Driver { return undated{open(t)} }
	return b
}

// undated is a driver that does not tell its clock.
type undated struct{ sqlstore.Driver }

func (u undated) State(ctx context.Context) (sqlstore.State, error) {
	state, err := u.Driver.State(ctx)
	state.Time = time.Time{}
	return state, err
}

func plainly(test func(context.Context, *testing.T, storage.Interface)) func(*testing.T, backend) {
	return func(t *testing.T, b backend) { test(t.Context(), t, newFixture(t, b)) }
}

// noCallsToCount stands for upstream's check of the number of calls to etcd: pages of
// current state need none.
func noCallsToCount(*testing.T, uint64, uint64) {}

// alone are the tests that do not run in parallel: those that set a feature gate, which is
// process-wide, and one whose object expires while its subtests wait for their turn.
var alone = map[string]bool{
	"Get":                   true,
	"TransformationFailure": true,
	"WatchWithUnsafeDelete": true,
	"DeleteWithConflictAndMissingExpectedTransformOrDecodeError":   true,
	"DeleteExpectedTransformOrDecodeError":                         true,
	"DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError": true,
	"WatchSemantics":                     true,
	"WatchSemanticInitialEventsExtended": true,
	"WatchListMatchSingle":               true,
}

func TestStore_PassesUpstreamsSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			for name, test := range upstreamSuite {
				t.Run(name, func(t *testing.T) {
					if !alone[name] {
						t.Parallel()
					}
					test(t, b)
				})
			}
		})
	}
}

// uncached makes a Store of a resource without a watch cache: the suite's tests that tell it whether there is one are
// told that there is none.
func uncached(cfg *Config) { cfg.Uncached = true }

// A limit at resourceVersion 0 counts where upstream has no watch cache, and otherwise not.
func TestList_LimitAtResourceVersionZero(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		adjust func(*Config)
		want   int
	}{"cached": {func(*Config) {}, 3}, "uncached": {uncached, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, backends()[0], test.adjust)
			for i := range 3 {
				f.create(t, "ns", fmt.Sprint(i), "x=1")
			}
			for _, match := range []metav1.ResourceVersionMatch{"", metav1.ResourceVersionMatchNotOlderThan} {
				items, list := f.listed(t, "/pods", all(func(o *storage.ListOptions) {
					o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Limit = "0", match, 2
				}))
				if len(items) != test.want || (list.Continue == "") != (test.want == 3) {
					t.Errorf("%q: %d items, continue %q", match, len(items), list.Continue)
				}
			}
		})
	}
}
