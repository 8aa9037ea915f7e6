package filters

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
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
		"RequestReceived /api/v1/pods?watch=1", "ResponseStarted /api/v1/pods?watch=1 200", "ResponseComplete /api/v1/pods?watch=1 200",
		"ResponseStarted /api?who 401",
		"RequestReceived /panic", "Panic /panic 500",
	}
	if !slices.Equal(recorded.stages, want) {
		t.Errorf("recorded are %q, want %q", recorded.stages, want)
	}
}
