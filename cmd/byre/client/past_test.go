package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"byre/apiserver/history"
	"byre/apiserver/storage/moment"
	"byre/sqlstore"
)

// terminal runs the commands of the plugin against a cluster in memory.
type terminal struct {
	*testing.T
	*fakeCluster
	flags []string
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	cluster := newFakeCluster()
	server := httptest.NewServer(cluster)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return &terminal{t, cluster, []string{"--server", server.URL, "--kubeconfig", kubeconfig, "-n", "shop"}}
}

// run runs a command with an answer on its standard input.
func (c *terminal) run(answer string, args ...string) (out, errOut string, err error) {
	root := NewPluginCommand(func() string { return "" })
	var stdout, stderr bytes.Buffer
	root.SetIn(strings.NewReader(answer))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(slices.Concat(args[:1], c.flags, args[1:]))
	err = root.ExecuteContext(c.Context())
	return stdout.String(), stderr.String(), err
}

// prints expects that a command succeeds, and that texts are in what it prints.
func (c *terminal) prints(args []string, want ...string) string {
	c.Helper()
	out, errOut, err := c.run("", args...)
	if err != nil || errOut != "" {
		c.Errorf("%q: %v, %s", args, err, errOut)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			c.Errorf("%q has no %q:\n%s", args, text, out)
		}
	}
	return out
}

// fails expects that a command fails with an error, and writes nothing.
func (c *terminal) fails(want string, args ...string) string {
	c.Helper()
	before := c.Requests
	out, errOut, err := c.run("", args...)
	if err == nil || !strings.Contains(err.Error(), want) || c.Requests != before {
		c.Errorf("%q: %v, want %q, %d writes\n%s%s", args, err, want, c.Requests-before, out, errOut)
	}
	return out
}

func words(line string) []string { return strings.Fields(line) }

// set makes a ConfigMap by a user, or changes it, and returns the revision.
func (c *terminal) set(who, name, value string) string {
	o := c.Object("configmaps", "shop", name, map[string]any{"data": map[string]any{"key": value}})
	if now := c.Get("configmaps", "shop", name); now == nil {
		return c.Must(c.Create(who, o)).GetResourceVersion()
	}
	return c.Must(c.Update(sqlstore.Author{User: who, Verb: "update", Manager: who + "s-tool"}, o)).GetResourceVersion()
}

// The commands show an object's past in each of their formats.
func TestPast_IsShownInEachFormat(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	first := c.set("alice", "a", "one")
	second := c.set("bob", "a", "two")
	c.set("bob", "b", "x\x1b[2Jy")

	out := c.prints(words("log cm/a"), "REVISION", "create", "configmaps/a", `data.key: "one" → "two"`)
	if strings.Contains(out, "REAL USER") || strings.Contains(out, "configmaps/b") || strings.Count(out, "\n") != 3 {
		t.Errorf("the log is\n%s", out)
	}
	c.prints(words("log -o wide"), "REAL USER", "bobs-tool")
	if out := c.prints(words("log --who bob -o name")); out != "change.history.byre.dev/"+second+
		"\nchange.history.byre.dev/"+strconv.FormatInt(c.Revision(), 10)+"\n" {
		t.Errorf("the names are %q", out)
	}
	var list history.ChangeList
	if err := json.Unmarshal([]byte(c.prints(words("log cm a -o json"))), &list); err != nil || len(list.Items) != 2 ||
		list.Kind != "ChangeList" || list.Items[1].Changed[0].New != `"two"` {
		t.Errorf("the log as JSON is %+v, %v", list, err)
	}
	if out := c.prints(append(words("log -o name --until"), first)); strings.Count(out, "\n") != 1 {
		t.Errorf("the log until %s is %q", first, out)
	}
	if out := c.prints(append(words("log -o name --until"), second, "--since", first)); strings.Count(out, "\n") != 1 {
		t.Errorf("the log from %s to %s is %q", first, second, out)
	}
	c.prints(words("log -o name --until 2027-01-01T00:00:00Z --since 2026-12-01T12:00:00Z"), "/"+second+"\n")
	if out, errOut, err := c.run("", "log", "-o", "name", "--since", "2026-12-01 12:00Z"); err != nil ||
		!strings.Contains(out, "/"+second+"\n") || errOut != "--since 2026-12-01 12:00Z is 2026-12-01T12:00:00Z\n" {
		t.Errorf("the log since a time without a T is %q, %q, %v", out, errOut, err)
	}
	c.prints(words("log cm/a -o yaml"), "kind: ChangeList\n", "\n  - new: '\"two\"'\n")
	if out := c.prints(words("blame cm/b")); strings.Contains(out, "\x1b") || !strings.Contains(out, "data.key") {
		t.Errorf("what others have written moves the cursor: %q", out)
	}

	c.prints(append(words("show cm/a --at"), first), "key: one\n")
	c.prints(append(words("show cm/a -o json --at"), second), `"key": "two"`)
	c.prints(words("diff cm/a"), "-  key: one\n", "+  key: two\n", "configmaps/a at revision "+first,
		"configmaps/a at revision "+second)
	c.prints(append(words("diff cm/a --to"), first), "configmaps/a, which did not exist", "+  key: one\n")
	c.prints(append(words("diff cm/a --color always --at"), first), "\x1b[31m-  key: one\x1b[m\n",
		"\x1b[32m+  key: two\x1b[m\n", "\x1b[36m@@", "\x1b[1m--- ")
	var fields []history.FieldChange
	if err := json.Unmarshal([]byte(c.prints(words("diff cm/a -o json"))), &fields); err != nil ||
		!slices.Equal(fields, []history.FieldChange{{Path: "data.key", Old: `"one"`, New: `"two"`}}) {
		t.Errorf("the differences are %+v, %v", fields, err)
	}
	c.prints(words("diff cm/a -o yaml"), "- new: '\"two\"'\n  old: '\"one\"'\n  path: data.key\n")
	c.prints(words("blame cm/a"), "REVISION", "bobs-tool", "data.key", "alice")

	for line, want := range map[string]string{
		"log cm/a -o xml":         "--output must be table, wide, json, yaml or name",
		"diff cm/a -o xml":        "--output must be diff, json or yaml",
		"blame cm/a -o xml":       "--output must be table, json or yaml",
		"show --at 1 cm/a -o xml": "--output must be yaml or json",
		"diff cm/a --color red":   "--color must be auto, always or never",
		"show cm/a":               `"at" not set`, "show cm/a --at noon": "--at: ", "diff cm/a --to noon": "--to: ",
		"diff cm/a --at noon": "--at: ", "log --since soon": "--since: ",
		"log --until 2026-13-01": "--until: ", "log --follow --until 2h": "without --until", "show cm/a --at 0": "revision 0",
		"show cm/none --at 1": "did not exist at revision 1", "blame cm/none": "configmaps/none does not exist",
		"show nothing/x --at 1": "no matches for",
		"log cm":                "name one object", "log cm/a/b": "name one object", "blame cm/": "name one object",
	} {
		c.fails(want, words(line)...)
	}
	c.DeleteHistory("configmaps", c.Revision())
	c.prints(words("blame cm/a"), "≤ ")
	c.prints(words("diff cm/a"))
	c.fails("does not reach back to", append(words("show cm/a --at"), first)...)
}

// A command that writes says what it would do, asks, and does it only if the answer is yes.
func TestPast_AsksBeforeItWrites(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	first := c.set("alice", "a", "one")
	second := c.set("bob", "a", "two")
	value := func(name string) string {
		value, _, _ := unstructured.NestedString(c.GetOr(name), "data", "key")
		return value
	}
	for _, args := range [][]string{{"undo", second}, {"rollback", "--at", first}} {
		if out := c.fails("nobody answered; use --yes", args...); !strings.Contains(out, `replace data.key "one"`) ||
			strings.Contains(out, "test /") {
			t.Errorf("%q says\n%s", args, out)
		}
		if out, _, err := c.run("n\n", args...); err != nil || !strings.Contains(out, "nothing done") || value("a") != "two" {
			t.Errorf("%q after no: %s, %v", args, out, err)
		}
		c.prints(append(args, "--dry-run=server"), "(server dry run)")
		c.fails("--dry-run must be none or server", append(args, "--dry-run=client")...)
		if value("a") != "two" {
			t.Errorf("%q has written %q", args, value("a"))
		}
	}
	if out, _, err := c.run("y\n", "undo", second); err != nil ||
		!strings.Contains(out, "revision "+second+" of configmaps/a is undone") || value("a") != "one" {
		t.Errorf("after yes: %s, %v", out, err)
	}
	c.prints([]string{"undo", second, "--yes"}, "nothing to undo")
	c.prints([]string{"undo", first, "--dry-run=server"}, "delete configmaps/a")
	for _, revision := range []string{"x", "0", "-1h"} {
		c.fails("is not a revision", "undo", "--", revision)
	}

	c.fails("has no version", "undelete", "cm/never", "--yes")
	c.prints([]string{"undelete", "cm/a"}, "configmaps/a exists: nothing to do")
	c.Must(nil, c.Delete("bob", "configmaps", "shop", "a"))
	deleted := strconv.FormatInt(c.Revision(), 10)
	if out := c.fails("nobody answered", "undelete", "cm/a"); !strings.Contains(out,
		"create configmaps/a as it was before revision "+deleted+" deleted it") {
		t.Errorf("undelete says %s", out)
	}
	c.prints(words("undelete cm/a --dry-run=server"), "configmaps/a is created again (server dry run)")
	c.prints(words("undelete cm/a --yes"), "configmaps/a is created again\n")
	if value("a") != "one" {
		t.Errorf("it is %q", value("a"))
	}
}

// GetOr returns a ConfigMap, or none.
func (c *terminal) GetOr(name string) map[string]any {
	if o := c.Get("configmaps", "shop", name); o != nil {
		return o.Object
	}
	return nil
}

// A request of a rollback that fails does not keep it from the others, and the command says how many have failed.
func TestRollback_GoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	for _, name := range []string{"a", "b", "c"} {
		c.set("alice", name, "old")
	}
	at := strconv.FormatInt(c.Revision(), 10)
	for _, name := range []string{"a", "b", "c"} {
		c.set("bob", name, "new")
	}
	c.set("bob", "d", "new")
	c.BeforeWrite = func(_ string, o *unstructured.Unstructured) error {
		if o.GetName() == "b" {
			return errRefused
		}
		return nil
	}
	out, errOut, err := c.run("", "rollback", "--at", at, "--yes")
	if err == nil || err.Error() != "1 of 3 requests failed: run the command again when their causes are gone" ||
		!strings.Contains(errOut, "update configmaps/b: ") ||
		!strings.Contains(out, "configmaps/a is as it was") || !strings.Contains(out, "configmaps/c is as it was") ||
		!strings.Contains(out, "left out: configmaps/d (created since; --prune deletes it)") {
		t.Errorf("%v, %s\n%s", err, errOut, out)
	}
	c.BeforeWrite = nil
	c.prints([]string{"rollback", "--at", at, "--yes", "--prune"}, "configmaps/b is as it was", "configmaps/d is deleted")
	c.prints([]string{"rollback", "--at", at, "--yes", "--prune"}, "nothing to do")
	c.fails("--selector: ", "rollback", "--at", at, "-l", "a in")
	c.fails("--at: ", "rollback", "--at", "noon")
}

// Without the namespace nothing can be created in it, and a server can't check that.
func TestUndelete_BringsBackTheNamespaceFirst(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	c.set("alice", "a", "one")
	c.DeleteNamespace("shop")
	c.prints(words("undelete --dry-run=server"), "create namespaces/shop", "create configmaps/a",
		"can't check the other objects")
	if c.Get("namespaces", "", "shop") != nil {
		t.Error("a dry run has created it")
	}
	c.BeforeWrite = func(string, *unstructured.Unstructured) error { return errRefused }
	c.fails("refused", words("undelete --yes")...)
	c.BeforeWrite = nil
	c.prints(words("undelete --yes"), "namespaces/shop is created again", "configmaps/a is created again")
}

// Tab completes commands, types, names and revisions.
func TestPast_IsCompleted(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	kept := c.set("alice", "kept", "1")
	c.set("alice", "lost", "1")
	c.Must(nil, c.Delete("alice", "configmaps", "shop", "lost"))
	for line, want := range map[string]string{
		"log deployments.a": "deployments.apps/\n:6\n", "log configmaps/k": "configmaps/kept\n:4\n",
		"blame configmaps k":   "kept\n:4\n",
		"undelete configmaps/": "configmaps/lost\n:4\n", "undelete gears/": ":4\n",
		"undo " + kept: kept + "\talice create configmaps/kept\n:36\n", "undo none": ":36\n",
		"log -o w": "table\nwide\njson\nyaml\nname\n:4\n", "diff --color n": "auto\nalways\nnever\n:4\n",
	} {
		args := words(line)
		args = slices.Concat([]string{"__complete", args[0]}, c.flags, args[1:])
		root := NewPluginCommand(func() string { return "" })
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		root.SetArgs(args)
		if err := root.ExecuteContext(t.Context()); err != nil || out.String() != want {
			t.Errorf("completion of %q: %q, %v, want %q", line, out.String(), err, want)
		}
	}
}

// A timeline has a screen of text without --all, and all rows as data.
func TestTimeline_IsShownInEachFormat(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	var last string
	for i := range 30 {
		last = c.set(fmt.Sprint("user-", i%3), "a", fmt.Sprint("x", i))
	}
	c.set("bob", "b", "1")
	around := []string{"timeline", "cm/a", "--around", last}
	out := c.prints(around, "TIME", "user-2", "update", "configmaps/a", `data.key: "x28" → "x29"`, "itself",
		"\n6 earlier rows since 2026-12-01T")
	if rows := strings.Count(out, "\n"); rows != 27 || strings.Contains(out, "configmaps/b") {
		t.Errorf("%d lines:\n%s", rows, out)
	}
	if out := c.prints(append(around, "--all")); strings.Count(out, "\n") != 32 {
		t.Errorf("all rows are\n%s", out)
	}
	var found history.Incident
	if err := json.Unmarshal([]byte(c.prints(append(around, "-o", "json"))), &found); err != nil || len(found.Rows) != 31 ||
		strconv.FormatInt(found.Rows[0].Revision, 10) != last || found.Rows[0].Why != "itself" {
		t.Errorf("as JSON there are %d rows, %v", len(found.Rows), err)
	}
	c.prints(append(around, "-o", "yaml"), "\n- changed:\n")
	c.prints([]string{"timeline", "cm/b", "--around", "2026-12-01T03:00:00Z"}, "nothing that bears on it has changed since")
	c.fails("configmaps/none does not exist, and the history has no version of it", "timeline", "cm/none")
	c.Allow = func(_, _, resource, namespace string) bool {
		return resource != "secrets" && (resource != "changes" || namespace != "")
	}
	c.prints(append(around, "--as", "alice"), "not asked: changes of cluster-scoped objects, secrets (no right to list)\n")
}

// fake answers with texts for paths. Of lists of changes, it answers those of a resource whose history is
// too short with 410.
func fake(t *testing.T, expired string, answers map[string]string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if selector := r.URL.Query().Get("fieldSelector"); slices.Contains(strings.Split(selector, ","),
			"object.resource="+expired) {
			w.WriteHeader(http.StatusGone)
			fmt.Fprintf(w,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"the history of %s does not reach back to 3"}`, expired)
			return
		}
		text, found := answers[r.URL.Path]
		if !found {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound","details":{"name":"x"}}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const (
	changesPath = "/apis/history.byre.dev/v1/namespaces/shop/changes"
	verbsOfAll  = `"verbs":["create","delete","get","list","update"]`
	unreadable  = `"metadata":{"name":"5"},"revision":5,"replaces":2,"unreadable":true,"object":{"group":"","resource":"configmaps","namespace":"shop","name":"sealed"}`
)

// unreadableChange is a server with a change of a ConfigMap that can't be decrypted any more.
func unreadableChange() map[string]string {
	return map[string]string{
		"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[
			{"name":"configmaps","kind":"ConfigMap","namespaced":true,` + verbsOfAll + `},{"name":"pods","kind":"Pod","namespaced":true,` + verbsOfAll + `}]}`,
		"/api/v1/namespaces/shop/configmaps": `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}`,
		"/api/v1/namespaces/shop/pods":       `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`,
		changesPath:                          `{"kind":"ChangeList","items":[{` + unreadable + `}]}`,
		changesPath + "/5":                   `{"kind":"Change",` + unreadable + `}`,
		"/apis/history.byre.dev/v1/namespaces/default/changes": `{"kind":"ChangeList","items":[]}`,
	}
}

func TestUndo_RefusesAnUnreadableChange(t *testing.T) {
	t.Parallel()
	_, err := fake(t, "none", unreadableChange()).PlanUndo(t.Context(), 5)
	if err == nil || !strings.Contains(err.Error(), "can't be read any more") {
		t.Errorf("the error is %v", err)
	}
}

// Pods have a shorter history than what makes them.
func TestRollback_LeavesOutWhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	plan, err := fake(t, "pods", unreadableChange()).PlanRollback(t.Context(), moment.Moment{Revision: 3}, labels.Everything(),
		true)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.Join(plan.LeftOut, "\n")
	for _, want := range []string{"pods (the history of pods does not reach back to 3",
		"configmaps/sealed (revision 5: the object can't be read any more)"} {
		if !strings.Contains(left, want) {
			t.Errorf("%q is not left out: %s", want, left)
		}
	}
	if len(plan.Steps) > 0 {
		t.Errorf("%d steps", len(plan.Steps))
	}
}

func TestRollback_NeedsTheHistoryOfWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	_, err := fake(t, "configmaps", unreadableChange()).PlanRollback(t.Context(), moment.Moment{Revision: 3}, labels.Everything(),
		true)
	if err == nil || !strings.Contains(err.Error(), "the history of configmaps does not reach back to 3") ||
		apierrors.IsNotFound(err) {
		t.Errorf("the error is %v", err)
	}
}

func TestTypes_AreThoseThatCanBeListed(t *testing.T) {
	t.Parallel()
	if got := strings.Join(fake(t, "none", unreadableChange()).Types(), " "); got != "configmaps pods" {
		t.Errorf("the types are %s", got)
	}
}

// A completion shows what may have been meant.
func TestRecent_IsWhatCanBeUndone(t *testing.T) {
	t.Parallel()
	answers := unreadableChange()
	answers[changesPath] = `{"items":[{"revision":10,"verb":"expire"},{"revision":9,"verb":"deletecollection"},{"revision":8,"verb":"delete"},
		{"revision":7,"verb":"patch"},{"revision":6,"verb":"create"},{"revision":5,"unreadable":true,"verb":"patch"}]}`
	changes, err := fake(t, "none", answers).Recent(t.Context())
	if err != nil || len(changes) != 2 || changes[0].Revision != 7 || changes[1].Revision != 6 {
		t.Errorf("the changes are %+v, %v", changes, err)
	}
}

// Follow goes on after the last change that it has received when the connection ends, and fails when
// what comes next is deleted.
func TestFollow_GoesOnAndSaysWhatIsGone(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{}`) // discovery
			return
		}
		asked = append(asked, r.URL.Query().Get("resourceVersion"))
		switch len(asked) {
		case 1:
			fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"},"rows":[{"cells":["7"]}]}}
				{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w,
				`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`)
		}
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	err = client.Follow(t.Context(), Query{Namespace: "shop"}, "5", func(table *metav1.Table) error {
		rows += len(table.Rows)
		return nil
	})
	if rows != 1 || !slices.Equal(asked, []string{"5", "9", "9"}) || err == nil ||
		err.Error() != "the changes after revision 9 can't be followed any more: run the command again: too old" {
		t.Errorf("%d rows, asked after %q, %v", rows, asked, err)
	}
}

func TestFind_LearnsWhatIsDefinedLater(t *testing.T) {
	t.Parallel()
	answers := unreadableChange()
	client := fake(t, "", answers)
	if _, err := client.Find([]string{"configmaps/settings"}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Find([]string{"gears/g"}); !meta.IsNoMatchError(err) {
		t.Fatalf("before the definition: %v", err)
	}
	answers["/apis"] =
		`{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}]}]}`
	answers["/apis/example.com/v1"] =
		`{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"gears","kind":"Gear","namespaced":true,` + verbsOfAll + `}]}`
	if o, err := client.Find([]string{"gears/g"}); err != nil || o.String() != "gears.example.com/g" {
		t.Errorf("after it: %s, %v", o, err)
	}
}

// TestCreate_ReportsARefusalWithoutDetails: a webhook may answer so.
func TestCreate_ReportsARefusalWithoutDetails(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid","message":"no"}`)
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL}, "shop")
	if err != nil {
		t.Fatal(err)
	}
	refused := &Undelete{
		Object: Object{corev1.SchemeGroupVersion.WithResource("configmaps"), "shop", "b"},
		Content: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "b"}}},
	}
	if _, err := client.Create(t.Context(), refused, false); !apierrors.IsInvalid(err) {
		t.Error(err)
	}
}
