package client

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"byre/apiserver/history"
	"byre/cmd/byre/client/clienttest"
	"byre/sqlstore"
)

// terminal runs the commands of the plugin against a cluster in memory.
type terminal struct {
	*testing.T
	*clienttest.Cluster
	flags []string
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	cluster := clienttest.New()
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
	if out := c.prints(words("log --who bob -o name")); out != "change.history.byre.dev/"+second+"\nchange.history.byre.dev/"+strconv.FormatInt(c.Revision(), 10)+"\n" {
		t.Errorf("the names are %q", out)
	}
	var list history.ChangeList
	if err := json.Unmarshal([]byte(c.prints(words("log cm a -o json"))), &list); err != nil || len(list.Items) != 2 || list.Kind != "ChangeList" || list.Items[1].Changed[0].New != `"two"` {
		t.Errorf("the log as JSON is %+v, %v", list, err)
	}
	c.prints(words("log cm/a -o yaml"), "kind: ChangeList\n", "\n  - new: '\"two\"'\n")
	if out := c.prints(words("blame cm/b")); strings.Contains(out, "\x1b") || !strings.Contains(out, "data.key") {
		t.Errorf("what others have written moves the cursor: %q", out)
	}

	c.prints(append(words("show cm/a --at"), first), "key: one\n")
	c.prints(append(words("show cm/a -o json --at"), second), `"key": "two"`)
	c.prints(words("diff cm/a"), "-  key: one\n", "+  key: two\n", "configmaps/a at revision "+first, "configmaps/a at revision "+second)
	c.prints(append(words("diff cm/a --to"), first), "configmaps/a, which did not exist", "+  key: one\n")
	c.prints(append(words("diff cm/a --color always --at"), first), "\x1b[31m-  key: one\x1b[m\n", "\x1b[32m+  key: two\x1b[m\n", "\x1b[36m@@", "\x1b[1m--- ")
	var fields []history.FieldChange
	if err := json.Unmarshal([]byte(c.prints(words("diff cm/a -o json"))), &fields); err != nil || !slices.Equal(fields, []history.FieldChange{{Path: "data.key", Old: `"one"`, New: `"two"`}}) {
		t.Errorf("the differences are %+v, %v", fields, err)
	}
	c.prints(words("diff cm/a -o yaml"), "- new: '\"two\"'\n  old: '\"one\"'\n  path: data.key\n")
	c.prints(words("blame cm/a"), "REVISION", "bobs-tool", "data.key", "alice")

	for line, want := range map[string]string{
		"log cm/a -o xml": "--output must be table, wide, json, yaml or name", "diff cm/a -o xml": "--output must be diff, json or yaml",
		"blame cm/a -o xml": "--output must be table, json or yaml", "show --at 1 cm/a -o xml": "--output must be yaml or json", "diff cm/a --color red": "--color must be auto, always or never",
		"show cm/a": `"at" not set`, "show cm/a --at noon": "--at: ", "diff cm/a --to noon": "--to: ", "diff cm/a --at noon": "--at: ", "log --since soon": "--since: ",
		"show cm/none --at 1": "did not exist at revision 1", "blame cm/none": "configmaps/none does not exist", "show nothing/x --at 1": "no matches for",
		"log cm": "name one object", "log cm/a/b": "name one object", "blame cm/": "name one object",
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
		if out := c.fails("nobody answered; use --yes", args...); !strings.Contains(out, `replace /data/key "one"`) || strings.Contains(out, "test /") {
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
	if out, _, err := c.run("y\n", "undo", second); err != nil || !strings.Contains(out, "revision "+second+" of configmaps/a is undone") || value("a") != "one" {
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
	if out := c.fails("nobody answered", "undelete", "cm/a"); !strings.Contains(out, "create configmaps/a as it was before revision "+deleted+" deleted it") {
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
	if err == nil || err.Error() != "1 of 3 requests failed: run the command again when their causes are gone" || !strings.Contains(errOut, "update configmaps/b: ") ||
		!strings.Contains(out, "configmaps/a is as it was") || !strings.Contains(out, "configmaps/c is as it was") || !strings.Contains(out, "left out: configmaps/d (created since; --prune deletes it)") {
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
	c.prints(words("undelete --dry-run=server"), "create namespaces/shop", "create configmaps/a", "can't check the other objects")
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
		"log deployments.a": "deployments.apps/\n:6\n", "log configmaps/k": "configmaps/kept\n:4\n", "blame configmaps k": "kept\n:4\n",
		"undelete configmaps/": "configmaps/lost\n:4\n", "undelete gears/": ":4\n", "undo " + kept: kept + "\talice create configmaps/kept\n:36\n", "undo none": ":36\n",
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
