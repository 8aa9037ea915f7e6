package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
)

// listing is a driver that counts its lists, and those among them that count records.
type listing struct {
	sqlstore.Driver
	lists, counts atomic.Int64
}

func (l *listing) List(
	ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	l.lists.Add(1)
	if q.Count {
		l.counts.Add(1)
	}
	return l.Driver.List(ctx, q, yield)
}

func newListingFixture(t *testing.T, b backend) (*fixture, *listing) {
	driver := &listing{}
	f := newFixture(t, backend{b.name, func(t testing.TB) sqlstore.Driver {
		driver.Driver = b.open(t)
		return driver
	}, b.soleWriter})
	return f, driver
}

// paged reads a list in pages of three, calls change after each page, and returns what the
// pages show: their revision, their names, and how many objects each says remain.
func (f *fixture) paged(
	t *testing.T, key string, change func(page int), options ...func(*storage.ListOptions),
) (revision string, names []string, remaining []int64) {
	t.Helper()
	token := ""
	for page := 1; ; page++ {
		items, list := f.listed(t, key, all(append(options, func(o *storage.ListOptions) {
			o.Predicate.Limit, o.Predicate.Continue = 3, token
		})...))
		for _, item := range items {
			names = append(names, nameIn(item))
		}
		if revision == "" {
			revision = list.ResourceVersion
		}
		if list.ResourceVersion != revision {
			t.Fatalf("page %d is of revision %s, the first of %s", page, list.ResourceVersion, revision)
		}
		if list.RemainingItemCount != nil {
			remaining = append(remaining, *list.RemainingItemCount)
		}
		if token = list.Continue; token == "" {
			return revision, names, remaining
		}
		change(page)
	}
}

func nameIn(item string) string {
	_, rest, _ := strings.Cut(item, `"name":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// The pages of a list show the objects of its first page's revision, and say how many remain,
// although the objects change in between. The first page's snapshot answers the later pages;
// without it the database does. Objects are counted at most once a list.
func TestPages_ShowOneRevisionWhileTheResourceChanges(t *testing.T) {
	t.Parallel()
	lists := map[string]struct {
		key, want string
		remaining string
		option    func(*storage.ListOptions)
	}{
		"resource":  {"/pods", "[p0 p2 p4 p6 p8 p1 p3 p5 p7 p9]", "[7 4 1]", func(*storage.ListOptions) {}},
		"namespace": {"/pods/b", "[p1 p3 p5 p7 p9]", "[2]", func(*storage.ListOptions) {}},
		"label":     {"/pods", "[p0 p6 p3 p9]", "[]", labelled("third=yes")},
		"field": {"/pods", "[p0 p2 p4 p6 p8 p1 p3 p5 p7 p9]", "[]", func(o *storage.ListOptions) {
			o.Predicate.Field = fields.OneTermEqualSelector("spec.nodeName", "")
			o.Predicate.GetAttrs = podAttrs
		}},
	}
	onEach(t, func(t *testing.T, b backend) {
		for name, list := range lists {
			for _, from := range []string{"memory", "database", "database alone"} {
				t.Run(name+" from the "+from, func(t *testing.T) {
					f, driver := newListingFixture(t, b)
					for i := range 10 {
						labels := ""
						if i%3 == 0 {
							labels = "third=yes"
						}
						f.create(t, string("ab"[i%2]), fmt.Sprint("p", i), labels)
					}
					pods := sqlstore.Resource{Resource: "pods"}
					if _, err := f.feed.WaitForUsage(t.Context(), pods); err != nil {
						t.Fatal(err)
					}
					if from != "database alone" {
						f.listed(t, "/pods", all())
					}
					driver.lists.Store(0)
					first := int64(0)
					_, names, remaining := f.paged(t, list.key, func(page int) {
						if page == 1 {
							first = driver.lists.Load()
						}
						switch from {
						case "memory":
							if n := driver.lists.Load(); n != 0 {
								t.Errorf("the database is listed %d times up to page %d", n, page)
							}
						case "database":
							f.feed.Forget(pods) // as after a restart, and on another replica
						}
						f.label(t, "b", "p7", "third", fmt.Sprint("yes", page))
						f.create(t, "b", fmt.Sprint("p5", page), "third=yes")
						if page == 1 {
							f.delete(t, "b", "p9")
						}
					}, list.option)
					if fmt.Sprint(names) != list.want || fmt.Sprint(remaining) != list.remaining {
						t.Errorf("pages show %v and remaining %v, want %s and %s", names, remaining, list.want, list.remaining)
					}
					last := driver.lists.Load()
					switch from {
					case "memory":
						if last != 0 {
							t.Errorf("the database is listed %d times", last)
						}
					default:
						if last == first {
							t.Error("the later pages do not come from the database")
						}
					}
					want := int64(0)
					if name == "namespace" && from == "database alone" {
						want = 1
					}
					if n := driver.counts.Load(); n != want {
						t.Errorf("the database counts %d times, want %d", n, want)
					}
				})
			}
		}
	})
}

// A page of memory does not go on through the whole resource to count what remains.
func TestPages_CountOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	for i := range 10 {
		f.create(t, "a", fmt.Sprint("p", i), "")
	}
	f.listed(t, "/pods", all()) // loads the resource
	_, list := f.listed(t, "/pods/a", all(func(o *storage.ListOptions) { o.Predicate.Limit = 2 }))
	issued, left := tokenMembers(list.Continue)
	if left != 8 {
		t.Fatalf("the token says that %d objects remain", left)
	}
	// The token is believed, and not counted again.
	token, err := extendToken(list.Continue, issued, 100)
	if err != nil {
		t.Fatal(err)
	}
	_, second := f.listed(t, "/pods/a", all(func(o *storage.ListOptions) {
		o.Predicate.Limit, o.Predicate.Continue = 2, token
	}))
	if n := second.RemainingItemCount; n == nil || *n != 98 {
		t.Errorf("the second page says that %v remain", n)
	}
	// Upstream's server reads our token, and this one reads upstream's, which has no number.
	key, revision, err := storage.DecodeContinue(token, "/pods/a/")
	if err != nil {
		t.Fatal(err)
	}
	bare, err := storage.EncodeContinue(key, "/pods/a/", revision)
	if err != nil {
		t.Fatal(err)
	}
	items, second := f.listed(t, "/pods/a", all(func(o *storage.ListOptions) {
		o.Predicate.Limit, o.Predicate.Continue = 2, bare
	}))
	if n := second.RemainingItemCount; n == nil || *n != 6 ||
		!slices.Equal([]string{nameIn(items[0]), nameIn(items[1])}, []string{"p2", "p3"}) {
		t.Errorf("by upstream's token the second page has %v and says that %v remain", items, n)
	}
}

// later is a driver with a clock that the test can set forward.
type later struct {
	sqlstore.Driver
	by atomic.Int64
}

func (l *later) State(ctx context.Context) (sqlstore.State, error) {
	state, err := l.Driver.State(ctx)
	state.Time = state.Time.Add(time.Duration(l.by.Load()))
	return state, err
}

func podName(item encoding.Encoded) string {
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(item.AppendJSON(nil, true), &o); err != nil {
		return err.Error()
	}
	return o.Name
}

// A paged list can be continued at its revision for five minutes, counted from its first
// page, whether or not objects change in between. After that the answer is 410 with a token
// that continues at the latest revision. History lasts longer: the same revision can still
// be listed, and watches can start from it.
func TestContinue_Expires(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		driver := &later{}
		f := newFixture(t, backend{b.name, func(t testing.TB) sqlstore.Driver {
			driver.Driver = b.open(t)
			return driver
		}, b.soleWriter})
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			f.create(t, "ns", name, "")
		}
		page := func(token string, change ...func(*storage.ListOptions)) (*EncodedList, []string, error) {
			list, err := f.ListEncoded(t.Context(), "/pods", all(append(change, func(o *storage.ListOptions) {
				o.Predicate.Limit, o.Predicate.Continue = 2, token
			})...), f.Stored())
			if err != nil {
				return nil, nil, err
			}
			var names []string
			for item, err := range list.Items {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, podName(item))
			}
			return list, names, nil
		}
		exactly := func(rv string) func(*storage.ListOptions) {
			return func(o *storage.ListOptions) {
				o.ResourceVersion, o.ResourceVersionMatch = rv, metav1.ResourceVersionMatchExact
			}
		}
		first, _, err := page("")
		if err != nil {
			t.Fatal(err)
		}
		for _, changed := range []bool{false, true} {
			if changed {
				f.label(t, "ns", "f", "x", "1")
				f.create(t, "ns", "g", "")
			}
			driver.by.Store(0)
			first, _, err := page("", exactly(first.ResourceVersion))
			if err != nil {
				t.Fatal(err)
			}
			driver.by.Store(int64(tokenLifetime - 10*time.Second))
			second, names, err := page(first.Continue)
			if err != nil || fmt.Sprint(names) != "[c d]" || second.ResourceVersion != first.ResourceVersion {
				t.Fatalf("changed %v: before the end: %v, %v", changed, names, err)
			}
			driver.by.Store(int64(tokenLifetime + 10*time.Second))
			for name, token := range map[string]string{"first": first.Continue, "second": second.Continue} {
				_, _, err := page(token)
				var status apierrors.APIStatus
				if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) ||
					status.Status().Message != inconsistentContinue {
					t.Fatalf("changed %v: %s page's token after the end: %v", changed, name, err)
				}
				rest, names, err := page(status.Status().Continue)
				want := map[string]string{"first": "[c d]", "second": "[e f]"}[name]
				if err != nil || fmt.Sprint(names) != want || rest.ResourceVersion != fmt.Sprint(f.feed.Revision()) {
					t.Errorf("changed %v: from the %s page on, inconsistently: %v, %v", changed, name, names, err)
				}
				if rest.Continue != "" { // another list, with a time of its own
					driver.by.Add(int64(tokenLifetime - 10*time.Second))
					if _, names, err = page(rest.Continue); err != nil ||
						names[0] != map[string]string{"first": "e", "second": "g"}[name] {
						t.Errorf("changed %v: its next page: %v, %v", changed, names, err)
					}
					driver.by.Store(int64(tokenLifetime + 10*time.Second))
				}
			}
			if _, names, err := page("", exactly(first.ResourceVersion)); err != nil || len(names) != 2 {
				t.Errorf("changed %v: a list at the same revision: %v, %v", changed, names, err)
			}
			w := f.watch(t, all(func(o *storage.ListOptions) { o.ResourceVersion = first.ResourceVersion }))
			if changed {
				events(t, w, 2)
			}
		}
	})
}

// An expiry is a time of the database's clock, even if this process's clock is wrong.
func TestExpiry_FollowsTheDatabasesClock(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		if b.soleWriter {
			continue // the two clocks agree
		}
		driver := &later{}
		driver.by.Store(int64(time.Hour))
		f := newFixture(t, backend{b.name, func(t testing.TB) sqlstore.Driver {
			driver.Driver = b.open(t)
			return driver
		}, false})
		before := time.Now()
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
		if err := f.Create(t.Context(), "/pods/ns/a", pod, nil, 60); err != nil {
			t.Fatal(err)
		}
		record, _, err := f.store.Get(t.Context(), sqlstore.Key{Resource: "pods", Namespace: "ns", Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if left := record.Expires.Sub(before); left < time.Hour || left > time.Hour+5*time.Minute {
			t.Errorf("expires in %v, want an hour and a minute", left)
		}
	}
}
