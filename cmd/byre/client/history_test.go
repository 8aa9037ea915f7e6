package client

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/history"
	"byre/apiserver/storage/moment"
	"byre/sqlstore"
)

// world is a cluster in memory, which random cases write to, and a client of it in the namespace shop.
type world struct {
	*testing.T
	*fakeCluster
	client *Client
	random *rand.Rand
	// who is the user of the last write.
	who string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster := newFakeCluster()
	client, err := NewClient(cluster.Config(""), "shop")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, cluster, client, rand.New(rand.NewPCG(1, 2)), ""}
}

// cases runs a case many times, each with the namespaces alone; it stops at the first that fails.
func (w *world) cases(n int, f func(i int)) {
	w.Helper()
	for i := range n {
		w.Reset()
		if f(i); w.Failed() {
			w.Fatalf("case %d", i)
		}
	}
}

func (w *world) user() string {
	w.who = fmt.Sprintf("user-%d", w.random.IntN(5))
	return w.who
}

// content returns the random members of an object beside its metadata. They have few values, so that some are set
// again.
func (w *world) content() map[string]any {
	spec := map[string]any{}
	for range w.random.IntN(4) {
		switch w.random.IntN(4) {
		case 0:
			spec["replicas"] = int64(w.random.IntN(3))
		case 1:
			spec["sub"] = w.texts()
		case 2:
			spec["a/b~c"] = w.random.IntN(2) == 0
		default:
			list := []any{}
			for _, i := range w.random.Perm(3)[:w.random.IntN(3)] {
				list = append(list, map[string]any{"name": fmt.Sprint("c", i), "image": fmt.Sprint("i", w.random.IntN(2))})
			}
			spec["containers"] = list
		}
	}
	content := map[string]any{"spec": spec}
	if w.random.IntN(3) == 0 {
		content["data"] = w.texts()
	}
	return content
}

func (w *world) texts() map[string]any {
	texts := map[string]any{}
	for range w.random.IntN(3) {
		texts[fmt.Sprint("k", w.random.IntN(3))] = fmt.Sprint("v", w.random.IntN(2))
	}
	return texts
}

// object returns a random object of a name, without an UID.
func (w *world) object(resource, name string) *unstructured.Unstructured {
	o := w.Object(resource, "shop", name, w.content())
	all := map[string]string{}
	for name, value := range w.texts() {
		all[name] = value.(string)
	}
	o.SetLabels(all)
	return o
}

// edit makes a random change of an object, of its spec and labels or of its status.
func (w *world) edit(resource, name string) *unstructured.Unstructured {
	w.Helper()
	now := w.Get(resource, "shop", name)
	author := sqlstore.Author{User: w.user(), Verb: "update"}
	if w.random.IntN(6) == 0 {
		author.Subresource = "status"
		now.Object["status"] = map[string]any{"seen": int64(w.random.IntN(3))}
		return w.Must(w.Update(author, now))
	}
	o := w.object(resource, name)
	for _, kept := range []string{"status", "metadata", "spec", "data"} {
		if value, exists := now.Object[kept]; exists && (kept == "status" || w.random.IntN(3) == 0) {
			o.Object[kept] = value
		}
	}
	o.SetResourceVersion("")
	o.SetOwnerReferences(now.GetOwnerReferences())
	return w.Must(w.Update(author, o))
}

// of returns what an object is for its author: without what the server sets.
func of(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	stripped := runtime.DeepCopyJSON(strip(o.Object))
	delete(stripped, "status")
	return withoutEmpty(stripped).(map[string]any)
}

// withoutEmpty removes empty maps, which a write may leave out.
func withoutEmpty(value any) any {
	object, ok := value.(map[string]any)
	if !ok {
		return value
	}
	for name, field := range object {
		object[name] = withoutEmpty(field)
		if inner, ok := field.(map[string]any); ok && len(inner) == 0 {
			delete(object, name)
		}
	}
	return object
}

func text(value any) string {
	encoded, _ := json.Marshal(value) // it was JSON
	return string(encoded)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func revisionOf(o *unstructured.Unstructured) int64 {
	revision, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return revision
}

// leaves returns the fields of an object, in the simplest way that agrees with the server's.
func leaves(value any, path string, all map[string]string) map[string]string {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			at := strings.TrimPrefix(path+"."+name, ".")
			if strings.Contains(name, "/") {
				at = fmt.Sprintf("%s[%q]", path, name)
			}
			leaves(field, at, all)
		}
		if len(value) > 0 {
			return all
		}
	case []any: // of containers
		for _, element := range value {
			leaves(element, fmt.Sprintf("%s[name=%s]", path, element.(map[string]any)["name"]), all)
		}
		if len(value) > 0 {
			return all
		}
	}
	all[path] = text(value)
	return all
}

// Blame names of each field who gave it the value that it has, as a log of all edits does that is kept beside it. Of a
// field that is older than the history it says so.
func TestBlame_EqualsTheLogOfRandomEdits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := Object{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "shop", "web"}
	older := 0
	w.cases(400, func(int) {
		type setter struct {
			who, value string
			revision   int64
		}
		log, last := map[string]setter{}, map[string]string{}
		note := func() {
			now := w.Get("deployments", "shop", "web")
			found := map[string]string{}
			if now != nil {
				content := runtime.DeepCopyJSON(now.Object)
				unstructured.RemoveNestedField(content, "metadata", "resourceVersion")
				found = leaves(content, "", found)
			}
			for path := range log {
				if _, exists := found[path]; !exists {
					delete(log, path)
				}
			}
			for path, value := range found {
				if last[path] != value {
					log[path] = setter{w.who, value, w.Revision()}
				}
			}
			last = found
		}
		for range 1 + w.random.IntN(12) {
			switch now := w.Get("deployments", "shop", "web"); {
			case now == nil:
				w.Must(w.Create(w.user(), w.object("deployments", "web")))
			case w.random.IntN(10) == 0:
				w.must(w.Delete(w.user(), "deployments", "shop", "web"))
			default:
				w.edit("deployments", "web")
			}
			note()
		}
		if len(last) == 0 {
			return
		}
		complete := int64(0)
		if w.random.IntN(3) == 0 {
			complete = 1 + w.random.Int64N(w.Revision())
			w.DeleteHistory("deployments", complete)
		}
		blamed, err := w.client.Blame(t.Context(), target, false)
		w.must(err)
		if len(blamed) != len(log) {
			t.Errorf("%d fields, want %d", len(blamed), len(log))
		}
		for _, leaf := range blamed {
			want := log[leaf.Path]
			switch {
			case text(leaf.Value) != want.value:
				t.Errorf("%s is %s, want %s", leaf.Path, text(leaf.Value), want.value)
			case want.revision <= complete:
				older++
				if leaf.Change != nil || leaf.Since < want.revision || leaf.Since > w.Revision() {
					t.Errorf("%s is of %+v or before %d, and was set at %d, of which there is no history", leaf.Path, leaf.Change,
						leaf.Since, want.revision)
				}
			case leaf.Change == nil || leaf.Change.Who != want.who || leaf.Change.Revision != want.revision:
				t.Errorf("%s is of %+v, want %+v", leaf.Path, leaf.Change, want)
			}
		}
	})
	if older == 0 {
		t.Error("no field was older than the history")
	}
}

// counter counts requests.
type counter struct {
	http.RoundTripper
	requests int
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests++
	return c.RoundTripper.RoundTrip(r)
}

// Blame is one request, of however many changes. What the user may not see, it says as what is not there any more.
func TestBlame_IsOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := Object{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "shop", "a"}
	const n = 3000
	w.Must(w.Create("alice", w.Object("secrets", "shop", "a", map[string]any{"data": map[string]any{"a.b": "MA=="}})))
	for i := range n {
		o := w.Get("secrets", "shop", "a")
		o.SetLabels(map[string]string{"n": fmt.Sprint(i)})
		w.Must(w.Update(sqlstore.Author{User: "bob", Verb: "patch", Manager: "tool"}, o))
	}
	config := w.Config("")
	counter := &counter{RoundTripper: config.Transport}
	config.Transport = counter
	client, err := NewClient(config, "shop")
	w.must(err)
	for _, shown := range []bool{false, true} {
		counter.requests = 0
		blamed, err := client.Blame(t.Context(), target, shown)
		w.must(err)
		found := map[string]string{}
		for _, leaf := range blamed {
			c := leaf.Change
			found[leaf.Path] = text(leaf.Value) + " " + c.Who + " " + c.Verb + " " + c.Manager
		}
		value, requests := "***", 1
		if shown {
			value, requests = "MA==", 2
		}
		if found["metadata.labels.n"] != fmt.Sprintf(`"%d" bob patch tool`, n-1) ||
			found[`data["a.b"]`] != `"`+value+`" alice create ` || counter.requests != requests {
			t.Errorf("%d requests find %v", counter.requests, found)
		}
	}

	w.Allow = func(who, _, resource, namespace string) bool {
		return who == "eve" && (resource == "changes" || resource == "configmaps") && namespace == "shop"
	}
	eve, err := NewClient(w.Config("eve"), "shop")
	w.must(err)
	if _, err := eve.Blame(t.Context(), target, false); !apierrors.IsForbidden(err) {
		t.Errorf("who may not list Secrets is told %v", err)
	}
	target.Name = "none"
	if _, err := eve.Blame(t.Context(), target, false); !apierrors.IsForbidden(err) {
		t.Errorf("who may not list Secrets is told of one that does not exist: %v", err)
	}
	target.Resource.Resource = "configmaps"
	if _, err := eve.Blame(t.Context(), target, false); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("of what does not exist: %v", err)
	}
}

// show and diff find an object as it was at each revision and time, or say that the history does not reach back.
func TestAt_IsWhatTheObjectWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := Object{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "shop", "a"}
	expired := 0
	w.cases(150, func(int) {
		was := map[int64]map[string]any{w.Revision(): nil}
		for range 1 + w.random.IntN(8) {
			name := []string{"a", "b"}[w.random.IntN(2)]
			switch now := w.Get("configmaps", "shop", name); {
			case now == nil:
				w.Must(w.Create(w.user(), w.object("configmaps", name)))
			case w.random.IntN(5) == 0:
				w.must(w.Delete(w.user(), "configmaps", "shop", name))
			default:
				w.edit("configmaps", name)
			}
			was[w.Revision()] = of(w.Get("configmaps", "shop", "a"))
		}
		complete := int64(0)
		if w.random.IntN(2) == 0 {
			complete = 1 + w.random.Int64N(w.Revision())
			w.DeleteHistory("configmaps", complete)
		}
		for revision, want := range was {
			moments := []moment.Moment{{Revision: revision}}
			if change, err := w.client.Change(t.Context(), "shop", revision); err == nil {
				moments = append(moments, moment.Moment{Time: change.Time.Time})
			}
			for _, moment := range moments {
				v, err := w.client.At(t.Context(), target, moment)
				var got map[string]any
				if v.Content != nil {
					got = of(&unstructured.Unstructured{Object: v.Content})
				}
				switch {
				case revision < complete && apierrors.IsResourceExpired(err):
					expired++
				case err != nil:
					t.Errorf("at %s, the history is complete after %d: %v", moment, complete, err)
				case revision >= complete && !reflect.DeepEqual(got, want):
					t.Errorf("at %s it is %s, want %s", moment, text(got), text(want))
				case revision < complete && !reflect.DeepEqual(got, want):
					t.Errorf("at %s it is %s, and was %s", moment, text(got), text(want))
				}
			}
		}
	})
	if expired == 0 {
		t.Error("the history always reached back")
	}
}

// valuesOf returns the leaves of an object that are no empty objects or lists.
func valuesOf(object map[string]any) map[string]string {
	all := leaves(object, "", map[string]string{})
	maps.DeleteFunc(all, func(_, value string) bool { return value == "{}" || value == "[]" })
	return all
}

// union returns the members of two maps, of which the second one counts.
func union[V any](a, b map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// An undo gives the leaves that its change has changed their former values, and leaves all others as they are. If
// somebody has changed one of them since, it changes nothing, and says which, and who; a second one finds nothing.
func TestUndo_ReversesExactlyOneChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outcomes := map[string]int{}
	w.cases(1500, func(int) {
		states := map[int64]*unstructured.Unstructured{}
		note := func(o *unstructured.Unstructured) { states[revisionOf(o)] = o.DeepCopy() }
		note(w.Must(w.Create(w.user(), w.object("deployments", "web"))))
		for range w.random.IntN(4) {
			note(w.edit("deployments", "web"))
		}
		revisions := slices.Sorted(maps.Keys(states))
		at := w.random.IntN(len(revisions))
		undone, requests := revisions[at], w.Requests
		change, err := w.client.Change(t.Context(), "shop", undone)
		w.must(err)
		after, now := valuesOf(strip(states[undone].Object)), valuesOf(strip(w.Get("deployments", "shop", "web").Object))
		before := map[string]string{}
		if at > 0 {
			before = valuesOf(strip(states[revisions[at-1]].Object))
		}

		// What is expected of the leaves. Whether others keep an element of a list from being added, removed or moved is
		// not told by its leaves.
		want, isTold, beside := maps.Clone(now), true, false
		var conflicts []string
		for path := range union(union(after, before), now) {
			isStatus := strings.HasPrefix(path, "status")
			isContainer := strings.HasPrefix(path, "spec.containers")
			switch {
			case at == 0:
				isTold = isTold && !isContainer
				if now[path] != after[path] && !isStatus {
					conflicts = append(conflicts, path)
				}
			case after[path] == before[path] || isStatus && change.Subresource != "status":
				beside = beside || now[path] != after[path]
				isTold = isTold && !isContainer
			case now[path] != after[path] && now[path] != before[path]:
				conflicts = append(conflicts, path)
			default:
				isTold = isTold && !isContainer
				if want[path] = before[path]; want[path] == "" {
					delete(want, path)
				}
			}
		}

		if at == 0 { // an empty object or list is a difference too
			isTold = isTold && len(conflicts) > 0
		}

		plan, err := w.client.PlanUndo(t.Context(), undone)
		if err != nil {
			outcomes["conflict"]++
			if isTold && len(conflicts) == 0 || !strings.Contains(err.Error(), "nothing is undone: after revision") ||
				w.Requests != requests {
				t.Errorf("of %v, revision %d of %v after %v is not undone: %v", now, undone, after, before, err)
			}
			for _, path := range conflicts {
				if at > 0 && !strings.HasPrefix(path, "spec.containers") && !strings.Contains(err.Error(), path) {
					t.Errorf("%v does not name %s", err, path)
				}
			}
			if !strings.Contains(err.Error(), " (user-") && isTold {
				t.Errorf("%v does not say who", err)
			}
			return
		}
		if len(conflicts) > 0 {
			t.Errorf("of %v, revision %d of %v after %v is undone, though others have changed %q", now, undone, after, before,
				conflicts)
		}
		if plan.Verb != "delete" && len(plan.Patch) == 0 {
			outcomes["nothing"]++
			if !maps.Equal(want, now) {
				t.Errorf("nothing is to be done to make %v %v", now, want)
			}
			return
		}
		w.must(w.client.Do(t.Context(), nil, plan, true))
		if w.Requests != requests {
			t.Error("a dry run has written")
		}
		w.must(w.client.Do(t.Context(), nil, plan, false))
		outcomes[plan.Verb]++
		if o := w.Get("deployments", "shop", "web"); at == 0 {
			if o != nil {
				t.Errorf("it is not deleted: %v", o)
			}
		} else if got := valuesOf(strip(o.Object)); !maps.Equal(got, want) {
			t.Errorf("%v is %v, want %v after %s", now, got, want, text(plan.Patch))
		}
		if beside {
			outcomes["beside"]++
		}
		if again, err := w.client.PlanUndo(t.Context(), undone); err != nil || len(again.Patch) > 0 ||
			again.Verb == "delete" {
			t.Errorf("a second undo: %+v, %v", again, err)
		}
	})
	for _, outcome := range []string{"conflict", "nothing", "patch", "delete", "beside"} {
		if outcomes[outcome] == 0 {
			t.Errorf("no case ended in %s: %v", outcome, outcomes)
		}
	}
}

// What others have changed beside the leaves of a change does not block its undo: a leaf of the same element,
// another element, another label.
func TestUndo_IsOfLeaves(t *testing.T) {
	t.Parallel()
	container := func(name, image string, more ...any) any {
		c := map[string]any{"name": name, "image": image}
		for i := 0; i < len(more); i += 2 {
			c[more[i].(string)] = more[i+1]
		}
		return c
	}
	list := func(containers ...any) []any { return containers }
	a1, a2, b1, b2 := container("a", "1"), container("a", "2"), container("b", "1"), container("b", "2")
	for name, test := range map[string]struct {
		before, after, now []any
		want               []any // nil if it is refused
		refused            string
	}{
		"another element":     {list(a1, b1), list(a2, b1), list(a2, b2), list(a1, b2), ""},
		"moved elements":      {list(a1, b1), list(a2, b1), list(b2, a2), list(b2, a1), ""},
		"another leaf":        {list(a1), list(a2), list(container("a", "2", "tty", true)), list(container("a", "1", "tty", true)), ""},
		"an added element":    {list(a1), list(a1, b1), list(a2, b1), list(a2), ""},
		"a removed element":   {list(a1, b1), list(b1), list(b2), list(a1, b2), ""},
		"the same leaf":       {list(a1, b1), list(a2, b1), list(container("a", "3"), b1), nil, "[name=a].image (carol, revision "},
		"an element since":    {list(a1), list(a1, b1), list(a1, b2), nil, "[name=b].image (carol, revision "},
		"a removed one since": {list(a1, b1), list(a2, b1), list(b1), nil, "[name=a] (carol, revision "},
		"an order since":      {list(a1, b1), list(b1, a1), list(b1, a2), nil, "spec.containers (carol, revision "},
		"no key":              {list("x", "y"), list("x", "z"), list("w", "z"), nil, "spec.containers (carol, revision "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			write := func(who string, containers []any) *unstructured.Unstructured {
				o := w.Object("deployments", "shop", "web", map[string]any{"spec": map[string]any{"containers": containers}})
				o.SetLabels(map[string]string{who: "1"})
				if w.Get("deployments", "shop", "web") == nil {
					return w.Must(w.Create(who, o))
				}
				return w.Must(w.Update(sqlstore.Author{User: who, Verb: "update"}, o))
			}
			write("bob", test.before)
			change := write("bob", test.after)
			write("carol", test.now)
			plan, err := w.client.PlanUndo(t.Context(), revisionOf(change))
			if test.want == nil {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("%+v, %v, want %q", plan, err, test.refused)
				}
				return
			}
			w.must(err)
			w.must(w.client.Do(t.Context(), nil, plan, false))
			now := w.Get("deployments", "shop", "web")
			got, _, _ := unstructured.NestedSlice(now.Object, "spec", "containers")
			if !reflect.DeepEqual(got, test.want) || now.GetLabels()["carol"] == "" {
				t.Errorf("it is %s, want %s, after %s", text(now.Object), text(test.want), text(plan.Patch))
			}
		})
	}
}

// An undo that somebody overtakes changes nothing.
func TestUndo_DoesNotOverwriteWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := w.Must(w.Create("alice", w.object("configmaps", "a")))
	remove, err := w.client.PlanUndo(t.Context(), revisionOf(created))
	w.must(err)
	o := created.DeepCopy()
	o.Object["data"] = map[string]any{"new": "1"}
	w.Must(w.Update(sqlstore.Author{User: "bob", Verb: "update"}, o))
	if err := w.client.Do(t.Context(), nil, remove, false); !apierrors.IsConflict(err) {
		t.Errorf("a deletion of what has changed: %v", err)
	}
	set := func(data map[string]any, label string) *unstructured.Unstructured {
		o := w.Get("configmaps", "shop", "a")
		o.Object["data"] = data
		o.SetLabels(map[string]string{label: "1"})
		return w.Must(w.Update(sqlstore.Author{User: "bob", Verb: "update"}, o))
	}
	set(map[string]any{"key": "1"}, "x")
	for _, test := range []struct{ changed, later, want any }{
		{map[string]any{"key": "2"}, map[string]any{"key": "2"}, map[string]any{"key": "1"}}, // a label does not matter
		{map[string]any{"key": "2"}, map[string]any{"key": "3"}, map[string]any{"key": "3"}},
		{map[string]any{}, map[string]any{"key": "3"}, map[string]any{"key": "3"}}, // it would be overwritten
	} {
		set(map[string]any{"key": "1"}, "x")
		changed := set(test.changed.(map[string]any), "x")
		patch, err := w.client.PlanUndo(t.Context(), revisionOf(changed))
		w.must(err)
		set(test.later.(map[string]any), "late")
		err = w.client.Do(t.Context(), nil, patch, false)
		now := w.Get("configmaps", "shop", "a")
		if isUndone := reflect.DeepEqual(test.want, map[string]any{"key": "1"}); (err == nil) != isUndone ||
			!reflect.DeepEqual(now.Object["data"], test.want) || now.GetLabels()["late"] == "" {
			t.Errorf("%v of what is %v: %v, %v", test.changed, test.later, now, err)
		}
	}
}

// The undo of a creation deletes as kubectl does: nothing that the object owns is left.
func TestUndo_LeavesNoDependents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan, err := w.client.PlanUndo(t.Context(), revisionOf(w.Must(w.Create("alice", w.object("jobs", "once")))))
	w.must(err)
	w.must(w.client.Do(t.Context(), nil, plan, false))
	if job := w.Get("jobs", "shop", "once"); job != nil {
		t.Errorf("its Pods are to be left: %q", job.GetFinalizers())
	}
}

// What can't be undone is refused with the reason.
func TestUndo_Refuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refuse := func(revision int64, namespace, want string) {
		t.Helper()
		if plan, err := w.client.In(namespace).PlanUndo(t.Context(), revision); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %q", plan, err, want)
		}
	}
	namespace := w.Must(w.Create("alice", w.Object("namespaces", "", "more", nil)))
	refuse(revisionOf(namespace), "default", "its deletion would delete all that it holds")
	first := w.Must(w.Create("alice", w.object("configmaps", "a")))
	w.must(w.Delete("alice", "configmaps", "shop", "a"))
	refuse(w.Revision(), "shop", "use undelete")
	second := w.Must(w.Create("alice", w.object("configmaps", "a")))
	refuse(revisionOf(first), "shop", "is another object since revision")
	second.SetFinalizers([]string{"example.com/keep"})
	held := w.Must(w.Update(sqlstore.Author{User: "alice", Verb: "update"}, second))
	w.must(w.Delete("alice", "configmaps", "shop", "a"))
	refuse(revisionOf(held), "shop", "is being deleted, which can't be reversed")
	refuse(w.Revision()+1, "shop", "not found")
	refuse(revisionOf(held), "default", "not found")
	gear := w.Must(w.Create("alice", w.object("gears", "g")))
	changed := w.edit("gears", "g")
	w.must(w.Delete("alice", "gears", "shop", "g"))
	refuse(revisionOf(changed), "shop", "does not exist any more")
	if plan, err := w.client.PlanUndo(t.Context(), revisionOf(gear)); err != nil || plan.Verb != "patch" ||
		len(plan.Patch) > 0 {
		t.Errorf("the creation of what is deleted: %+v, %v", plan, err)
	}
	w.DeleteHistory("gears", w.Revision())
	refuse(revisionOf(changed), "shop", "not covered by the history")
}

// A deleted object is created again as it was before its deletion began, whatever controllers that held it by
// finalizers have made of it since.
func TestUndelete_BringsBackTheLastVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := Object{schema.GroupVersionResource{Version: "v1", Resource: "services"}, "shop", "web"}
	w.cases(150, func(int) {
		owner := w.Must(w.Create(w.user(), w.object("configmaps", "owner")))
		o := w.object("services", "web")
		isHeld := w.random.IntN(2) == 0
		if isHeld {
			o.SetFinalizers([]string{"example.com/keep"})
		}
		gone := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner",
			UID: owner.GetUID()}, gone})
		w.Must(w.Create(w.user(), o))
		for range w.random.IntN(3) {
			now := w.Get("services", "shop", "web")
			now.Object["data"] = w.texts()
			w.Must(w.Update(sqlstore.Author{User: w.user(), Verb: "update"}, now))
		}
		want := of(w.Get("services", "shop", "web"))
		unstructured.RemoveNestedField(want, "metadata", "ownerReferences")
		w.must(w.Delete(w.user(), "services", "shop", "web"))
		if isHeld {
			taken := w.Get("services", "shop", "web")
			taken.Object["spec"], taken.Object["data"] = map[string]any{}, nil
			w.Must(w.Update(sqlstore.Author{User: "controller", Verb: "update"}, taken))
			taken = w.Get("services", "shop", "web")
			taken.SetFinalizers(nil)
			w.Must(w.Update(sqlstore.Author{User: "controller", Verb: "update"}, taken))
		}
		deleted := w.Revision()
		undelete, err := w.client.PlanUndelete(t.Context(), target)
		w.must(err)
		if undelete.Revision != deleted ||
			!slices.Contains(undelete.LeftOut, "metadata.ownerReferences: ConfigMap/gone (it is gone)") {
			t.Errorf("deleted at %d: %+v", deleted, undelete)
		}
		_, err = w.client.Create(t.Context(), undelete, false)
		w.must(err)
		back := w.Get("services", "shop", "web")
		got := of(back)
		unstructured.RemoveNestedField(got, "metadata", "ownerReferences")
		if owners := back.GetOwnerReferences(); !reflect.DeepEqual(got, want) || len(owners) != 1 ||
			owners[0].UID != owner.GetUID() {
			t.Errorf("it is %s, want %s", text(back.Object), text(want))
		}
		if again, err := w.client.PlanUndelete(t.Context(), target); err != nil || again.Content != nil {
			t.Errorf("a second time: %+v, %v", again, err)
		}
	})
}

// What the server or a controller sets for one object is not created again, and an address that is taken is left out.
func TestUndelete_LeavesOutWhatIsOfOneObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	back := func(resource, group string, content map[string]any, left ...string) *unstructured.Unstructured {
		t.Helper()
		w.Must(w.Create("alice", w.Object(resource, "shop", "o", content)))
		w.must(w.Delete("alice", resource, "shop", "o"))
		u, err := w.client.PlanUndelete(t.Context(),
			Object{schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, "shop", "o"})
		w.must(err)
		_, err = w.client.Create(t.Context(), u, false)
		w.must(err)
		if !slices.Equal(u.LeftOut, left) {
			t.Errorf("of %s is left out %q, want %q", resource, u.LeftOut, left)
		}
		return w.Get(resource, "shop", "o")
	}
	pod := back("pods", "",
		map[string]any{"spec": map[string]any{"nodeName": "n", "x": "y"}, "status": map[string]any{"phase": "Running"}},
		"status (the server sets it)", "spec.nodeName (the server sets it)")
	if !reflect.DeepEqual(pod.Object["spec"], map[string]any{"x": "y"}) || pod.Object["status"] != nil {
		t.Errorf("the Pod is %s", text(pod.Object))
	}
	back("jobs", "batch", map[string]any{"spec": map[string]any{"selector": "s"}}, "spec.selector (the server sets it)")
	w.must(w.Delete("alice", "jobs", "shop", "o"))
	if job := back("jobs", "batch",
		map[string]any{"spec": map[string]any{"selector": "s", "manualSelector": true}}); job.Object["spec"].(map[string]any)["selector"] != "s" {
		t.Errorf("the selector that its author has set: %s", text(job.Object))
	}
	w.BeforeWrite = func(verb string, o *unstructured.Unstructured) error {
		if address, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); verb == "create" &&
			address == "10.0.0.1" && w.Get("secrets", "shop", "taken") != nil {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 422,
				Reason: metav1.StatusReasonInvalid, Details: &metav1.StatusDetails{
					Causes: []metav1.StatusCause{{Field: "spec.clusterIPs", Message: "taken"}},
				}}}
		}
		return nil
	}
	address := map[string]any{"spec": map[string]any{"clusterIP": "10.0.0.1", "clusterIPs": []any{"10.0.0.1"}, "x": "y"}}
	if service := back("services", "", runtime.DeepCopyJSON(address)); !reflect.DeepEqual(service.Object["spec"],
		address["spec"]) {
		t.Errorf("a free address: %s", text(service.Object))
	}
	w.must(w.Delete("alice", "services", "shop", "o"))
	created := w.Must(w.Create("alice", w.Object("services", "shop", "o", runtime.DeepCopyJSON(address))))
	w.must(w.Delete("alice", "services", "shop", created.GetName()))
	w.Must(w.Create("alice", w.Object("secrets", "shop", "taken", nil)))
	u, err := w.client.PlanUndelete(t.Context(),
		Object{schema.GroupVersionResource{Version: "v1", Resource: "services"}, "shop", "o"})
	w.must(err)
	if _, err := w.client.Create(t.Context(), u, false); err != nil ||
		!slices.Equal(u.LeftOut, []string{"spec.clusterIPs (it is taken)"}) {
		t.Errorf("a taken address: %q, %v", u.LeftOut, err)
	}
	if service := w.Get("services", "shop", "o"); !reflect.DeepEqual(service.Object["spec"], map[string]any{"x": "y"}) {
		t.Errorf("a taken address: %s", text(service.Object))
	}
}

// recoverable are the resources of random namespaces.
var recoverable = []string{"configmaps", "secrets", "services", "deployments", "gears"}

// state returns what the namespace holds that people have written, by resource and name: owners are known by their
// names.
func (w *world) state() map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, resource := range recoverable {
		for _, o := range w.List(resource, "shop") {
			if metav1.GetControllerOfNoCopy(o) != nil {
				continue
			}
			content := of(o)
			unstructured.RemoveNestedField(content, "metadata", "ownerReferences")
			for _, owner := range o.GetOwnerReferences() {
				named := w.Get(strings.ToLower(owner.Kind)+"s", "shop", owner.Name)
				content["owner"] = fmt.Sprint(owner.Name, named != nil && named.GetUID() == owner.UID)
			}
			all[resource+"/"+o.GetName()] = content
		}
	}
	return all
}

// change makes a random change in the namespace.
func (w *world) change() {
	resource := recoverable[w.random.IntN(len(recoverable))]
	name := fmt.Sprint("o", w.random.IntN(3))
	switch now := w.Get(resource, "shop", name); {
	case now == nil:
		o := w.object(resource, name)
		// An owner, which is not itself owned by what it owns: objects own those of later resources.
		if at := slices.Index(recoverable, resource); at > 0 && w.random.IntN(2) == 0 {
			owner := w.Get(recoverable[w.random.IntN(at)], "shop", fmt.Sprint("o", w.random.IntN(3)))
			if owner != nil && metav1.GetControllerOfNoCopy(owner) == nil {
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(),
					Name: owner.GetName(), UID: owner.GetUID()}})
			}
		}
		if w.random.IntN(8) == 0 {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Other", Name: "x", UID: "x",
				Controller: new(true)}})
		}
		w.Must(w.Create(w.user(), o))
	case w.random.IntN(3) == 0:
		w.must(w.Delete(w.user(), resource, "shop", name))
		w.collect()
	default:
		w.edit(resource, name)
	}
}

// collect deletes what has no owner any more, as the garbage collector does.
func (w *world) collect() {
	for _, resource := range recoverable { // an owner is of an earlier resource
		for _, o := range w.List(resource, "shop") {
			for _, owner := range o.GetOwnerReferences() {
				if owner.Controller != nil {
					continue
				}
				if of := w.Get(strings.ToLower(owner.Kind)+"s", "shop", owner.Name); of == nil || of.GetUID() != owner.UID {
					w.must(w.Delete("garbage-collector", resource, "shop", o.GetName()))
				}
			}
		}
	}
}

// carryOut makes the requests of a plan.
func (w *world) carryOut(plan *Plan) {
	w.Helper()
	for _, step := range plan.Steps {
		if err := w.client.Do(w.Context(), plan, step, false); err != nil {
			w.Errorf("%s %s: %v", step.Verb, step.Object, err)
		}
	}
	w.collect()
}

// A namespace that is rolled back is what it was: created again, updated, and pruned if that is wanted. Owners are
// those that there are now. What controllers own stays as it is, and a second time there is nothing to do.
func TestRollback_MakesTheNamespaceWhatItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	verbs := map[string]int{}
	w.cases(60, func(int) {
		for range w.random.IntN(12) {
			w.change()
		}
		then, at := w.state(), w.Revision()
		for range w.random.IntN(12) {
			w.change()
		}
		now := w.state()
		prune := w.random.IntN(2) == 0
		plan, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), prune)
		w.must(err)
		for _, step := range plan.Steps {
			verbs[step.Verb]++
		}
		w.carryOut(plan)
		want := maps.Clone(then)
		if !prune {
			for name, content := range now {
				if then[name] == nil {
					want[name] = content
				}
			}
		}
		got := w.state()
		for name := range union(want, got) {
			if !reflect.DeepEqual(got[name], want[name]) {
				t.Errorf("%s is %s, want %s", name, text(got[name]), text(want[name]))
			}
		}
		again, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), prune)
		w.must(err)
		for _, step := range again.Steps {
			t.Errorf("a second time: %s %s %s", step.Verb, step.Object, text(step.Patch))
		}
	})
	for _, verb := range []string{"create", "update", "delete"} {
		if verbs[verb] == 0 {
			t.Errorf("no case had a %s: %v", verb, verbs)
		}
	}
}

// A rollback touches what the selector selects, as it was or as it is, and nothing else: what does not exist has no
// labels that it lacks.
func TestRollback_FollowsTheSelector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	selectors := []string{"k0", "!k0", "k0=v0", "k0!=v0", "k0 in (v0,v1)", "k0 notin (v0)", "k0=v0,k1", "!k0,!k1"}
	selected := 0
	w.cases(60, func(int) {
		for range 6 {
			w.change()
		}
		old, at := w.labels(), w.Revision()
		for range 6 {
			w.change()
		}
		now := w.labels()
		selector, err := labels.Parse(selectors[w.random.IntN(len(selectors))])
		w.must(err)
		plan, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, selector, true)
		w.must(err)
		for _, step := range plan.Steps {
			name := step.Object.Resource.Resource + "/" + step.Object.Name
			then, existed := old[name]
			is, exists := now[name]
			if selected++; !(existed && selector.Matches(then) || exists && selector.Matches(is)) {
				t.Errorf("%s of %s is not selected by %s: %v, %v", step.Verb, name, selector, then, is)
			}
		}
		all, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), true)
		w.must(err)
		for _, step := range all.Steps {
			name := step.Object.Resource.Resource + "/" + step.Object.Name
			then, existed := old[name]
			is, exists := now[name]
			isPlanned := slices.ContainsFunc(plan.Steps, func(s *Step) bool { return s.Object == step.Object })
			if (existed && selector.Matches(then) || exists && selector.Matches(is)) && !isPlanned {
				t.Errorf("%s of %s is selected by %s: %v, %v", step.Verb, name, selector, then, is)
			}
		}
	})
	if selected == 0 {
		t.Error("nothing was selected")
	}
}

func (w *world) labels() map[string]labels.Set {
	all := map[string]labels.Set{}
	for _, resource := range recoverable {
		for _, o := range w.List(resource, "shop") {
			all[resource+"/"+o.GetName()] = o.GetLabels()
		}
	}
	return all
}

// A deleted namespace is brought back with what its deletion deleted, and only with that; of one that exists again,
// what is missing is created.
func TestUndelete_BringsBackANamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := 0
	w.cases(60, func(int) {
		for range w.random.IntN(16) {
			w.change()
		}
		want := w.state()
		w.DeleteNamespace("shop")
		plan, err := w.client.PlanUndeleteNamespace(t.Context())
		w.must(err)
		if plan.Steps[0].Object.String() != "namespaces/shop" {
			t.Errorf("first is %s", plan.Steps[0].Object)
		}
		w.carryOut(plan)
		created += len(plan.Steps) - 1
		got := w.state()
		for name := range union(want, got) {
			if !reflect.DeepEqual(got[name], want[name]) {
				t.Errorf("%s is %s, want %s", name, text(got[name]), text(want[name]))
			}
		}
		again, err := w.client.PlanUndeleteNamespace(t.Context())
		w.must(err)
		if len(again.Steps) > 0 {
			t.Errorf("a second time: %d steps, %s %s", len(again.Steps), again.Steps[0].Verb, again.Steps[0].Object)
		}
		for name := range got { // what is missing of it
			resource, object, _ := strings.Cut(name, "/")
			w.must(w.Delete("bob", resource, "shop", object))
			dependents := slices.Collect(maps.Values(w.state()))
			if slices.ContainsFunc(dependents, func(o map[string]any) bool {
				return strings.HasSuffix(fmt.Sprint(o["owner"]), "false")
			}) {
				break // they would be deleted too
			}
			plan, err := w.client.PlanUndeleteNamespace(t.Context())
			w.must(err)
			if len(plan.Steps) != 1 || plan.Steps[0].Verb != "create" || plan.Steps[0].Object.Name != object {
				t.Errorf("%s alone is missing: %d steps", name, len(plan.Steps))
			}
			break
		}
	})
	if created == 0 {
		t.Error("nothing was created")
	}
}

// What a namespace held is for those who may list it everywhere; without a deletion there is nothing to bring back.
func TestUndelete_OfANamespaceIsForAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.client.PlanUndeleteNamespace(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no deletion of namespace shop") {
		t.Errorf("of a namespace that was not deleted: %v", err)
	}
	w.Must(w.Create("alice", w.object("configmaps", "a")))
	w.DeleteNamespace("shop")
	w.Allow = func(_, _, _, namespace string) bool { return namespace != "" }
	alice, err := NewClient(w.Config("alice"), "shop")
	w.must(err)
	if _, err := alice.PlanUndeleteNamespace(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "ask a cluster administrator") {
		t.Errorf("of a tenant: %v", err)
	}
	w.must(w.Delete(admin, "customresourcedefinitions", "", "gears.example.com"))
	admin, err := NewClient(w.Config(""), "shop")
	w.must(err)
	plan, err := admin.PlanUndeleteNamespace(t.Context())
	w.must(err)
	if len(plan.LeftOut) > 0 {
		t.Errorf("left out is %q, of which there was nothing", plan.LeftOut)
	}
}

// What was stored of a custom resource whose definition is gone is named.
func TestRollback_NamesWhatHasNoDefinition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Must(w.Create("alice", w.object("gears", "g")))
	at := w.Revision()
	w.must(w.Delete("alice", "gears", "shop", "g"))
	w.must(w.Delete("alice", "customresourcedefinitions", "", "gears.example.com"))
	client, err := NewClient(w.Config(""), "shop") // a command asks once which resources there are
	w.must(err)
	plan, err := client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), false)
	w.must(err)
	if len(plan.LeftOut) != 1 ||
		!strings.HasPrefix(plan.LeftOut[0], "gears.example.com (its definition does not exist any more") {
		t.Errorf("left out is %q", plan.LeftOut)
	}
}

// A step does not overwrite what somebody has changed since the plan.
func TestRollback_DoesNotOverwriteWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"changed", "deleted"} {
		w.Must(w.Create("alice", w.Object("configmaps", "shop", name, map[string]any{"data": map[string]any{"v": "old"}})))
	}
	at := w.Revision()
	set := func(value string) {
		o := w.Get("configmaps", "shop", "changed")
		o.Object["data"] = map[string]any{"v": value}
		w.Must(w.Update(sqlstore.Author{User: "bob", Verb: "update"}, o))
	}
	set("new")
	w.must(w.Delete("bob", "configmaps", "shop", "deleted"))
	w.Must(w.Create("bob", w.Object("configmaps", "shop", "created", nil)))
	plan, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), true)
	w.must(err)
	set("newer")
	w.Must(w.Create("carol",
		w.Object("configmaps", "shop", "deleted", map[string]any{"data": map[string]any{"v": "hers"}})))
	created := w.Get("configmaps", "shop", "created")
	created.SetLabels(map[string]string{"used": "1"})
	w.Must(w.Update(sqlstore.Author{User: "carol", Verb: "update"}, created))
	requests := w.Requests
	for _, step := range plan.Steps {
		err := w.client.Do(t.Context(), plan, step, false)
		if isRefused := apierrors.IsConflict(err) || err == ErrExists; !isRefused { //nolint:errorlint // it is not wrapped
			t.Errorf("%s %s: %v", step.Verb, step.Object, err)
		}
	}
	if len(plan.Steps) != 3 || w.Requests != requests {
		t.Errorf("%d steps, %d requests", len(plan.Steps), w.Requests-requests)
	}
}

// The pages of the log are all changes, once and in order, whatever the size of a page; the newest are the last of
// them.
func TestChanges_OfAllPagesAreWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 * pageSize {
		w.change()
	}
	var all []history.Change
	for change, err := range w.client.Changes(t.Context(), Query{Namespace: "shop", WithStatus: true}) {
		w.must(err)
		all = append(all, *change)
	}
	rows := 0
	_, err := w.client.Tables(t.Context(), Query{Namespace: "shop", WithStatus: true}, func(table *metav1.Table) error {
		rows += len(table.Rows)
		return nil
	})
	w.must(err)
	if len(all) < 3*pageSize || len(all) >= 4*pageSize || rows != len(all) ||
		!slices.IsSortedFunc(all, func(a, b history.Change) int {
			return int(a.Revision - b.Revision)
		}) {
		t.Errorf("%d changes, %d rows", len(all), rows)
	}
	for _, n := range []int{1, pageSize, pageSize + 1, 3 * pageSize, 4 * pageSize} {
		search := history.Search{Namespace: "shop", Selector: Query{WithStatus: true}.selector(), Limit: n}
		newest, more, _, err := search.Newest(w.client.getter(t.Context()))
		w.must(err)
		want := slices.Clone(all[max(0, len(all)-n):])
		slices.Reverse(want)
		if more != (n < len(all)) || !slices.EqualFunc(newest, want, func(a, b history.Change) bool {
			return a.Revision == b.Revision
		}) {
			t.Errorf("the newest %d are %d, more: %v", n, len(newest), more)
		}
	}
}

// What is created again is owned by the owner that there is now, under another UID.
func TestRollback_FindsTheOwnersOfNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.Must(w.Create("alice", w.object("configmaps", "owner")))
	owned := w.object("secrets", "owned")
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner",
		UID: owner.GetUID()}})
	w.Must(w.Create("alice", owned))
	at := w.Revision()
	w.must(w.Delete("bob", "configmaps", "shop", "owner"))
	w.collect()
	again := w.Must(w.Create("bob", w.object("configmaps", "owner")))
	plan, err := w.client.PlanRollback(t.Context(), moment.Moment{Revision: at}, labels.Everything(), false)
	w.must(err)
	w.carryOut(plan)
	if o := w.Get("secrets", "shop", "owned"); o == nil || len(o.GetOwnerReferences()) != 1 ||
		o.GetOwnerReferences()[0].UID != again.GetUID() {
		t.Errorf("it is %v", o)
	}
}
