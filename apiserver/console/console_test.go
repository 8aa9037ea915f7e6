package console

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/html"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/history"
	"byre/apiserver/query"
)

// server is a stand-in for the server: it answers paths with JSON, and those that it does not know with a
// Status.
type server struct {
	*testing.T
	answers map[string]any

	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Error(err)
	}
	s.mu.Lock()
	s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Unlock()
	if strings.HasPrefix(r.URL.Path, Path) {
		if refused, ok := s.answers[Path].(http.HandlerFunc); ok {
			refused(w, r)
			return
		}
		_, _ = io.WriteString(w, "alice")
		return
	}
	answer, known := s.answers[r.URL.Path]
	if handle, ok := answer.(http.HandlerFunc); ok {
		handle(w, r)
		return
	}
	if !known {
		w.WriteHeader(http.StatusNotFound)
		answer = failure(http.StatusNotFound, r.URL.Path+" is not there")
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// refuseIf answers with a failure if the field selector has a text, and otherwise with an answer.
func refuseIf(text string, failure metav1.Status, answer any) http.HandlerFunc {
	failure.Kind = "Status"
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Query().Get("fieldSelector"), text) {
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		w.WriteHeader(int(failure.Code))
		_ = json.NewEncoder(w).Encode(failure)
	}
}

type object = map[string]any

// discovery has Pods, ClusterRoles and changes.
func discovery() map[string]any {
	served := func(name, kind, scope string) object {
		return object{"resource": name, "responseKind": object{"kind": kind}, "scope": scope,
			"verbs": []string{"get", "list"}}
	}
	groups := func(group, version string, resources ...object) object {
		return object{"items": []object{{"metadata": object{"name": group},
			"versions": []object{{"version": version, "resources": resources}}}}}
	}
	return map[string]any{
		"/api":  groups("", "v1", served("pods", "Pod", "Namespaced"), served("namespaces", "Namespace", "Cluster")),
		"/apis": groups("rbac.authorization.k8s.io", "v1", served("clusterroles", "ClusterRole", "Cluster")),
	}
}

// newServer makes a stand-in that has discovery and other answers.
func newServer(t *testing.T, answers map[string]any) *server {
	s := &server{T: t, answers: discovery()}
	maps.Copy(s.answers, answers)
	return s
}

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func (s *server) console() *Console {
	s.Helper()
	c, err := New(Config{Server: s, HasName: func(host string) bool {
		return host == "kube.example.com"
	}, Now: func() time.Time { return noon }, Timeout: time.Minute})
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// get asks the console for a page.
func (s *server) get(path string) *httptest.ResponseRecorder {
	s.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(s.Context(), http.MethodGet, path, nil)
	r.Host = "localhost:6443"
	s.console().ServeHTTP(w, r)
	return w
}

// hostile are texts that users can put into an object.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "javascript:alert(1)",
	"two\nlines", "\u202egnp.exe", "\x1b[2J", "{{.Root}}", "</pre><style>*{display:none}</style>",
}

func hostileServer(t *testing.T) *server {
	var rows, changes []object
	var result [][]any
	for i, name := range hostile {
		metadata := object{"name": name, "namespace": name, "creationTimestamp": noon}
		rows = append(rows, object{"cells": []any{name, name}, "object": object{"metadata": metadata}})
		changes = append(changes, object{
			"revision": i + 1, "time": metav1.NewMicroTime(noon), "who": name, "realUser": name, "verb": name, "manager": name,
			"object":  object{"group": "", "resource": "pods", "namespace": name, "name": name},
			"changed": []object{{"path": name, "old": name, "new": name}},
		})
		result = append(result, []any{0, name, name})
	}
	everything := strings.Join(hostile, " ")
	change := maps.Clone(changes[0])
	change["before"], change["after"] = object{"a": everything}, object{"a": everything, "b": everything}
	pod := object{
		"apiVersion": "v1", "kind": "Pod", "spec": object{"note": everything},
		"metadata": object{"name": everything, "uid": "u", "labels": object{"a": everything},
			"ownerReferences": []object{{"apiVersion": "v1", "kind": everything, "name": everything}}},
	}
	list := object{"metadata": object{"resourceVersion": "9"}, "items": changes}
	return newServer(t, map[string]any{
		"/api/v1/pods": object{
			"metadata":          object{"resourceVersion": "9"},
			"columnDefinitions": []object{{"name": "Name"}, {"name": "<b>Note</b>"}}, "rows": rows,
		},
		"/api/v1/namespaces/shop/pods/web": pod,
		history.Path(""):                   list, history.Path("shop"): list,
		history.Path("shop") + "/1": change,
		query.Path: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rows := result
			if text, _ := io.ReadAll(r.Body); strings.Contains(string(text), "byre_tables") {
				rows = nil
				for _, name := range hostile {
					rows = append(rows, []any{"", "pods", name, name})
				}
			}
			_ = json.NewEncoder(w).Encode(object{"status": object{"truncated": true,
				"columns": []object{{"name": hostile[0]}, {"name": hostile[1]}, {"name": hostile[2]}}, "rows": rows}})
		}),
	})
}

var hostilePages = []string{
	"", "r/core/v1/pods", "r/core/v1/pods?q=%3Cscript%3Ealert(1)", "o/core/v1/pods/shop/web", "deleted", "change/shop/1",
	"sql?q=%3C/textarea%3E%3Cscript%3Ealert(1)%3C/script%3E", "health", "nothing?namespace=%22%3E%3Cscript%3E",
}

// What users have written is text on every page: pages have no element and no attribute but those of their
// templates, and every link is relative.
func TestConsole_ShowsHostileTextAsText(t *testing.T) {
	t.Parallel()
	s := hostileServer(t)
	elements := strings.Fields(
		"html head meta title link script body header nav a span bdi main h1 h2 p form label input button section div table thead tr th tbody td " +
			"pre code strong time ol ul li del ins textarea details summary small")
	for _, page := range hostilePages {
		w := s.get(Path + page)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%s: %d %s", page, w.Code, w.Body)
		}
		root, err := html.Parse(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		shown, scripts := strings.Builder{}, 0
		for node := range root.Descendants() {
			switch {
			case node.Type == html.TextNode:
				shown.WriteString(node.Data)
			case node.Type != html.ElementNode:
			case !slices.Contains(elements, node.Data):
				t.Errorf("%s has an element %s", page, node.Data)
			case node.Data == "script":
				if scripts++; node.FirstChild != nil {
					t.Errorf("%s has a script in it", page)
				}
			}
			for _, a := range node.Attr {
				checkAttribute(t, page, a)
			}
		}
		if scripts != 1 {
			t.Errorf("%s has %d scripts", page, scripts)
		}
		if strings.ContainsAny(shown.String(), "\u202e\x1b") {
			t.Errorf("%s has characters that are not visible", page)
		}
		if strings.HasPrefix(page, "r/core/v1/pods") && !strings.Contains(shown.String(), hostile[0]) {
			t.Errorf("%s does not show %s", page, hostile[0])
		}
	}
}

func checkAttribute(t *testing.T, page string, a html.Attribute) {
	t.Helper()
	switch {
	case strings.HasPrefix(a.Key, "on") || a.Key == "style":
		t.Errorf("%s has an attribute %s", page, a.Key)
	case slices.Contains([]string{"href", "src", "action", "hx-get"}, a.Key):
		if !strings.HasPrefix(a.Val, "./") && !strings.HasPrefix(a.Val, "../") && a.Val != "data:," {
			t.Errorf("%s links to %s", page, a.Val)
		}
	}
}

// A page's answer has the headers that keep a browser from loading anything else, also if it is an error.
func TestConsole_SetsHeaders(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, path := range []string{"", "static/style.css", "static/htmx.min.js", "nothing", "sql"} {
		w := s.get(Path + path)
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cache-Control": "no-store",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if cookies := w.Header().Values("Set-Cookie"); len(cookies) > 0 {
			t.Errorf("%s sets %q", path, cookies)
		}
	}
}

func TestConsole_AnswersToItsNamesOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:6443": 200, "127.0.0.1:6443": 200, "[::1]:6443": 200, "[::1]": 200, "192.0.2.1": 200,
		"kube.example.com": 200, "kube.example.com:6443": 200,
		"": 421, "evil.example.com": 421, "localhost.evil.example.com:6443": 421, "127.0.0.1.evil.example.com": 421,
		":6443": 421,
	} {
		before := len(s.requests)
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path+"static/style.css", nil)
		r.Host = host
		s.console().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
		if asked := len(s.requests) - before; (want == http.StatusOK) != (asked == 1) {
			t.Errorf("%q: the server was asked %d times", host, asked)
		}
	}
}

func TestConsole_ReadsOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead,
		http.MethodOptions} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), method, "https://localhost"+Path+"sql?q=SELECT+1",
			strings.NewReader("x"))
		s.console().ServeHTTP(w, r)
		if w.Code != http.StatusMethodNotAllowed || len(s.requests) > 0 {
			t.Errorf("%s: %d, and the server was asked %d times", method, w.Code, len(s.requests))
		}
	}
}

// Every request that a page makes has the credentials of the request for the page, and no more.
func TestConsole_AsksWithTheCredentialsOfTheRequest(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]any{query.Path: object{}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path+"sql?q=SELECT+1", nil)
	r.Host, r.RemoteAddr, r.TLS = "localhost", "192.0.2.7:1234", &tls.ConnectionState{}
	for name, value := range map[string]string{
		"Authorization": "Bearer secret", "Impersonate-User": "bob", "X-Remote-User": "carol", "X-Custom-User": "dave",
		"If-None-Match": "x", "Range": "bytes=1-", "Accept-Encoding": "gzip", "Accept": "text/html",
	} {
		r.Header.Set(name, value)
	}
	s.console().ServeHTTP(httptest.NewRecorder(), r)
	var asked []string
	for i, got := range s.requests {
		asked = append(asked, got.Method+" "+got.RequestURI)
		for _, name := range []string{"Authorization", "Impersonate-User", "X-Remote-User", "X-Custom-User"} {
			if got.Header.Get(name) != r.Header.Get(name) {
				t.Errorf("%s has %s: %q", asked[i], name, got.Header.Get(name))
			}
		}
		for _, name := range []string{"If-None-Match", "Range", "Accept-Encoding"} {
			if got.Header.Get(name) != "" {
				t.Errorf("%s has %s", asked[i], name)
			}
		}
		if got.RemoteAddr != r.RemoteAddr || got.TLS != r.TLS || strings.Contains(got.Header.Get("Accept"), "html") {
			t.Errorf("%s is from %s with %v, and accepts %s", asked[i], got.RemoteAddr, got.TLS, got.Header.Get("Accept"))
		}
	}
	if want := []string{"GET " + Path + "sql?q=SELECT+1", "POST " + query.Path}; !slices.Equal(asked, want) {
		t.Errorf("the server was asked %q, want %q", asked, want)
	}
}

// Whom the server's filters refuse sees only why.
func TestConsole_ShowsWhyTheServerRefuses(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
		http.StatusServiceUnavailable} {
		s := newServer(t, map[string]any{Path: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(object{"kind": "Status", "message": "no: <why>", "code": code})
		})})
		w := s.get(Path + "static/style.css")
		if w.Code != code || !strings.Contains(w.Body.String(), "no: &lt;why&gt;") || w.Header().Get("Retry-After") != "1" ||
			len(s.requests) != 1 {
			t.Errorf("%d: %d after %d requests: %s", code, w.Code, len(s.requests), w.Body)
		}
	}
}

// blocked is the connection of a client that does not read until reads is closed.
type blocked struct {
	header         http.Header
	deadlines      []time.Time
	writing, reads chan struct{}
}

func (b *blocked) Header() http.Header { return b.header }
func (b *blocked) WriteHeader(int)     {}

func (b *blocked) SetWriteDeadline(deadline time.Time) error {
	b.deadlines = append(b.deadlines, deadline)
	return nil
}

func (b *blocked) Write(p []byte) (int, error) {
	select {
	case b.writing <- struct{}{}:
		<-b.reads
	case <-b.reads:
	}
	return len(p), nil
}

// Few pages are made at a time. A client that does not read keeps nobody out, and is waited for a time only.
func TestConsole_MakesFewPagesAtOnce(t *testing.T) {
	t.Parallel()
	making, made := make(chan struct{}), make(chan struct{})
	c := newServer(t, map[string]any{"/api/v1/pods": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		making <- struct{}{}
		<-made
		w.WriteHeader(http.StatusForbidden)
	})}).console()
	get := func(path string, w http.ResponseWriter) {
		c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost"+Path+path, nil))
	}
	slow, writing, reads := make([]blocked, pagesAtOnce), make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	for i := range slow {
		slow[i] = blocked{http.Header{}, nil, writing, reads}
		group.Go(func() { get("sql", &slow[i]) })
	}
	for range slow {
		<-writing
	}
	for range pagesAtOnce {
		group.Go(func() { get("r/core/v1/pods", httptest.NewRecorder()) })
	}
	for range pagesAtOnce {
		<-making
	}
	last := httptest.NewRecorder()
	get("sql", last)
	if last.Code != http.StatusTooManyRequests || last.Header().Get("Retry-After") == "" {
		t.Errorf("beside %d pages: %d %v", pagesAtOnce, last.Code, last.Header())
	}
	close(made)
	close(reads)
	group.Wait()
	for i := range slow {
		if want := []time.Time{noon.Add(2 * time.Minute), {}}; !slices.Equal(slow[i].deadlines, want) {
			t.Errorf("the deadlines are %v, want %v", slow[i].deadlines, want)
		}
	}
	next := httptest.NewRecorder()
	if get("sql", next); next.Code != http.StatusOK {
		t.Errorf("after them: %d", next.Code)
	}
}

// A request of a page whose handler panics is an error of that page, and of nothing else.
func TestConsole_SurvivesAPanic(t *testing.T) {
	t.Parallel()
	for _, reason := range []any{"broken", http.ErrAbortHandler} {
		s := newServer(t, map[string]any{"/api/v1/pods": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			panic(reason)
		})})
		if w := s.get(Path + "r/core/v1/pods"); w.Code < http.StatusInternalServerError {
			t.Errorf("%v: %d", reason, w.Code)
		}
		if w := s.get(Path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "not shown") {
			t.Errorf("%v: %d %s", reason, w.Code, w.Body)
		}
	}
}

// The first page is found without knowing the path that a proxy serves it at, and all other requests are
// the server's.
func TestConsole_LeavesOtherPathsToTheServer(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	if w := s.get("/console"); w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != "console/" {
		t.Errorf("/console: %d to %q", w.Code, w.Header().Get("Location"))
	}
	for path, want := range map[string]int{"/api": 200, "/consoles": 404, "/": 404} {
		if w := s.get(path); w.Code != want || w.Header().Get("Content-Security-Policy") != "" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
	for _, path := range []string{Path + "change/a%2Fb/1", Path + "r/core/v1/pods?namespace=a/b",
		Path + "o/core/v1/pods/-/web", Path + "r/core/v2/pods", Path + "change/shop/x"} {
		if w := s.get(path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// htmx is the file of its release: dist/htmx.min.js of htmx.org 4.0.1.
func TestConsole_HtmxIsThatOfTheRelease(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("static/htmx.min.js")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	if got := hex.EncodeToString(sum[:]); got != "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130" {
		t.Errorf("its SHA-256 is %s", got)
	}
}

// A download is the server's answer to one request, as it is.
func TestConsole_DownloadsAreTheServersAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]any{
		"/api/v1/namespaces/shop/pods":     object{"kind": "PodList"},
		"/api/v1/namespaces/shop/pods/web": object{"kind": "Pod"}, query.Path: object{"kind": "Query"},
	})
	for path, want := range map[string][2]string{
		"r/core/v1/pods?namespace=shop&labelSelector=a%3Db&format=json": {"GET /api/v1/namespaces/shop/pods?labelSelector=a%3Db", "application/json"},
		"o/core/v1/pods/shop/web?format=json": {"GET /api/v1/namespaces/shop/pods/web",
			"application/json"},
		"o/core/v1/pods/shop/web?format=yaml": {"GET /api/v1/namespaces/shop/pods/web",
			"application/yaml"},
		"sql?q=SELECT+1&format=csv":    {"POST " + query.Path, "text/csv"},
		"sql?q=SELECT+1&format=ndjson": {"POST " + query.Path, "application/x-ndjson"},
	} {
		w := s.get(Path + path)
		last := s.requests[len(s.requests)-1]
		if got := last.Method + " " + last.RequestURI; got != want[0] || last.Header.Get("Accept") != want[1] ||
			!strings.Contains(w.Body.String(), `"kind"`) {
			t.Errorf("%s asks %s for %s, and gets %s", path, got, last.Header.Get("Accept"), w.Body)
		}
		// The answer may be any aggregated server's, of any type.
		if _, isBounded := last.Context().Deadline(); !isBounded ||
			!strings.Contains(w.Header().Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: bounded %t, %v", path, isBounded, w.Header())
		}
		if last.Method == http.MethodPost && s.bodies[len(s.bodies)-1] != "SELECT 1" {
			t.Errorf("%s asks %q", path, s.bodies[len(s.bodies)-1])
		}
	}
}

func TestCommand_QuotesWordsAndRefusesControlCharacters(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"web": "kubectl byre undelete pods/web -n shop", "system:node": "kubectl byre undelete pods/system:node -n shop",
		"$(reboot)": "kubectl byre undelete 'pods/$(reboot)' -n shop", "it's": `kubectl byre undelete 'pods/it'\''s' -n shop`,
		"a b;c": "kubectl byre undelete 'pods/a b;c' -n shop", "a\nb": "", "\x1b[2J": "", "\u202ea": "",
		"": "kubectl byre undelete pods/ -n shop",
	} {
		if got := undelete(resource{Resource: "pods"}, "shop", name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	if got := undelete(resource{Resource: "namespaces"}, "", "shop"); got != "kubectl byre undelete -n shop" {
		t.Error(got)
	}
}

// podTable is a Table with the rows n of a page of a list.
func podTable(next string, rows ...[]any) object {
	t := object{
		"metadata": object{"resourceVersion": "9", "continue": next},
		"columnDefinitions": []object{{"name": "Name"}, {"name": "Restarts"}, {"name": "Age"},
			{"name": "Node", "priority": 1}},
	}
	var all []object
	for i, cells := range rows {
		all = append(all,
			object{"cells": cells,
				"object": object{"metadata": object{"name": cells[0], "namespace": fmt.Sprint("ns", i%2),
					"creationTimestamp": noon.Add(time.Duration(i) * time.Minute)}}})
	}
	t["rows"] = all
	return t
}

var rowLink = regexp.MustCompile(`href="\.\./\.\./\.\./o/core/v1/pods/([^"]*)"`)

func TestTable_SortsAndFilters(t *testing.T) {
	t.Parallel()
	s := newServer(t,
		map[string]any{"/api/v1/pods": podTable("", []any{"web-10", "10 (5m ago)", "3m", "n1"},
			[]any{"web-9", "9", "2m", "n2"}, []any{"db", 100, "1m", "n1"})})
	for parameters, want := range map[string]string{
		"": "ns0/web-10 ns1/web-9 ns0/db", "?sort=Name": "ns0/db ns0/web-10 ns1/web-9",
		"?sort=Restarts":        "ns1/web-9 ns0/web-10 ns0/db",
		"?sort=Restarts&desc=1": "ns0/db ns0/web-10 ns1/web-9", "?sort=Age": "ns0/db ns1/web-9 ns0/web-10",
		"?sort=Namespace": "ns0/web-10 ns0/db ns1/web-9", "?sort=none": "ns0/web-10 ns1/web-9 ns0/db",
		"?q=WEB": "ns0/web-10 ns1/web-9", "?q=ns1": "ns1/web-9", "?q=n2": "ns1/web-9", "?q=none": "",
	} {
		var got []string
		for _, match := range rowLink.FindAllStringSubmatch(s.get(Path+"r/core/v1/pods"+parameters).Body.String(), -1) {
			got = append(got, match[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", parameters, got, want)
		}
	}
}

// A download in CSV has the rows of all pages of the list; if one fails, the connection breaks.
func TestTable_DownloadHasAllPages(t *testing.T) {
	t.Parallel()
	second := any(podTable("", []any{"b,\"c\"", 0, "1m", "n2"}))
	s := newServer(t, map[string]any{"/api/v1/pods": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := any(podTable("more", []any{"a", 0, "1m", "n1"}))
		if r.URL.Query().Get("continue") == "more" {
			page = second
		}
		if page == nil {
			w.WriteHeader(http.StatusGone)
		}
		_ = json.NewEncoder(w).Encode(page)
	})})
	want := "namespace,created,name,restarts,age,node\nns0,2026-12-01T12:00:00Z,a,0,1m,n1\nns0,2026-12-01T12:00:00Z,\"b,\"\"c\"\"\",0,1m,n2\n"
	if w := s.get(Path + "r/core/v1/pods?format=csv"); w.Body.String() != want ||
		w.Header().Get("Content-Disposition") != "attachment; filename=pods.csv" {
		t.Errorf("%v\n%s", w.Header(), w.Body)
	}
	if _, isBounded := s.requests[len(s.requests)-1].Context().Deadline(); isBounded {
		t.Error("the whole download has the time of one request")
	}
	second = nil
	defer func() {
		if reason := recover(); reason != http.ErrAbortHandler { //nolint:errorlint // a panic's value
			t.Errorf("it ended with %v", reason)
		}
	}()
	s.get(Path + "r/core/v1/pods?format=csv")
}

// An object that is gone has its history, and the command that brings it back.
func TestObject_ThatIsGoneHasItsHistory(t *testing.T) {
	t.Parallel()
	gone := object{"items": []object{{"revision": 7, "time": metav1.NewMicroTime(noon.Add(-time.Hour)), "who": "bob",
		"verb": "delete", "object": object{"resource": "pods", "namespace": "shop", "name": "web"}}}}
	s := newServer(t, map[string]any{history.Path("shop"): gone})
	w := s.get(Path + "o/core/v1/pods/shop/web?since=24h")
	for _, want := range []string{"kubectl byre undelete pods/web -n shop", "bob", "60m ago",
		`href="../../../../../change/shop/7"`} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d, and no %s:\n%s", w.Code, want, w.Body)
		}
	}
	selector, err := url.QueryUnescape(s.requests[len(s.requests)-1].URL.Query().Get("fieldSelector"))
	if err != nil || !strings.Contains(selector, "object.name=web") ||
		!strings.Contains(selector, "since=2026-11-30T12:00:00Z") {
		t.Errorf("it selects %s", selector)
	}
	s.answers[history.Path("shop")] = object{}
	if w := s.get(Path + "o/core/v1/pods/shop/web"); w.Code != http.StatusNotFound {
		t.Errorf("without a history: %d", w.Code)
	}
	unavailable, forbidden := apierrors.NewServiceUnavailable("away").Status(),
		apierrors.NewForbidden(schema.GroupResource{}, "", nil).Status()
	for _, unknown := range []struct {
		parameters string
		answer     any
		status     int
	}{
		{"", refuseIf("", unavailable, nil), http.StatusOK}, {"", refuseIf("", forbidden, nil), http.StatusNotFound},
		{"?since=24h", object{}, http.StatusOK},
	} {
		s.answers[history.Path("shop")] = unknown.answer
		if w := s.get(Path + "o/core/v1/pods/shop/web" + unknown.parameters); w.Code != unknown.status {
			t.Errorf("%+v: %d %s", unknown, w.Code, w.Body)
		}
	}
}

// Of a history that does not reach back to a moment, a page shows what there is, and says what is missing; so it
// does if one of its lists fails.
func TestDeleted_ShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	deleted := func(revision int, age time.Duration) object {
		return object{"revision": revision, "time": metav1.NewMicroTime(noon.Add(-age)),
			"object": object{"resource": "pods", "name": "web", "uid": strconv.Itoa(revision)}}
	}
	list := object{"items": []object{deleted(9, time.Hour), deleted(8, 25*time.Hour)}}
	for selected, failure := range map[string]metav1.Status{
		"since=":       apierrors.NewResourceExpired("too short").Status(),
		"verb=delete,": apierrors.NewTooManyRequestsError("too many").Status(),
	} {
		s := newServer(t, map[string]any{history.Path(""): refuseIf(selected, failure, list)})
		body := s.get(Path + "deleted?since=24h").Body.String()
		if !strings.Contains(body, failure.Message) || !strings.Contains(body, "change/default/9") || selected == "since=" &&
			strings.Contains(body, "change/default/8") {
			t.Errorf("%s\n%s", selected, body)
		}
	}
}

// A page shows the newest changes, says that there are older ones, and asks for no more than it shows.
func TestObject_ShowsTheNewestChanges(t *testing.T) {
	t.Parallel()
	path := history.Path("shop")
	page := object{"metadata": object{"continue": "more"},
		"items": slices.Repeat([]object{{"revision": 7, "time": metav1.NewMicroTime(noon), "who": "bob", "verb": "update"}},
			150)}
	s := newServer(t, map[string]any{path: page})
	body := s.get(Path + "o/core/v1/pods/shop/web").Body.String()
	requests := slices.DeleteFunc(slices.Clone(s.requests), func(r *http.Request) bool { return r.URL.Path != path })
	if changes := strings.Count(body, "/change/"); changes != changesPerPage || len(requests) != 2 ||
		!strings.Contains(body, "older changes") {
		t.Errorf("%d changes of %d requests:\n%s", changes, len(requests), body)
	}
	if first, second := requests[0].URL.Query(),
		requests[1].URL.Query(); !strings.Contains(first.Get("fieldSelector"), "order=newest") ||
		second.Get("continue") != "more" {
		t.Errorf("it asks %s and %s", first, second)
	}
	page["metadata"] = object{}
	if body := s.get(Path + "o/core/v1/pods/shop/web").Body.String(); strings.Contains(body, "older changes") {
		t.Error(body)
	}
}
