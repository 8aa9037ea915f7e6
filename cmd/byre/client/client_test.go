package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"byre/apiserver/query"
)

var errRefused = errors.New("refused")

// engine answers queries with a text, or with another one for a media type, and keeps the last query.
type engine struct {
	*Client
	asked   query.Query
	answers map[string]string
	header  http.Header
	status  int
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{answers: map[string]string{}, header: http.Header{}, status: http.StatusCreated}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&e.asked); err != nil || r.URL.Path != "/base"+query.Path ||
			r.Method != http.MethodPost {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		maps.Copy(w.Header(), e.header)
		w.WriteHeader(e.status)
		_, _ = io.WriteString(w, e.answers[r.Header.Get("Accept")])
	}))
	t.Cleanup(server.Close)
	var err error
	if e.Client, err = NewClient(&rest.Config{Host: server.URL + "/base/"}, ""); err != nil {
		t.Fatal(err)
	}
	return e
}

const twoRows = `{"status":{"columns":[{"name":"name","type":"text"},{"name":"n","type":"integer"}],"rows":[["a\tb\u001b",1],["null",null]],"truncated":true,"resourceVersion":"7"}}`

// Answers are printed in each form, with what the server warns of, and with a word if there may be more rows.
func TestSQL_PrintsAnswers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.answers = map[string]string{"application/json": twoRows, query.CSV: "name,n\n\"a\nb\",1\nc,\n",
		query.NDJSON: "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n"}
	e.header.Add("Warning", `299 - "it is slow"`)
	e.header.Set(query.LimitHeader, "2")
	for format, want := range map[string]struct {
		text string
		rows int
		more bool
	}{
		"table": {"null", 2, true}, "json": {`"resourceVersion": "7"`, 2, true}, "yaml": {"resourceVersion: \"7\"", 2, true},
		"csv": {"name,n\n\"a\nb\",1\nc,\n", 2, true}, "ndjson": {"{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n", 3, false},
	} {
		cmd := &cobra.Command{}
		var out, errOut bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&errOut)
		rows, err := e.print(t.Context(), cmd, query.NewQuery("SELECT 1"), &Output{Format: format})
		if format == "table" {
			if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "<none>") ||
				!strings.HasPrefix(out.String(), "NAME") {
				t.Errorf("the table is %q", &out)
			}
		}
		if err != nil || rows != want.rows || !strings.Contains(out.String(), want.text) ||
			!strings.Contains(errOut.String(), "Warning: it is slow\n") ||
			strings.Contains(errOut.String(), "there may be more rows") != want.more {
			t.Errorf("%s: %d rows, %v\n%s%s", format, rows, err, &out, &errOut)
		}
	}
	if e.asked.Spec.SQL != "SELECT 1" {
		t.Errorf("it asked %+v", e.asked)
	}
}

func TestSQL_SaysWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, test := range []struct {
		status       int
		answer, want string
	}{
		{400, `{"kind":"Status","message":"no such table: gears"}`, "no such table: gears"},
		{404, `{"kind":"Status","message":"the server could not find"}`, "is it byre, with --enable-sql?"},
		{502, "<html>bad gateway</html>", "the server answered 502 Bad Gateway: <html>bad gateway"},
		{503, `{}`, "the server answered 503"},
	} {
		e.status, e.answers["application/json"] = test.status, test.answer
		if _, err := e.answer(t.Context(), query.NewQuery("SELECT 1")); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%d: %v, want %q", test.status, err, test.want)
		}
	}
	if texts := e.texts(t.Context(), "SELECT 1"); texts != nil {
		t.Errorf("a completion has %q", texts)
	}
}

// A parameter is the JSON that it is, or else a text.
func TestSQL_ReadsParametersAndStatements(t *testing.T) {
	t.Parallel()
	var got []string
	for _, value := range parseParameters([]string{"1", "-1.5e3", "true", "null", "shop", `"1"`, "1 2", "", "it's"}) {
		got = append(got, string(value))
	}
	if want := []string{"1", "-1.5e3", "true", "null", `"shop"`, `"1"`, `"1 2"`, `""`, `"it's"`}; !slices.Equal(got,
		want) {
		t.Errorf("the parameters are %q, want %q", got, want)
	}
	if s, err := readStatement(strings.NewReader("SELECT 2"), "", nil); s != "SELECT 2" || err != nil {
		t.Error(s, err)
	}
	if s, err := readStatement(strings.NewReader("SELECT 3"), "-", nil); s != "SELECT 3" || err != nil {
		t.Error(s, err)
	}
	if _, err := readStatement(nil, "file", []string{"SELECT 1"}); err == nil {
		t.Error("a statement and a file")
	}
	if _, err := readStatement(nil, t.TempDir()+"/none", nil); err == nil {
		t.Error("a file that does not exist")
	}
}

// Tab completes what may come at a place of a statement.
func TestSQLShell_CompletesWords(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	names := &sqlNames{tables: []string{"deployments.apps", "gears.example.com", "pods", "podtemplates"},
		columns: map[string][]string{"pods": {"name", "namespace", "node"}, "deployments.apps": {"replicas"}}}
	for before, want := range map[string][]string{
		".t": {".tables"}, ".columns po": {"pods", "podtemplates"}, ".output c": {"csv"}, "SEL": {"SELECT"},
		"sel": {"select"}, "SELECT na": {"natural"},
		"SELECT count(*) FROM pod": {"pods", "podtemplates"}, `SELECT * FROM "gea`: {`"gears.example.com"`},
		"SELECT * FROM gea":           {`"gears.example.com"`},
		"SELECT * FROM pods WHERE no": {"node", "not"}, "SELECT * FROM pods p WHERE p.na": {"name", "namespace"},
		`SELECT * FROM "deployments.apps" WHERE rep`: {"replicas"}, "SELECT xyz": nil,
	} {
		s := &sqlShell{cmd: cmd, names: names, output: &Output{Allowed: sqlFormats()}}
		if _, words := s.candidates(before, before); !slices.Equal(words, want) {
			t.Errorf("%q: %q, want %q", before, words, want)
		}
	}
	if got := commonPrefix([]string{"name", "namespace", "nature"}); got != "na" {
		t.Error(got)
	}
}

// proxied is a console behind a proxy, and the requests that have reached it.
func proxied(t *testing.T) (p *consoleProxy, at *httptest.Server, reached *[]*http.Request) {
	t.Helper()
	reached = new([]*http.Request)
	console := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		*reached = append(*reached, r)
	}))
	t.Cleanup(console.Close)
	p, err := newConsoleProxy(&rest.Config{Host: console.URL + "/base", BearerToken: "of-the-kubeconfig"})
	if err != nil {
		t.Fatal(err)
	}
	var handler http.Handler
	at = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(at.Close)
	handler = p.handler(at.Listener.Addr().String())
	return p, at, reached
}

// The proxy answers only who has its URL, and passes on nothing but reads of the console, with no credentials but the
// kubeconfig's.
func TestConsoleProxy_KeepsOthersOut(t *testing.T) {
	t.Parallel()
	p, at, reached := proxied(t)
	address := at.Listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	for _, test := range []struct {
		method, path, host string
		status             int
		passed             string
	}{
		{http.MethodGet, p.prefix + "/console/", "", 200, "/base/console/"},
		{http.MethodGet, p.prefix + "/console", "", 200, "/base/console"},
		{http.MethodGet, p.prefix + "/console/sql", "localhost:" + port, 200, "/base/console/sql"},
		{http.MethodGet, p.prefix + "/console/r/a%2Fb", "", 200, "/base/console/r/a%2Fb"},
		{http.MethodGet, p.prefix + "/console/../api/v1/secrets", "", 200, "/base/console/../api/v1/secrets"},
		{http.MethodGet, p.prefix + "/console/", "evil.example.com", 421, ""},
		{http.MethodGet, p.prefix + "/console/", "127.0.0.1", 421, ""},
		{http.MethodGet, p.prefix + "/console/", "localhost", 421, ""},
		{http.MethodGet, "/console/", "", 404, ""},
		{http.MethodGet, "/", "", 404, ""},
		{http.MethodGet, p.prefix, "", 404, ""},
		{http.MethodGet, p.prefix + "x/console/", "", 404, ""},
		{http.MethodGet, p.prefix[:len(p.prefix)-1] + "/console/", "", 404, ""},
		{http.MethodGet, p.prefix + "/api/v1/secrets", "", 404, ""},
		{http.MethodGet, p.prefix + "/consoles", "", 404, ""},
		{http.MethodPost, p.prefix + "/console/", "", 405, ""},
		{http.MethodDelete, p.prefix + "/console/sql", "", 405, ""},
	} {
		*reached = nil
		request, err := http.NewRequestWithContext(t.Context(), test.method, at.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		path, err := url.PathUnescape(test.path)
		if err != nil {
			t.Fatal(err)
		}
		request.URL.Path, request.URL.RawPath, request.Host = path, test.path, test.host
		request.Header.Set("Authorization", "Bearer of-the-browser")
		request.Header.Set("Cookie", "a=b")
		request.Header.Set("Impersonate-User", "root")
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.status || len(*reached) != map[bool]int{true: 1}[test.passed != ""] {
			t.Errorf("%s %s of %q: %s, %d passed on", test.method, test.path, test.host, response.Status, len(*reached))
			continue
		}
		if test.passed == "" {
			continue
		}
		if r := (*reached)[0]; r.URL.EscapedPath() != test.passed ||
			r.Header.Get("Authorization") != "Bearer of-the-kubeconfig" ||
			r.Header.Get("Cookie")+r.Header.Get("Impersonate-User") != "" {
			t.Errorf("%s is passed on as %s with %v", test.path, r.URL, r.Header)
		}
	}
	other, err := newConsoleProxy(&rest.Config{Host: at.URL})
	if err != nil || other.prefix == p.prefix || len(p.prefix) < 20 {
		t.Errorf("the secrets are %s and %s, %v", p.prefix, other.prefix, err)
	}
}

// A server without the console, or that does not show it, is named with the next step.
func TestConsoleProxy_ChecksTheServer(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 401: "does not accept the credentials", 403: "bind the ClusterRole byre:console-user",
		404: "start it with --console", 421: "name it with --external-hostname", 500: "answered 500",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src 'none'")
			w.WriteHeader(status)
		}))
		p, err := newConsoleProxy(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.check(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", status, err, want)
		}
		server.Close()
	}
}

// No answer of a tool has more rows and bytes than the limits, and one that is cut off says so.
func TestMCP_FitsAnswersIntoTheLimits(t *testing.T) {
	t.Parallel()
	limits := &mcpLimits{rows: 4, bytes: resource.QuantityValue{Quantity: resource.MustParse("1Ki")}}
	for _, test := range []struct {
		n, size int
		more    bool
		rows    int
		want    string
	}{
		{3, 10, false, 3, ""}, {4, 10, false, 4, ""}, {4, 10, true, 4, "more rows than 4"},
		{5, 10, false, 4, "more rows than 4"}, {0, 0, false, 0, ""},
		{4, 400, false, 2, "at most 1024 bytes"}, {1, 1100, false, 0, "at most 1024 bytes"}, {1, 1021, false, 1, ""},
		{1, 1022, false, 0, "at most 1024 bytes"},
	} {
		items := slices.Repeat([]string{strings.Repeat("x", test.size)}, test.n)
		fitting, incomplete, err := fit(items, test.more, limits)
		if err != nil || fitting == nil || len(fitting) != test.rows || (incomplete == "") != (test.want == "") ||
			!strings.Contains(incomplete, test.want) {
			t.Errorf("%d of %d bytes: %d, %q, %v", test.n, test.size, len(fitting), incomplete, err)
		}
	}
	tools := &mcpTools{limits: limits}
	for text, want := range map[string]string{
		"short\n": "short\n", strings.Repeat("x", 1024): strings.Repeat("x", 1024),
		strings.Repeat("x", 1025):       strings.Repeat("x", 1024),
		strings.Repeat("line\n", 300):   strings.Repeat("line\n", 204),
		strings.Repeat("ä", 600) + "\n": strings.Repeat("ä", 512),
	} {
		first, incomplete := tools.cut(text)
		if first != want || (incomplete == "") != (len(text) <= 1024) {
			t.Errorf("%d bytes are cut to %d: %q", len(text), len(first), incomplete)
		}
	}
	for limit, want := range map[int]int{0: 4, -1: 4, 2: 2, 4: 4, 1000: 4} {
		if got := tools.atMost(limit); got != want {
			t.Errorf("a limit of %d is %d", limit, got)
		}
	}
	for _, test := range []struct {
		rows int
		size string
		want string
	}{{1, "1Ki", ""}, {10_000, "16Mi", ""}, {0, "1Ki", "--max-rows must be between 1 and 10000"},
		{10_001, "1Ki", "--max-rows"}, {1, "1023", "--max-bytes must be between 1Ki and 16Mi"}, {1, "17Mi", "--max-bytes"}} {
		err := (&mcpLimits{rows: test.rows,
			bytes: resource.QuantityValue{Quantity: resource.MustParse(test.size)}}).validate()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d rows of %s: %v", test.rows, test.size, err)
		}
	}
}

// The tools answer from the history as the commands do, the newest change first, and never write.
func TestMCP_ToolsReadTheHistory(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	for _, value := range []string{"one", "two", "three"} {
		c.set("alice", "a", value)
	}
	c.set("bob", "b", "x")
	writes := c.Requests
	client, err := NewClient(c.Config(""), "shop")
	if err != nil {
		t.Fatal(err)
	}
	tools := &mcpTools{client: client,
		limits: &mcpLimits{rows: 10, bytes: resource.QuantityValue{Quantity: resource.MustParse("64Ki")}}}
	answer := func(result *mcp.CallToolResult, out any, err error) string {
		t.Helper()
		if err != nil {
			return "error: " + err.Error()
		}
		text, _ := json.Marshal(out) // it has no loops
		if result != nil {
			for _, content := range result.Content {
				text = append(text, content.(*mcp.TextContent).Text...)
			}
		}
		return string(text)
	}
	a := mcpObject{Resource: "configmaps", Name: "a"}
	for name, test := range map[string]struct{ got, want string }{
		"changes of one": {answer(tools.changes(t.Context(), nil,
			changesInput{Resource: "configmaps", Name: "a", Limit: 1})), `"new":"\"three\""`},
		"changes of one, more": {answer(tools.changes(t.Context(), nil,
			changesInput{Resource: "configmaps", Name: "a", Limit: 1})), "cut off: there are more rows than 1"},
		"changes of a user": {answer(tools.changes(t.Context(), nil, changesInput{Who: "bob"})),
			`"object":"configmaps/b"`},
		"changes elsewhere": {answer(tools.changes(t.Context(), nil, changesInput{Namespace: "bank"})),
			`{"changes":[]}`},
		"a name without a type": {answer(tools.changes(t.Context(), nil, changesInput{Name: "a"})),
			"error: name the resource"},
		"a type that is none": {answer(tools.changes(t.Context(), nil, changesInput{Resource: "nothing"})), "error: "},
		"a time that is none": {answer(tools.changes(t.Context(), nil, changesInput{Since: "soon"})), "error: since"},
		"the last difference": {answer(tools.diff(t.Context(), nil, diffInput{mcpObject: a})),
			"-  key: two\n+  key: three\n"},
		"an object as it is": {answer(tools.show(t.Context(), nil, showInput{mcpObject: a})), "key: three"},
		"an object as it was": {answer(tools.show(t.Context(), nil,
			showInput{mcpObject: a, At: fmt.Sprint(c.Revision() - 3)})), "key: one"},
		"an object that is none": {answer(tools.show(t.Context(), nil,
			showInput{mcpObject: mcpObject{Resource: "configmaps", Name: "none"}})), "error: "},
		"who set a field": {answer(tools.blame(t.Context(), nil, a)), `"path":"data.key"`},
	} {
		if !strings.Contains(test.got, test.want) {
			t.Errorf("%s: %s, want %q", name, test.got, test.want)
		}
	}
	if c.Requests != writes {
		t.Errorf("the tools have written %d times", c.Requests-writes)
	}
}

// A query asks the server for no more rows than the limits allow, and says what the server has left out.
func TestMCP_AsksForNoMoreThanTheLimits(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.answers["application/json"] = twoRows
	tools := &mcpTools{client: e.Client,
		limits: &mcpLimits{rows: 2, bytes: resource.QuantityValue{Quantity: resource.MustParse("1Ki")}}}
	for limit, want := range map[int]int64{0: 2, 1: 1, 1000: 2} {
		_, out, err := tools.query(t.Context(), nil,
			queryInput{SQL: "SELECT ?1", At: "-2h", Parameters: []any{"shop", 1.5, nil}, Limit: limit})
		at, _ := time.Parse(time.RFC3339, e.asked.Spec.At)
		if age := time.Since(at); err != nil || *e.asked.Spec.Limit != want || age < 2*time.Hour || age > 3*time.Hour ||
			len(e.asked.Spec.Parameters) != 3 ||
			string(e.asked.Spec.Parameters[0]) != `"shop"` {
			t.Errorf("a limit of %d asks %+v, %v", limit, e.asked.Spec, err)
			continue
		}
		if answer := out.(*queryOutput); answer.Moments["at"] == "" ||
			!strings.Contains(answer.Incomplete, "there are more rows than 2") ||
			answer.ResourceVersion != "7" || !slices.Equal(answer.Columns, []string{"name", "n"}) {
			t.Errorf("the answer is %+v", answer)
		}
	}
	e.answers["application/json"] = `{"status":{"columns":[{"name":"name"}],"rows":[]}}`
	if _, _, err := tools.tables(t.Context(), nil, tablesInput{Table: "gears"}); err == nil ||
		!strings.Contains(err.Error(), `there is no table "gears"`) {
		t.Errorf("the columns of no table: %v", err)
	}
}

// Each tool says that it reads, what it does, and what each of its arguments is.
func TestMCP_ToolsAreDescribed(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	var flags ClusterFlags
	cmd := &cobra.Command{}
	flags.AddTo(cmd)
	limits := mcpLimits{rows: 10, bytes: resource.QuantityValue{Quantity: resource.MustParse("64Ki")}}
	if err := cmd.ParseFlags(c.flags); err != nil {
		t.Fatal(err)
	}
	server, err := newMCPServer(&flags, &limits, secretsFlag{})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), ours, nil); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if instructions := session.InitializeResult().Instructions; !strings.Contains(instructions, `Call "tables"`) {
		t.Errorf("the instructions are %q", instructions)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		text, err := json.Marshal(tool.InputSchema)
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if err := errors.Join(err, json.Unmarshal(text, &schema)); err != nil || !tool.Annotations.ReadOnlyHint ||
			tool.Description == "" || len(schema.Properties) == 0 {
			t.Errorf("%s: %q, %+v, %s, %v", tool.Name, tool.Description, tool.Annotations, text, err)
		}
		for name, property := range schema.Properties {
			if property.Description == "" {
				t.Errorf("the argument %s of %s has no description", name, tool.Name)
			}
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"blame", "changes", "diff", "query", "show", "tables"}) {
		t.Errorf("the tools are %q", names)
	}
	result, err := session.CallTool(t.Context(),
		&mcp.CallToolParams{Name: "show", Arguments: map[string]any{"resource": "configmaps", "name": "none"}})
	if err != nil || !result.IsError {
		t.Errorf("what fails is told: %+v, %v", result, err)
	}
}

func TestSQLShell_FindsTheEndOfAStatement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": -1, "SELECT 1": -1, ";": 0, "SELECT 1;": 8, "SELECT ';'": -1, "SELECT ';''';": 12, `SELECT ";";`: 10,
		"SELECT [;]`;`;": 13,
		"-- ;":           -1, "-- ;\n;": 5, "/* ; */;": 7, "/* ;": -1, "SELECT 'x": -1, "a-b/c;": 5,
	} {
		if got := endOfStatement(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// A file that has grown is cut to its newest lines.
func TestSQLShell_BoundsTheHistory(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	file := filepath.Join(state, "byre", "sql_history")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700),
		os.WriteFile(file, []byte(strings.Repeat("a\nb\n", maxHistory)), 0o600)); err != nil {
		t.Fatal(err)
	}
	var warnings strings.Builder
	h := newSQLHistory(&warnings)
	h.Add("c")
	h.Add("c")
	h.close()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), "\n"); lines != maxHistory+1 || !strings.HasSuffix(string(text), "\nb\nc\n") ||
		h.At(0) != "c" || h.At(1) != "b" || warnings.Len() > 0 {
		t.Errorf("%d lines, %d, %s", lines, h.Len(), warnings.String())
	}
}

// An answer is yes or no; the end of the context, or of what is read, is neither.
func TestIsYes_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "\n": false, "no\n": false} {
		if yes, err := IsYes(t.Context(), strings.NewReader(answer)); yes != want || err != nil {
			t.Errorf("%q: %v, %v", answer, yes, err)
		}
	}
	if yes, err := IsYes(t.Context(), strings.NewReader("")); yes || err == nil ||
		!strings.Contains(err.Error(), "nobody answered") {
		t.Errorf("without an answer: %v, %v", yes, err)
	}
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := IsYes(ctx, in); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v, %v", yes, err)
	}
}
