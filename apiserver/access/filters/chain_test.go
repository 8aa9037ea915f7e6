package filters

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"byre/sqlstore/storetest"
)

// testConfig authenticates "good" as an admin, who may do everything but impersonate,
// refuses "bad", and authenticates any other request as anonymous.
func testConfig() Config {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return Config{
		Options:    options.NewServerRunOptions(),
		Serializer: serializer.NewCodecFactory(scheme),
		Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			switch r.Header.Get("Authorization") {
			case "good":
				return &authenticator.Response{User: &user.DefaultInfo{Name: "admin", Groups: []string{"g"}}}, true, nil
			case "bad":
				return nil, false, errors.New("unknown credential")
			default:
				return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous}}, true, nil
			}
		}),
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string,
			error) {
			if a.GetUser().GetName() == "admin" && a.GetVerb() != "impersonate" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		}),
		FeatureGate: utilfeature.DefaultFeatureGate,
		Lifecycle: Lifecycle{
			MuxAndDiscoveryComplete: make(chan struct{}), NotAcceptingNewRequest: make(chan struct{}),
			NonLongRunningRequests: new(waitgroup.SafeWaitGroup), WatchRequests: new(waitgroup.RateLimitedSafeWaitGroup),
		},
	}
}

// serve starts a server that runs handler behind the chain.
func serve(t *testing.T, cfg Config, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(Chain(cfg)(handler))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// answer is a response whose body was read.
type answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

// status decodes the body of a refusal.
func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(a.Body, &s); err != nil {
		t.Fatalf("the answer is no Status: %v", err)
	}
	return s
}

func newRequest(t *testing.T, url, credential string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if credential != "" {
		req.Header.Set("Authorization", credential)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

func get(t *testing.T, url, credential string, header ...string) answer {
	t.Helper()
	resp, err := http.DefaultClient.Do(newRequest(t, url, credential, header...))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, body}
}

func TestChain_Answers(t *testing.T) {
	cfg := testConfig()
	cfg.Options.HSTSDirectives = []string{"max-age=60"}
	server := serve(t, cfg, func(http.ResponseWriter, *http.Request) {})
	for _, test := range []struct {
		name, path, credential string
		header                 []string
		code                   int
		reason                 metav1.StatusReason
		message                string
	}{
		{name: "known", path: "/api", credential: "good", code: 200},
		{name: "anonymous", path: "/api", code: 403, reason: metav1.StatusReasonForbidden,
			message: `forbidden: User "system:anonymous" cannot get path "/api"`},
		{name: "anonymous, resource", path: "/api/v1/namespaces/n/pods/p", code: 403, reason: metav1.StatusReasonForbidden,
			message: `pods "p" is forbidden: User "system:anonymous" cannot get resource "pods" in API group "" in the namespace "n"`},
		{name: "bad credential", path: "/api", credential: "bad", code: 401, reason: metav1.StatusReasonUnauthorized,
			message: "Unauthorized"},
		{name: "may not impersonate", path: "/api", credential: "good", header: []string{"Impersonate-User", "root"},
			code:   403,
			reason: metav1.StatusReasonForbidden},
		{name: "bad timeout", path: "/api?timeout=soon", credential: "good", code: 400,
			reason: metav1.StatusReasonBadRequest},
	} {
		t.Run(test.name, func(t *testing.T) {
			resp := get(t, server.URL+test.path, test.credential, test.header...)
			if resp.Code != test.code {
				t.Fatalf("got %d, want %d", resp.Code, test.code)
			}
			if resp.Header.Get("Audit-Id") == "" {
				t.Error("no Audit-Id")
			}
			if resp.Header.Get("Cache-Control") != "no-cache, private" {
				t.Errorf("Cache-Control: %q", resp.Header.Get("Cache-Control"))
			}
			if resp.Header.Get("Strict-Transport-Security") != "max-age=60" {
				t.Errorf("Strict-Transport-Security: %q", resp.Header.Get("Strict-Transport-Security"))
			}
			if test.reason == "" {
				return
			}
			s := resp.status(t)
			if s.Reason != test.reason || int(s.Code) != test.code || test.message != "" && s.Message != test.message {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// TestChain_PanicEndsOneRequest: the request of a handler that panics ends without an
// answer, as upstream's does, and the server continues to serve.
func TestChain_PanicEndsOneRequest(t *testing.T) {
	server := serve(t, testConfig(), func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("a handler's mistake")
		}
	})
	resp, err := http.DefaultClient.Do(newRequest(t, server.URL+"/panic", "good"))
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
	if resp := get(t, server.URL+"/api", "good"); resp.Code != http.StatusOK {
		t.Errorf("after the panic: %d", resp.Code)
	}
}

// TestChain_FillsTheContext checks the values that handlers read from the request's
// context.
func TestChain_FillsTheContext(t *testing.T) {
	server := serve(t, testConfig(), func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := request.RequestInfoFrom(ctx)
		if !ok || info.Verb != "list" || info.Resource != "pods" || info.Namespace != "n" || info.APIGroup != "" {
			t.Errorf("RequestInfo: %+v", info)
		}
		if who, ok := request.UserFrom(ctx); !ok || who.GetName() != "admin" {
			t.Errorf("user: %v", who)
		}
		if audit.AuditContextFrom(ctx) == nil {
			t.Error("no audit context")
		}
		if _, ok := audit.AuditIDFrom(ctx); !ok {
			t.Error("no audit ID")
		}
		if _, ok := request.ReceivedTimestampFrom(ctx); !ok {
			t.Error("no time of receipt")
		}
		if _, ok := request.LatencyTrackersFrom(ctx); !ok {
			t.Error("no latency trackers")
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
			t.Errorf("deadline: %v", deadline)
		}
		warning.AddWarning(ctx, "", "mind the gap")
		w.WriteHeader(http.StatusOK)
	})
	resp := get(t, server.URL+"/api/v1/namespaces/n/pods?timeout=5s", "good")
	if got := resp.Header.Get("Warning"); got != `299 - "mind the gap"` {
		t.Errorf("Warning: %q", got)
	}
}

func TestTimeout_EndsARequest(t *testing.T) {
	cfg := testConfig()
	cfg.Options.RequestTimeout = 50 * time.Millisecond
	ended := make(chan struct{})
	server := serve(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			_, bounded := r.Context().Deadline()
			_ = json.NewEncoder(w).Encode(bounded)
			return
		}
		<-r.Context().Done()
		close(ended)
	})
	resp := get(t, server.URL+"/api/v1/pods", "good")
	if s := resp.status(t); resp.Code != http.StatusGatewayTimeout || s.Reason != metav1.StatusReasonTimeout {
		t.Errorf("got %d %+v", resp.Code, s)
	}
	<-ended

	resp = get(t, server.URL+"/api/v1/pods?watch=1", "good")
	var bounded bool
	if err := json.Unmarshal(resp.Body, &bounded); err != nil || bounded {
		t.Errorf("a watch has a deadline (%v)", err)
	}
}

// blocking returns a handler that reports each request on entered and then waits for
// release.
func blocking() (handler http.HandlerFunc, entered chan struct{}, release func()) {
	entered, released := make(chan struct{}), make(chan struct{})
	return func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-released
	}, entered, sync.OnceFunc(func() { close(released) })
}

func TestMaxInFlight_RefusesTheRest(t *testing.T) {
	cfg := testConfig()
	cfg.Options.MaxRequestsInFlight = 1
	handler, entered, release := blocking()
	server := serve(t, cfg, handler)
	defer release()

	done := make(chan struct{})
	go func() {
		defer close(done)
		get(t, server.URL+"/api/v1/pods", "good")
	}()
	<-entered
	resp := get(t, server.URL+"/api/v1/pods", "good")
	if resp.Code != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d, Retry-After %q", resp.Code, resp.Header.Get("Retry-After"))
	}
	// Watches are not requests in flight.
	go func() { <-entered; release() }()
	if resp := get(t, server.URL+"/api/v1/pods?watch=1", "good"); resp.Code != http.StatusOK {
		t.Errorf("a watch got %d", resp.Code)
	}
	<-done
}

var expensive = []schema.GroupResource{{Group: "sql.byre.dev", Resource: "queries"}}

func TestPriorityAndFairness_QueuesRequests(t *testing.T) {
	cfg := testConfig()
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	cfg.FlowControl = NewFlowControl(600, factory, client,
		func(string) (storage.Stats, error) { return storage.Stats{}, nil }, expensive)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	factory.Start(ctx.Done())
	go func() { ended <- cfg.FlowControl.Run(ctx) }()
	defer func() { cancel(); <-ended; factory.Shutdown() }()

	server := serve(t, cfg, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	resp := get(t, server.URL+"/api/v1/pods", "good")
	if resp.Code != http.StatusOK {
		t.Fatalf("got %d", resp.Code)
	}
	for _, name := range []string{"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid"} {
		if _, ok := resp.Header[name]; !ok {
			t.Errorf("no header %s in %v", name, resp.Header)
		}
	}
	for resource, isExpensive := range map[string]bool{"queries": true, "pods": false} {
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "sql.byre.dev", APIVersion: "v1",
			Resource: resource}
		r := newRequest(t, server.URL, "good")
		work := cfg.FlowControl.estimator(r.WithContext(request.WithRequestInfo(r.Context(), info)), "catch-all", "catch-all")
		if (work.InitialSeats > 1) != isExpensive {
			t.Errorf("%s: %+v", resource, work)
		}
	}
	dump := httptest.NewRecorder()
	cfg.FlowControl.DebugHandler().ServeHTTP(dump,
		httptest.NewRequest(http.MethodGet, DebugPath+"dump_priority_levels", nil))
	if dump.Code != http.StatusOK {
		t.Errorf("dump: %d", dump.Code)
	}
}

func TestDraining_RefusesNewRequests(t *testing.T) {
	cfg := testConfig()
	cfg.Options.ShutdownSendRetryAfter = true
	cfg.Options.ShutdownWatchTerminationGracePeriod = time.Second
	notAccepting := make(chan struct{})
	cfg.Lifecycle.NotAcceptingNewRequest = notAccepting
	server := serve(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			return
		}
		signal := request.ServerShutdownSignalFrom(r.Context())
		_, _ = io.WriteString(w, "watching\n")
		w.(http.Flusher).Flush()
		<-signal.ShuttingDown()
	})
	stream, err := http.DefaultClient.Do(newRequest(t, server.URL+"/api/v1/pods?watch=1", "good"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	watch := bufio.NewReader(stream.Body)
	if _, err := watch.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	close(notAccepting)
	if _, err := watch.ReadString('\n'); err != io.EOF {
		t.Errorf("the watch ended with %v", err)
	}
	resp := get(t, server.URL+"/api/v1/pods", "good")
	if resp.Code != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d, Retry-After %q", resp.Code, resp.Header.Get("Retry-After"))
	}
}

// TestChain_OrderIsUpstreams compares the calls in Chain with those in upstream's
// function, in the order of their source. It fails when upstream adds, removes or moves
// a filter.
func TestChain_OrderIsUpstreams(t *testing.T) {
	upstream := calls(t, filepath.Join(storetest.ModuleDir(t, "k8s.io/apiserver"), "pkg/server/config.go"),
		"DefaultBuildHandlerChain")
	ours := calls(t, "chain.go", "addAuthorizationFilters", "addAuthenticationFilters", "addTimeoutFilters",
		"addOuterFilters")
	if diff := cmp.Diff(upstream, ours); diff != "" {
		t.Errorf("filters, innermost first, are not upstream's (-upstream +ours):\n%s", diff)
	}
}

// calls lists the filters that each of the functions of a file calls.
func calls(t *testing.T, file string, functions ...string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]*ast.BlockStmt{}
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			bodies[f.Name.Name] = f.Body
		}
	}
	var found []string
	for _, name := range functions {
		if bodies[name] == nil {
			t.Fatalf("%s has no function %s", file, name)
		}
		ast.Inspect(bodies[name], func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok &&
					(strings.HasPrefix(sel.Sel.Name, "With") || sel.Sel.Name == "Unauthorized") {
					found = append(found, sel.Sel.Name)
				}
			}
			return true
		})
	}
	return found
}

// BenchmarkChain measures the chain's fixed cost: a request of a user who needs no lookup,
// to a handler that does nothing.
func BenchmarkChain(b *testing.B) {
	for _, fair := range []bool{false, true} {
		name := "limits"
		if fair {
			name = "fairness"
		}
		b.Run(name, func(b *testing.B) {
			cfg := testConfig()
			response := &authenticator.Response{User: &user.DefaultInfo{Name: "admin",
				Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
			cfg.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return response, true, nil
			})
			client := fake.NewClientset()
			factory := informers.NewSharedInformerFactory(client, 0)
			if fair {
				cfg.FlowControl = NewFlowControl(600, factory, client,
					func(string) (storage.Stats, error) { return storage.Stats{}, nil }, expensive)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			factory.Start(ctx.Done())
			go func() { ended <- cfg.FlowControl.Run(ctx) }()
			defer func() { cancel(); <-ended; factory.Shutdown() }()

			handler := Chain(cfg)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
			}))
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/n/configmaps/c", nil)
				handler.ServeHTTP(discard{http.Header{}}, r)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
