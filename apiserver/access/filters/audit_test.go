package filters

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/apiserver/handlers/write"
)

// recorder is an audit backend that keeps the fields of events that the test compares.
type recorder struct {
	mu     sync.Mutex
	stages []string
}

func (r *recorder) ProcessEvents(events ...*auditapi.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		stage := fmt.Sprintf("%s %s", e.Stage, e.RequestURI)
		if e.ResponseStatus != nil {
			stage += fmt.Sprintf(" %d", e.ResponseStatus.Code)
		}
		r.stages = append(r.stages, stage)
	}
	return true
}

func (r *recorder) Run(<-chan struct{}) error { return nil }
func (r *recorder) Shutdown()                 {}
func (r *recorder) String() string            { return "recorder" }

// TestAudit_RecordsEveryStage sends a request that completes, one that stays open, one
// without a known user, and one whose handler panics.
func TestAudit_RecordsEveryStage(t *testing.T) {
	recorded := &recorder{}
	cfg := testConfig()
	cfg.AuditBackend, cfg.AuditPolicy = recorded, policy.NewFakePolicyRuleEvaluator(auditapi.LevelMetadata, nil)
	server := serve(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("a handler's mistake")
		}
		w.WriteHeader(http.StatusOK)
	})
	get(t, server.URL+"/api", "good")
	get(t, server.URL+"/api/v1/pods?watch=1", "good")
	get(t, server.URL+"/api?who", "bad")
	post := newRequest(t, server.URL+"/panic", "good")
	post.Method = http.MethodPost // the client would repeat a GET
	resp, err := http.DefaultClient.Do(post)
	if err == nil { // without an error the server answered instead of closing the connection
		resp.Body.Close()
	}
	server.Close()

	want := []string{
		"RequestReceived /api", "ResponseComplete /api 200",
		"RequestReceived /api/v1/pods?watch=1", "ResponseStarted /api/v1/pods?watch=1 200",
		"ResponseComplete /api/v1/pods?watch=1 200",
		"ResponseStarted /api?who 401",
		"RequestReceived /panic", "Panic /panic 500",
	}
	if !slices.Equal(recorded.stages, want) {
		t.Errorf("recorded are %q, want %q", recorded.stages, want)
	}
}

// who is an audit backend that keeps who made each request.
type who struct {
	recorder

	users []string
}

func (w *who) ProcessEvents(events ...*auditapi.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if e.Stage != auditapi.StageResponseComplete {
			continue
		}
		text := e.User.Username
		if e.ImpersonatedUser != nil {
			text += fmt.Sprint(" as ", e.ImpersonatedUser.Username, e.ImpersonatedUser.Groups)
		}
		w.users = append(w.users, fmt.Sprint(text, len(e.User.Extra)))
	}
	return true
}

// The event of a request names who has made it and whom it impersonates. Its handler runs with the rights of the
// impersonated user.
func TestAudit_NamesTheImpersonatedUser(t *testing.T) {
	t.Parallel()
	recorded := &who{}
	cfg := testConfig()
	cfg.AuditBackend, cfg.AuditPolicy = recorded, policy.NewFakePolicyRuleEvaluator(auditapi.LevelMetadata, nil)
	cfg.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "admin"}}, true, nil
	})
	var rights []string
	cfg.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision,
		string, error) {
		if !strings.HasPrefix(a.GetVerb(), "impersonate") {
			rights = append(rights, a.GetUser().GetName())
		}
		return authorizer.DecisionAllow, "", nil
	})
	var served []string
	server := serve(t, cfg, func(_ http.ResponseWriter, r *http.Request) {
		of, _ := request.UserFrom(r.Context())
		realUser, _ := write.RealUser(r.Context())
		served = append(served, fmt.Sprintf("%s%s%d%s", of.GetName(), of.GetGroups(), len(of.GetExtra()), realUser))
	})
	get(t, server.URL+"/api", "")
	get(t, server.URL+"/api", "", "Impersonate-User", "bob", "Impersonate-Group", "devs")
	server.Close()
	if want := []string{"admin0", "admin as bob[devs system:authenticated]0"}; !slices.Equal(recorded.users, want) {
		t.Errorf("recorded are %q, want %q", recorded.users, want)
	}
	if want := []string{"admin[]0", "bob[devs system:authenticated]0admin"}; !slices.Equal(served, want) {
		t.Errorf("served are %q, want %q", served, want)
	}
	if want := []string{"admin", "bob"}; !slices.Equal(rights, want) {
		t.Errorf("authorized are %q, want %q", rights, want)
	}
}
