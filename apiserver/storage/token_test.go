package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
)

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
				if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) || status.Status().Message != inconsistentContinue {
					t.Fatalf("changed %v: %s page's token after the end: %v", changed, name, err)
				}
				rest, names, err := page(status.Status().Continue)
				want := map[string]string{"first": "[c d]", "second": "[e f]"}[name]
				if err != nil || fmt.Sprint(names) != want || rest.ResourceVersion != fmt.Sprint(f.feed.Revision()) {
					t.Errorf("changed %v: from the %s page on, inconsistently: %v, %v", changed, name, names, err)
				}
				if rest.Continue != "" { // another list, with a time of its own
					driver.by.Add(int64(tokenLifetime - 10*time.Second))
					if _, names, err = page(rest.Continue); err != nil || names[0] != map[string]string{"first": "e", "second": "g"}[name] {
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
