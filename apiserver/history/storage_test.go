package history

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// chronicle is a Storage over a model with random changes, and a list of all of them that is kept beside it.
type chronicle struct {
	*testing.T
	driver  *countingDriver
	storage *Storage
	random  *rand.Rand
	all     []made
}

// made is a change that was made.
type made struct {
	sqlstore.Key
	revision int64
	time     time.Time
	author   sqlstore.Author
	replaces int64
}

func newLog(t *testing.T) *chronicle {
	t.Helper()
	l := &chronicle{T: t, driver: &countingDriver{Model: storetest.NewModel()}, random: rand.New(rand.NewPCG(1, 2))}
	b := &fixture{T: t, granted: map[[2]string]bool{{"admin", ""}: true}}
	l.storage = New(Config{
		Log:  &changes.Log{Driver: l.driver, Authorizer: b, Prefix: func(of sqlstore.Resource) string { return of.Resource }},
		Feed: watch.New(l.driver, watch.Options{}),
	})
	return l
}

func pick[T any](l *chronicle, of ...T) T { return of[l.random.IntN(len(of))] }

// write makes a random change. Changes may have one time.
func (l *chronicle) write() {
	l.Helper()
	key := sqlstore.Key{Namespace: pick(l, "shop", "bank", "", "default"), Group: pick(l, "", "apps"),
		Resource: pick(l, "a", "b"), Name: pick(l, "x", "y")}
	author := sqlstore.Author{User: pick(l, "alice", "bob"), Verb: pick(l, "patch", "apply"),
		Subresource: pick(l, "", "", "status", "scale")}
	w := sqlstore.Write{Op: sqlstore.Create, Key: key, UID: "u", Author: author, Value: []byte(`{"kind":"Thing"}`)}
	old, _, err := l.driver.Get(l.Context(), key)
	if err == nil {
		w.Op, w.Replaces = pick(l, sqlstore.Update, sqlstore.Delete), old.Revision
	}
	outcomes, err := l.driver.Commit(l.Context(), []sqlstore.Write{w})
	if err != nil || outcomes[0].Err != nil {
		l.Fatal(err, outcomes)
	}
	l.all = append(l.all, made{key, outcomes[0].Revision, outcomes[0].Time, author, w.Replaces})
}

// listing is a random list, with what it selects.
type listing struct {
	namespace string
	selector  string
	selects   func(made) bool
	newest    bool
}

func (l *chronicle) listing() listing {
	r := listing{namespace: pick(l, "", "shop", "default")}
	var terms []string
	tests := []func(made) bool{func(m made) bool {
		return r.namespace == "" || m.Namespace == r.namespace || m.Namespace == "" && r.namespace == metav1.NamespaceDefault
	}}
	withStatus := false
	for _, field := range []struct {
		name string
		of   func(made) string
	}{
		{"object.group", func(m made) string {
			return m.Group
		}}, {"object.resource", func(m made) string { return m.Resource }},
		{"object.name", func(m made) string { return m.Name }}, {"who", func(m made) string { return m.author.User }},
		{"verb", func(m made) string {
			return m.author.Verb
		}}, {"subresource", func(m made) string { return m.author.Subresource }},
		{"metadata.namespace", func(m made) string { return cmp.Or(m.Namespace, "default") }},
		{"metadata.name", func(m made) string { return strconv.FormatInt(m.revision, 10) }},
	} {
		if l.random.IntN(4) > 0 {
			continue
		}
		value, is := field.of(pick(l, l.all...)), l.random.IntN(3) > 0
		terms = append(terms, field.name+map[bool]string{true: "=", false: "!="}[is]+value)
		withStatus = withStatus || field.name == "subresource"
		tests = append(tests, func(m made) bool { return (field.of(m) == value) == is })
	}
	for _, bound := range []string{"since", "until"} {
		if l.random.IntN(4) > 0 {
			continue
		}
		at := pick(l, l.all...)
		last, value := at.revision, strconv.FormatInt(at.revision, 10)
		if l.random.IntN(2) == 0 { // the last change that was not made after its time
			value = at.time.Format(time.RFC3339Nano)
			for _, m := range l.all {
				if !m.time.After(at.time) {
					last = m.revision
				}
			}
		}
		terms = append(terms, bound+"="+value)
		tests = append(tests, func(m made) bool { return (m.revision > last) == (bound == "since") })
	}
	if r.newest = l.random.IntN(3) == 0; r.newest {
		terms = append(terms, "order=newest")
	}
	r.selector = strings.Join(terms, ",")
	r.selects = func(m made) bool {
		return (withStatus || m.author.Subresource != "status") &&
			!slices.ContainsFunc(tests, func(test func(made) bool) bool {
				return !test(m)
			})
	}
	return r
}

// page lists one page, which may be the first.
func (l *chronicle) page(r listing, limit int64, token string) (*ChangeList, error) {
	l.Helper()
	selector, err := fields.ParseSelector(r.selector)
	if err != nil {
		l.Fatal(err)
	}
	list, err := l.storage.List(as(l.Context(), "admin", r.namespace),
		&internalversion.ListOptions{FieldSelector: selector, Limit: limit, Continue: token})
	if err != nil {
		return nil, err
	}
	return list.(*ChangeList), nil
}

func describeAll[T any](items []T, revision func(T) int64) string {
	var all []string
	for _, item := range items {
		all = append(all, strconv.FormatInt(revision(item), 10))
	}
	return strings.Join(all, " ")
}

// The pages of a list together are exactly what its selectors select of the changes that there were at its first page:
// in order, each once, whatever the pages' size, and whatever is written between them. Whether changes are deleted
// meanwhile, the pages are whole or say that they are not.
func TestList_PagesAreWholeOrSaySo(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	var now time.Time
	clock := func() time.Time { return now }
	pages, expired, complete := 0, 0, 0
	for i := range 4000 {
		if i%40 == 0 { // another database
			l.driver.Model, l.all = storetest.NewModel(), nil
			now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
			l.driver.Clock = clock
			for range 30 {
				now = now.Add(time.Duration(l.random.IntN(2)) * time.Second)
				l.write()
			}
		}
		r := l.listing()
		var want []made
		for _, m := range l.all {
			if r.selects(m) {
				want = append(want, m)
			}
		}
		if r.newest {
			slices.Reverse(want)
		}
		writes, deletes := l.random.IntN(4) == 0, l.random.IntN(8) == 0
		var got []Change
		var err error
		for token, limit := "", int64(l.random.IntN(5)); ; {
			var list *ChangeList
			if list, err = l.page(r, limit, token); err != nil {
				break
			}
			pages++
			got = append(got, list.Items...)
			if limit > 0 && int64(len(list.Items)) > limit {
				t.Errorf("a page of %d has %d", limit, len(list.Items))
			}
			if token = list.Continue; token == "" {
				break
			}
			if writes {
				now = now.Add(time.Second)
				l.write()
			}
			if deletes && l.random.IntN(2) == 0 {
				of := pick(l, l.all...).Key.Of()
				// a model does not fail
				_, _, _ = l.driver.DeleteHistory(t.Context(),
					sqlstore.Deletion{Of: of, UpTo: l.random.Int64N(l.all[len(l.all)-1].revision), Limit: 1 << 20})
			}
		}
		found := describeAll(got, func(c Change) int64 { return c.Revision })
		wanted := describeAll(want, func(m made) int64 { return m.revision })
		switch {
		case apierrors.IsResourceExpired(err):
			expired++
			continue
		case err != nil:
			t.Errorf("%q in %q: %v", r.selector, r.namespace, err)
		case found == wanted:
			complete++
		case !l.isLeft(r, found, want):
			t.Errorf("%q in %q: %s, want %s", r.selector, r.namespace, found, wanted)
		}
		for _, item := range got {
			j, known := slices.BinarySearchFunc(l.all, item.Revision, func(m made, revision int64) int {
				return int(m.revision - revision)
			})
			if m := l.all[j]; !known || item.Who != m.author.User || item.Replaces != m.replaces || item.Object.Name != m.Name ||
				item.Namespace != cmp.Or(m.Namespace, "default") {
				t.Errorf("%+v is not %+v", item, m)
			}
		}
		if t.Failed() {
			t.Fatalf("case %d", i)
		}
	}
	if pages < 4000 || expired == 0 || complete < 1000 {
		t.Errorf("%d pages, %d lists were complete, %d have expired", pages, complete, expired)
	}
}

// isLeft reports whether a list without since lacks only what retention has deleted: it begins, or ends if the newest
// are first, with what is left.
func (l *chronicle) isLeft(r listing, found string, want []made) bool {
	if strings.Contains(r.selector, "since=") {
		return false
	}
	histories, err := l.driver.Histories(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	compacted := map[sqlstore.Resource]int64{}
	for _, h := range histories {
		compacted[h.Resource] = h.ResumableAfter
	}
	remaining := slices.DeleteFunc(slices.Clone(want), func(m made) bool { return m.revision <= compacted[m.Of()] })
	has := func(m made) bool { return slices.Contains(strings.Fields(found), strconv.FormatInt(m.revision, 10)) }
	return !slices.ContainsFunc(remaining, func(m made) bool { return !has(m) }) &&
		len(strings.Fields(found)) <= len(want) && !slices.ContainsFunc(strings.Fields(found), func(revision string) bool {
		return !slices.ContainsFunc(want, func(m made) bool { return strconv.FormatInt(m.revision, 10) == revision })
	})
}

// A moment that the history does not cover is 410, and never a shorter list, of exactly the resources that are
// selected.
func TestList_SinceIsCoveredOrExpired(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	outcomes := map[bool]int{}
	for i := range 500 {
		l.driver.Model, l.all = storetest.NewModel(), nil
		for range 10 {
			l.write()
		}
		of, upTo := pick(l, l.all...).Key.Of(), 1+l.random.Int64N(10)
		if _, _, err := l.driver.DeleteHistory(t.Context(),
			sqlstore.Deletion{Of: of, UpTo: upTo, Limit: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		since, resource, other := l.random.Int64N(11), "a", "b"
		if l.random.IntN(2) == 0 {
			resource, other = other, resource
		}
		term := pick(l, "="+resource, "!="+other)
		list, err := l.page(listing{selector: fmt.Sprintf("since=%d,object.resource%s,subresource!=none", since, term)}, 0,
			"")
		isLost := since < upTo && resource == of.Resource
		if outcomes[isLost]++; isLost != apierrors.IsResourceExpired(err) || !isLost && err != nil {
			t.Fatalf("case %d: since %d, object.resource%s, where that of %v is deleted up to %d: %v", i, since, term, of, upTo,
				err)
		}
		if err != nil {
			continue
		}
		want := 0
		for _, m := range l.all {
			if m.revision > since && m.Resource == resource {
				want++
			}
		}
		if len(list.Items) != want {
			t.Fatalf("case %d: %d changes, want %d", i, len(list.Items), want)
		}
	}
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Error(outcomes)
	}
}

// A token that this server has not made, or has made of another state of its database, is refused and breaks nothing.
func TestList_RefusesOtherTokens(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	for range 20 {
		l.write()
	}
	first, err := l.page(listing{selector: "subresource!=none"}, 3, "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		token := []byte(first.Continue)
		token[l.random.IntN(len(token))] = pick(l, []byte("aA0_-=.")...)
		// One of another page of the list is served.
		if _, err := l.page(listing{selector: "subresource!=none"}, 3, string(token)); err != nil &&
			!apierrors.IsBadRequest(err) && !apierrors.IsResourceExpired(err) {
			t.Fatalf("the token %s: %v", token, err)
		}
	}
	l.driver.restored.Store(true)
	if _, err := l.page(listing{selector: "subresource!=none"}, 3, first.Continue); !apierrors.IsResourceExpired(err) {
		t.Errorf("after a restore: %v", err)
	}
}

// A selector that can't be answered is refused.
func TestList_RefusesSelectors(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.write()
	for selector, want := range map[string]string{
		"since!=1": "takes = only", "until!=1": "takes = only", "order!=newest": "takes =newest only",
		"order=oldest": "takes =newest only",
		"since=noon":   "neither a revision nor a time", "until=-1": "neither a revision nor a time",
	} {
		if _, err := l.page(listing{selector: selector}, 0, ""); !apierrors.IsBadRequest(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", selector, err, want)
		}
	}
}

// BenchmarkItem makes the item of an update of a Deployment, of which a list or a watch has one.
func BenchmarkItem(b *testing.B) {
	s := &Storage{config: Config{Log: &changes.Log{Prefix: func(of sqlstore.Resource) string { return of.Resource }}}}
	value := func(replicas int) []byte {
		container :=
			`{"name":"c%d","image":"registry.example.com/shop/web:1.2.3","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"ports":[{"containerPort":8080,"protocol":"TCP"}]}`
		return fmt.Appendf(nil,
			`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"1d2e","resourceVersion":"%d","generation":%d,"labels":{"app":"web"},"managedFields":[%s]},`+
				`"spec":{"replicas":%d,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[%s,%s]}}},"status":{"replicas":1}}`,
			replicas, replicas,
			strings.TrimSuffix(
				strings.Repeat(
					`{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c1\"}":{".":{},"f:image":{}}}}}}}},`, 4), ","),
			replicas, fmt.Sprintf(container, 1), fmt.Sprintf(container, 2))
	}
	key := sqlstore.Key{Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}
	c := sqlstore.Change{Op: sqlstore.Update, Old: &sqlstore.Record{Key: key, Value: value(1)},
		New: sqlstore.Record{Key: key, Value: value(2)}}
	for b.Loop() {
		if item, err := s.item(b.Context(), &c, false); err != nil || len(item.Changed) != 1 {
			b.Fatal(item)
		}
	}
}

// What a list shows of a change has no values of a Secret.
func TestList_MasksValuesOfSecrets(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	key := sqlstore.Key{Namespace: "shop", Resource: "secrets", Name: "x"}
	for i, value := range []string{"b2xk", "bmV3"} {
		w := sqlstore.Write{Op: sqlstore.Create, Key: key, UID: "u",
			Value: fmt.Appendf(nil, `{"kind":"Secret","data":{"password":%q}}`, value)}
		if i > 0 {
			w.Op, w.Replaces = sqlstore.Update, 1
		}
		if outcomes, err := l.driver.Commit(t.Context(), []sqlstore.Write{w}); err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes)
		}
	}
	list, err := l.page(listing{}, 10, "")
	if err != nil || len(list.Items) != 2 {
		t.Fatal(list, err)
	}
	want := []FieldChange{{"data.password", `"*** (before)"`, `"*** (after)"`}}
	if got := list.Items[1].Changed; !reflect.DeepEqual(got, want) {
		t.Errorf("the difference is %q", got)
	}
}

// A command shows the whole difference of two versions.
func TestCompare_LeavesOutOnlyWhatEveryWriteChanges(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*mostText)
	before := map[string]any{"metadata": map[string]any{"resourceVersion": "1", "generation": int64(1)},
		"data": map[string]any{}}
	data := map[string]any{"long": long}
	want := []FieldChange{{"data.long", "", `"` + long + `"`}}
	for i := range 2 * mostFields {
		key := fmt.Sprintf("z%02d", i)
		data[key] = ""
		want = append(want, FieldChange{"data." + key, "", `""`})
	}
	after := map[string]any{"metadata": map[string]any{"resourceVersion": "2", "generation": int64(2)}, "data": data}
	if got, err := Compare(before, after, changes.Type{}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the differences are %q", got)
	}
	if got, err := Compare(nil, map[string]any{"kind": "ConfigMap"}, changes.Type{}); !reflect.DeepEqual(got,
		[]FieldChange{{"kind", "", `"ConfigMap"`}}) || err != nil {
		t.Errorf("what was created differs in %q", got)
	}
	if got, err := Compare(after, after, changes.Type{}); got == nil || len(got) > 0 || err != nil {
		t.Errorf("an object differs from itself in %q", got)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
