package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/migrations"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestReplicas_ServeWhatIsEstablished runs two servers on one database: a definition that a
// client has seen established on one server is served by the other at once, and so is its
// deletion.
func TestReplicas_ServeWhatIsEstablished(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, dbtest.Connect(t, dsn)), start(t, dbtest.Connect(t, dsn))
	for i := range 5 {
		plural := fmt.Sprintf("widgets%d", i)
		path := "/apis/example.com/v1/namespaces/default/" + plural
		text := strings.NewReplacer("widgets", plural, "singular: widget", fmt.Sprintf("singular: widget%d", i),
			"Widget", fmt.Sprintf("Widget%d", i), "[wd]", fmt.Sprintf("[wd%d]", i)).Replace(widgetDefinition)
		crd := a.define(t, text)
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget%d","metadata":{"name":"w"},"spec":{"size":3}}`, i)
		if w := b.do(t, http.MethodPost, path, body); w.Code != http.StatusCreated {
			t.Errorf("on the other server: %d %s", w.Code, w.Body)
		}
		definitions := b.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		a.await(t, crd.Name, gone)
		for _, s := range []*server{a, b} {
			storetest.Eventually(t, "the end of "+crd.Name, func() bool {
				return s.do(t, http.MethodGet, path, "").Code == http.StatusNotFound
			})
		}
	}
}

// lagging is a driver whose feed learns of no change while it is held, as that of a replica that
// was stopped or cut off for a moment. Its writes go on.
type lagging struct {
	sqlstore.Driver
	mu   sync.Mutex
	held chan struct{}
}

func (l *lagging) hold() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (l *lagging) wait(ctx context.Context) error {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held == nil {
		return nil
	}
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lagging) State(ctx context.Context) (sqlstore.State, error) {
	if err := l.wait(ctx); err != nil {
		return sqlstore.State{}, err
	}
	return l.Driver.State(ctx)
}

func (l *lagging) Changes(ctx context.Context, q sqlstore.ChangesQuery) ([]sqlstore.Change, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	return l.Driver.Changes(ctx, q)
}

// startReplicas runs two servers on one database. The feed of the second can be held.
func startReplicas(t *testing.T) (a, b *server, feed *lagging) {
	t.Helper()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	feed = &lagging{Driver: dbtest.Connect(t, dsn)}
	return start(t, dbtest.Connect(t, dsn)), start(t, feed), feed
}

// duringHold makes a request of a replica whose feed does not show what change does on the other
// one. It returns the answer, which the replica may give before or after its feed is released.
func duringHold(
	t *testing.T, b *server, feed *lagging, change func(), method, path string, body func() string, header ...string,
) *httptest.ResponseRecorder {
	t.Helper()
	release := feed.hold()
	defer release()
	change()
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- b.do(t, method, path, body(), header...) }()
	select {
	case w := <-answer:
		return w
	case <-time.After(stale):
	}
	release()
	return <-answer
}

func late() string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"late"},"spec":{"size":3}}`
}

// stale is for how long a replica's feed is held after the request began.
const stale = 200 * time.Millisecond

// remaining returns the keys of the rows of the widgets.
func (s *server) remaining(t *testing.T) (keys []string) {
	t.Helper()
	of := sqlstore.Range{Group: "example.com", Resource: "widgets", Owner: sqlstore.Custom}
	if _, err := s.store.List(t.Context(), sqlstore.Query{Range: of, KeysOnly: true}, func(r sqlstore.Record) error {
		keys = append(keys, r.Namespace+"/"+r.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func (s *server) undefine(t *testing.T) {
	t.Helper()
	const name = "widgets.example.com"
	if err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await(t, name, gone)
}

// TestReplicas_NoInstanceOutlivesItsDefinition: a replica that has not seen the deletion of a
// definition creates no instance of it.
func TestReplicas_NoInstanceOutlivesItsDefinition(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.create(t, widget(t, "before", `{"size":3}`))
	w := duringHold(t, b, feed, func() { a.undefine(t) }, http.MethodPost, widgetPath, late)
	if w.Code != http.StatusNotFound {
		t.Errorf("create after the deletion: %d %s", w.Code, w.Body)
	}
	if left := a.remaining(t); len(left) > 0 {
		t.Errorf("rows without a definition: %v", left)
	}
}

// TestReplicas_CreateOfATerminatingDefinition: a replica that has not seen that the deletion of a
// definition has begun creates no instance, and still changes those that are there.
func TestReplicas_CreateOfATerminatingDefinition(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.do(t, http.MethodPost, widgetPath,
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"kept","finalizers":["example.com/f"]},"spec":{"size":3}}`)
	terminate := func() {
		const name = "widgets.example.com"
		if err := a.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w := duringHold(t, b, feed, terminate, http.MethodPost, widgetPath, late)
	if w.Code != http.StatusForbidden ||
		!strings.Contains(w.Body.String(), "while custom resource definition is terminating") {
		t.Errorf("create: %d %s", w.Code, w.Body)
	}
	w = b.do(t, http.MethodPatch, widgetPath+"/kept", `{"metadata":{"finalizers":null}}`, "Content-Type",
		"application/merge-patch+json")
	if w.Code != http.StatusOK {
		t.Errorf("removal of a finalizer: %d %s", w.Code, w.Body)
	}
	a.await(t, "widgets.example.com", gone)
	if left := a.remaining(t); len(left) > 0 {
		t.Errorf("rows without a definition: %v", left)
	}
}

// TestReplicas_DefinitionIsReplaced: a definition is deleted and created again with another
// version. A replica that has not seen this creates no instance in the old version.
func TestReplicas_DefinitionIsReplaced(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.create(t, widget(t, "before", `{"size":3}`))
	replace := func() {
		a.undefine(t)
		a.define(t, strings.Replace(widgetDefinition, "name: v1\n", "name: v2\n", 1))
	}
	w := duringHold(t, b, feed, replace, http.MethodPost, widgetPath, late)
	if w.Code != http.StatusNotFound {
		t.Errorf("create in the old version: %d %s", w.Code, w.Body)
	}
	for _, s := range []*server{a, b} {
		if w := s.do(t, http.MethodGet, "/apis/example.com/v2/widgets", ""); w.Code != http.StatusOK {
			t.Errorf("list in the new version: %d %s", w.Code, w.Body)
		}
	}
	a.undefine(t)
}

// TestReplicas_WritesFollowTheSchema: right after a definition got a new field on one server,
// another one stores this field, and refuses or warns of none, whatever its feed has seen.
func TestReplicas_WritesFollowTheSchema(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.create(t, widget(t, "w", `{"size":3}`))
	for _, test := range []struct {
		name, method, path, body string
		header                   []string
	}{
		// First, while the widget has the encoding that the other server would write: that server finds nothing to write.
		{"patch of nothing else", http.MethodPatch, widgetPath + "/w", `{"spec":{"FIELD":"new"}}`,
			[]string{"Content-Type", "application/merge-patch+json"}},
		{"create", http.MethodPost, widgetPath, widget(t, "created", `{"size":3,"FIELD":"new"}`), nil},
		{"strict create", http.MethodPost, widgetPath + "?fieldValidation=Strict",
			widget(t, "strict", `{"size":3,"FIELD":"new"}`), nil},
		{"warned create", http.MethodPost, widgetPath + "?fieldValidation=Warn",
			widget(t, "warned", `{"size":3,"FIELD":"new"}`), nil},
		{"create warned of another field", http.MethodPost, widgetPath + "?fieldValidation=Warn",
			widget(t, "warned-2", `{"size":3,"FIELD":"new","unknown":1}`), nil},
		{"patch", http.MethodPatch, widgetPath + "/w", `{"spec":{"FIELD":"new"}}`,
			[]string{"Content-Type", "application/merge-patch+json"}},
		{"apply", http.MethodPatch, widgetPath + "/applied?fieldManager=m", widget(t, "applied", `{"size":3,"FIELD":"new"}`),
			[]string{"Content-Type", "application/apply-patch+yaml"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var field string
			var changed int64
			w := duringHold(t, b, feed, func() {
				field = a.addField(t)
				changed = a.revision(t)
			}, test.method, test.path, func() string { return strings.ReplaceAll(test.body, "FIELD", field) }, test.header...)
			if w.Code/100 != 2 || spec(t, w.Body.Bytes())[field] != "new" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if warnings := w.Header()["Warning"]; len(warnings) != strings.Count(test.body, "unknown") {
				t.Errorf("warnings: %q", warnings)
			}
			if now := a.revision(t); now != changed+1 {
				t.Errorf("the write took %d revisions", now-changed)
			}
		})
	}
}

// addField adds a field to the spec of widgets, and returns its name.
func (s *server) addField(t *testing.T) (name string) {
	t.Helper()
	s.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
		properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
		name = fmt.Sprintf("added%d", len(properties))
		properties[name] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	})
	return name
}

// setNew gives a widget a field that it adds to the definition.
func (s *server) setNew(t *testing.T, widget string) (name string) {
	t.Helper()
	name = s.addField(t)
	if w := s.do(t, http.MethodPatch, widgetPath+"/"+widget, `{"spec":{"`+name+`":"new"}}`, "Content-Type",
		"application/merge-patch+json"); w.Code != http.StatusOK {
		t.Fatalf("patch: %d %s", w.Code, w.Body)
	}
	return name
}

// TestReplicas_ReadsFollowTheSchema: what a server has written by a new schema, another one shows whole, whatever its
// feed has seen.
func TestReplicas_ReadsFollowTheSchema(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.create(t, widget(t, "w", `{"size":3}`))
	for _, loaded := range []bool{false, true} {
		for _, path := range []string{widgetPath + "/w", widgetPath, widgetPath + "?limit=1"} {
			var field string
			w := duringHold(t, b, feed, func() { field = a.setNew(t, "w") }, http.MethodGet, path, func() string { return "" })
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"`+field+`":"new"`) {
				t.Errorf("loaded: %t: GET %s: %d %s, want %s", loaded, path, w.Code, w.Body, field)
			}
		}
		if w := b.do(t, http.MethodGet, widgetPath+"?resourceVersion=0", ""); w.Code != http.StatusOK { // loads them
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

// TestReplicas_WatchesFollowTheSchema: a watch through a server that learns of a new schema and of an object of it at
// the same time shows the object whole, if need be after it has resumed.
func TestReplicas_WatchesFollowTheSchema(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	at := b.create(t, widget(t, "w", `{"size":3}`)).GetResourceVersion()
	client := b.dynamic.Resource(widgets).Namespace("default")
	for range 20 {
		events, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: at})
		if err != nil {
			t.Fatal(err)
		}
		release := feed.hold()
		field := a.setNew(t, "w")
		release()
		for shown := false; !shown; {
			event, open := <-events.ResultChan()
			if !open {
				if events, err = client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: at}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			w, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("%+v", event)
			}
			at = w.GetResourceVersion()
			if value, _, _ := unstructured.NestedString(w.Object, "spec", field); value != "new" {
				t.Fatalf("%s is shown without %s: %v", at, field, w.Object["spec"])
			}
			shown = true
		}
		events.Stop()
	}
}

// TestReplicas_ReadFromMemoryWhatAnotherProgramHasWritten: an instance with another encoding that is in memory is shown
// without the database.
func TestReplicas_ReadFromMemoryWhatAnotherProgramHasWritten(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	b.do(t, http.MethodGet, widgetPath+"?resourceVersion=0", "") // loads them
	a.leftBehind(t, "v1", "x")
	b.do(t, http.MethodGet, widgetPath+"/other", "") // its feed has the change then
	release := feed.hold()
	defer release()
	for _, path := range []string{widgetPath + "/x?resourceVersion=0", widgetPath + "?resourceVersion=0"} {
		answer := make(chan *httptest.ResponseRecorder, 1)
		go func() { answer <- b.do(t, http.MethodGet, path, "") }()
		select {
		case w := <-answer:
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"uid":"uid-x"`) {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		case <-time.After(storetest.Patience):
			release()
			t.Errorf("%s waits for the database: %d", path, (<-answer).Code)
		}
	}
}

// TestReplicas_FollowADefinitionThatIsReplaced: what a server has written by a definition that was deleted and created
// again, another one shows whole, whatever its feed has seen.
func TestReplicas_FollowADefinitionThatIsReplaced(t *testing.T) {
	t.Parallel()
	a, b, feed := startReplicas(t)
	a.define(t, widgetDefinition)
	at := b.create(t, widget(t, "w", `{"size":3}`)).GetResourceVersion()
	events, err := b.dynamic.Resource(widgets).Namespace("default").Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: at})
	if err != nil {
		t.Fatal(err)
	}
	replace := func() {
		a.undefine(t)
		a.define(t, strings.Replace(widgetDefinition, "size:", "fresh: {type: string}\n              size:", 1))
		a.create(t, widget(t, "w", `{"size":3,"fresh":"new"}`))
	}
	w := duringHold(t, b, feed, replace, http.MethodGet, widgetPath+"/w", func() string { return "" })
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"fresh":"new"`) {
		t.Errorf("GET: %d %s", w.Code, w.Body)
	}
	for event := range events.ResultChan() { // ends with the definition
		if text, _ := json.Marshal(event.Object); event.Type != apiwatch.Deleted &&
			!strings.Contains(string(text), `"fresh":"new"`) {
			t.Errorf("%s %s", event.Type, text)
		}
	}
}

func (s *server) revision(t *testing.T) int64 {
	t.Helper()
	state, err := s.store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Revision
}

// TestDefinition_DeletionsWithCreates deletes a definition again and again while clients create
// instances, through another replica where there can be one. No row is left behind.
func TestDefinition_DeletionsWithCreates(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		a, b, _ := startReplicas(t)
		testDeletionsWithCreates(t, a, b)
	})
	onDatabases(t, func(t *testing.T, s *server) { testDeletionsWithCreates(t, s, s) })
}

func testDeletionsWithCreates(t *testing.T, a, b *server) {
	const deletions = 5
	var longest time.Duration
	for round := range deletions {
		a.define(t, widgetDefinition)
		ctx, cancel := context.WithCancel(t.Context())
		var creators errgroup.Group
		for n := range 4 {
			creators.Go(func() error {
				for i := 0; ctx.Err() == nil; i++ {
					b.do(t, http.MethodPost, widgetPath, widget(t, fmt.Sprintf("w-%d-%d-%d", round, n, i), `{"size":3}`))
				}
				return nil
			})
		}
		storetest.Eventually(t, "instances", func() bool { return len(a.remaining(t)) >= 20 })
		begin := time.Now()
		a.undefine(t)
		longest = max(longest, time.Since(begin))
		left := a.remaining(t)
		cancel()
		_ = creators.Wait()
		if left = append(left, a.remaining(t)...); len(left) > 0 {
			t.Errorf("deletion %d left %d rows: %v", round, len(left), left)
		}
	}
	t.Logf("the longest deletion took %v", longest)
}
