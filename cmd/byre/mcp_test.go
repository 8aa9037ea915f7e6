package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/history"
	"byre/sqlstore/storetest"
)

// model calls tools, as the client of a model does.
type model struct {
	*chronicle

	session *mcp.ClientSession
}

// What the tools answer with.
type (
	rowsAnswer struct {
		Columns                     []string
		Rows                        [][]json.RawMessage
		ResourceVersion, Incomplete string
	}
	changesAnswer struct {
		Changes []struct {
			Revision                     int64
			Who, Verb, Namespace, Object string
			Changed                      []history.FieldChange
		}
		Incomplete string
	}
	diffAnswer struct {
		From, To int64
		Changed  []history.FieldChange
	}
	blameAnswer struct {
		Fields []struct {
			Path, Who string
			Value     any
			Revision  int64
			Time      *time.Time
		}
	}
)

// model returns a client of the tools with the rights of a user; of the administrator if it is empty.
func (h *chronicle) model(user, namespace string, rows int, size string) *model {
	h.Helper()
	executable, err := os.Executable()
	h.must(err)
	program := exec.Command(executable, "mcp", "--kubeconfig", filepath.Join(h.dir, "admin.kubeconfig"), "--as", user,
		"--namespace", namespace,
		"--max-rows", strconv.Itoa(rows), "--max-bytes", size)
	program.Env = append(os.Environ(), asProgram+"=1")
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(h.Context(),
		&mcp.CommandTransport{Command: program}, nil)
	h.must(err)
	h.Cleanup(func() { _ = session.Close() }) // the program ends with it
	return &model{h, session}
}

// call calls a tool, and returns the texts of its answer.
func (m *model) call(tool string, arguments map[string]any) (text string, result *mcp.CallToolResult) {
	m.Helper()
	result, err := m.session.CallTool(m.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		m.Fatalf("%s %v: %v", tool, arguments, err)
	}
	var texts []string
	for _, content := range result.Content {
		texts = append(texts, content.(*mcp.TextContent).Text)
	}
	return strings.Join(texts, "\n"), result
}

// answer calls a tool that must succeed, expects texts in its answer, and decodes the structured content.
func (m *model) answer(tool string, arguments map[string]any, into any, want ...string) {
	m.Helper()
	text, result := m.call(tool, arguments)
	if result.IsError {
		m.Fatalf("%s %v: %s", tool, arguments, text)
	}
	for _, part := range want {
		if !strings.Contains(text, part) {
			m.Errorf("%s %v has no %q: %s", tool, arguments, part, text)
		}
	}
	if into == nil {
		return
	}
	content, err := json.Marshal(result.StructuredContent)
	m.must(err)
	m.must(json.Unmarshal(content, into))
}

// refuse calls a tool that must answer with an error for the model.
func (m *model) refuse(tool string, arguments map[string]any, want string) {
	m.Helper()
	if text, result := m.call(tool, arguments); !result.IsError || !strings.Contains(text, want) {
		m.Errorf("%s %v: %s, want an error with %q", tool, arguments, text, want)
	}
}

// A model finds what there is, and who made it so.
func TestMCP_ToolsAnswer(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, flags ...string) {
		h := newChronicle(t, append(flags, "--controllers=")...)
		h.makeNamespace("shop")
		h.write("shop", "settings", "one")
		h.write("shop", "settings", "two")
		h.write("shop", "other", "x")
		m := h.model("", "shop", 200, "64Ki")

		var rows rowsAnswer
		m.answer("query",
			map[string]any{"sql": "SELECT name, 9007199254740993 AS n FROM configmaps WHERE namespace = ?1 AND length(name) > ?2", "parameters": []any{"shop", 6}}, &rows, `"rows":[["settings",9007199254740993]]`)
		if len(rows.Rows) != 1 || !slices.Equal(rows.Columns, []string{"name", "n"}) || rows.ResourceVersion == "" ||
			rows.Incomplete != "" {
			t.Errorf("the rows are %+v", rows)
		}
		m.answer("tables", nil, nil, `["pods","",`, `["containers",`, `["deployments","apps","v1",`)
		m.answer("tables", map[string]any{"table": "pods"}, nil, `["node",`, "spec.nodeName")

		object := map[string]any{"resource": "cm", "name": "settings"}
		var list changesAnswer
		m.answer("changes", object, &list)
		if len(list.Changes) != 2 || list.Changes[0].Verb != "update" || list.Changes[1].Verb != "create" ||
			list.Changes[0].Object != "configmaps/settings" ||
			len(list.Changes[0].Changed) != 1 || list.Changes[0].Changed[0].New != `"two"` {
			t.Fatalf("the changes are %+v", list)
		}
		updated, created := list.Changes[0], list.Changes[1]
		for _, selected := range []struct {
			want      int
			arguments map[string]any
		}{
			{3, map[string]any{"resource": "configmaps"}},
			{3, map[string]any{"resource": "configmaps", "since": "1h", "who": created.Who}},
			{0, map[string]any{"who": "nobody"}},
			{1, map[string]any{"resource": "namespaces", "name": "shop"}},
			{3, map[string]any{"allNamespaces": true, "resource": "configmaps", "since": "1h", "namespace": "shop"}},
		} {
			m.answer("changes", selected.arguments, &list)
			count := 0
			for _, c := range list.Changes {
				if c.Namespace != "kube-system" && !strings.HasPrefix(c.Object, "configmaps/kube-root-ca") {
					count++
				}
			}
			if count != selected.want {
				t.Errorf("%v has %d changes, want %d: %+v", selected.arguments, count, selected.want, list)
			}
		}

		var changed diffAnswer
		m.answer("diff", object, &changed, "-  key: one\n", "+  key: two\n")
		if changed.From != created.Revision || changed.To != updated.Revision || len(changed.Changed) != 1 ||
			changed.Changed[0].Path != "data.key" {
			t.Errorf("the difference is %+v", changed)
		}
		then := map[string]any{"resource": "configmaps", "name": "settings", "namespace": "shop",
			"at": strconv.FormatInt(created.Revision, 10)}
		m.answer("show", then, nil, "key: one")
		m.answer("show", object, nil, "key: two")
		then["to"] = then["at"]
		m.answer("diff", then, nil, "there is no difference")
		var blamed blameAnswer
		m.answer("blame", object, &blamed)
		if first := blamed.Fields[0]; first.Path != "data.key" || first.Value != "two" ||
			first.Revision != updated.Revision || first.Who != updated.Who || first.Time == nil {
			t.Errorf("the field that was set last is %+v", first)
		}

		m.refuse("query", map[string]any{"sql": "SELECT nam FROM pods"}, "no such column: nam, at line 1, column 8")
		m.refuse("query", map[string]any{"sql": "DELETE FROM pods"}, "table pods may not be modified")
		m.refuse("query", map[string]any{}, "sql")
		m.refuse("tables", map[string]any{"table": "pod"}, `there is no table "pod"`)
		m.refuse("show", map[string]any{"resource": "cm", "name": "never"}, "configmaps/never does not exist")
		m.refuse("show", map[string]any{"resource": "nothing", "name": "a"}, "nothing")
		m.refuse("show", map[string]any{"resource": "cm", "name": "settings", "at": "long ago"},
			`"long ago" is neither a revision`)
		m.refuse("changes", map[string]any{"name": "settings"}, "name the resource")
		m.refuse("changes", map[string]any{"since": "soon"}, `"soon" is neither a revision nor a time`)
	})
}

// A tenant's model sees the tenant's namespace, and what the server refuses it is told.
func TestMCP_SeesWhatTheUserSees(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	for _, namespace := range []string{"shop", "bank"} {
		h.makeNamespace(namespace)
		h.write(namespace, "settings", "canary-"+namespace+"-config")
	}
	h.bind("", "alice", "byre:sql-user")
	h.bind("shop", "alice", "configmaps")
	h.bind("shop", "alice", "byre:history-viewer")
	h.awaitRights("alice", inShop)
	m := h.model("alice", "shop", 200, "64Ki")
	ask := map[string]any{"sql": "SELECT namespace, object ->> '$.data.key' AS key FROM configmaps"}
	storetest.Eventually(t, "alice may ask", func() bool {
		text, result := m.call("query", ask)
		return !result.IsError && strings.Contains(text, `["shop","canary-shop-config"]`)
	})
	if text, _ := m.call("query", ask); strings.Contains(text, "bank") {
		t.Errorf("alice's rows are %s", text)
	}
	m.answer("query", map[string]any{"sql": "SELECT name FROM secrets"}, nil, `"rows":[]`, `"warnings":["`)
	m.answer("changes", nil, nil, "configmaps/settings")
	bank := map[string]any{"resource": "cm", "name": "settings", "namespace": "bank"}
	for _, tool := range []string{"show", "diff", "blame", "changes"} {
		m.refuse(tool, bank, "forbidden")
	}
	m.refuse("changes", map[string]any{"allNamespaces": true}, "forbidden")

	// The user of the manual reads the present and the past, and no Secrets.
	_, manifest, _ := strings.Cut(packaged(t, "docs/mcp.md"), "```yaml\n")
	manifest, _, _ = strings.Cut(manifest, "```")
	h.apply(manifest)
	_, err := h.kube.CoreV1().Secrets("shop").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}}, metav1.CreateOptions{})
	h.must(err)
	m = h.model("system:serviceaccount:default:model", "shop", 200, "64Ki")
	storetest.Eventually(t, "the model may ask", func() bool {
		text, result := m.call("query", ask)
		_, changes := m.call("changes", nil)
		return !result.IsError && strings.Contains(text, "canary-shop-config") &&
			strings.Contains(text, "canary-bank-config") && !changes.IsError
	})
	m.answer("blame", bank, nil, "canary-bank-config")
	m.answer("query", map[string]any{"sql": "SELECT name FROM secrets"}, nil, `"rows":[]`)
	m.refuse("show", map[string]any{"resource": "secret", "name": "hidden"}, "forbidden")
	if text, _ := m.call("changes", map[string]any{"allNamespaces": true}); !strings.Contains(text,
		"configmaps/settings") || strings.Contains(text, "hidden") {
		t.Errorf("the changes that a model sees are %s", text)
	}
	stranger := h.model("mallory", "shop", 200, "64Ki")
	stranger.refuse("query", ask, "forbidden")
	stranger.refuse("changes", nil, "forbidden")
}

// The program speaks the protocol on its standard input and output, and ends with its input, or at SIGTERM.
func TestMCP_ProgramServesItsInput(t *testing.T) {
	t.Parallel()
	h := newChronicle(t)
	executable, err := os.Executable()
	h.must(err)
	for _, ends := range []string{"its input", "SIGTERM"} {
		cmd := exec.CommandContext(t.Context(), executable, "mcp", "--kubeconfig", filepath.Join(h.dir, "admin.kubeconfig"))
		cmd.Env = append(os.Environ(), asProgram+"=1")
		stderr := &syncBuffer{}
		cmd.Stderr = stderr
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(context.WithoutCancel(t.Context()),
			&mcp.CommandTransport{Command: cmd}, nil)
		h.must(err)
		m := &model{h, session}
		m.answer("query", map[string]any{"sql": "SELECT 6 * 7 AS answer"}, nil, `"rows":[[42]]`)
		m.refuse("query", map[string]any{"sql": "SELECT"}, "incomplete input")
		if ends == "SIGTERM" {
			h.must(cmd.Process.Signal(syscall.SIGTERM))
			_ = session.Wait() // the connection ends with the process
		}
		_ = session.Close() // it ends the input, and waits for the process
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("it ends with %s: %v, %s", ends, cmd.ProcessState, stderr)
		}
	}
}
