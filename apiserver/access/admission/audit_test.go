package admission

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"byre/apiserver/access/filters"
)

const rules = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/livez"]
- level: Metadata
`

func options(t *testing.T, flags ...string) *AuditOptions {
	t.Helper()
	o := NewAuditOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(flags); err != nil {
		t.Fatal(err)
	}
	if errs := o.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return o
}

func write(t *testing.T, name, data string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// record makes requests for the paths through the filter chain and returns once all events
// are recorded. The user is "u"; paths that end in "?401" are requested without a user.
func record(t *testing.T, o *AuditOptions, paths ...string) {
	t.Helper()
	a, err := NewAudit(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()

	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	handler := filters.Chain(filters.Config{
		Options:    genericoptions.NewServerRunOptions(),
		Serializer: serializer.NewCodecFactory(scheme),
		Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "u"}}, r.URL.RawQuery != "401", nil
		}),
		Authorizer:   authorizerfactory.NewAlwaysAllowAuthorizer(),
		AuditBackend: a.Backend,
		AuditPolicy:  a.Policy,
		FeatureGate:  utilfeature.DefaultFeatureGate,
		Lifecycle: filters.Lifecycle{MuxAndDiscoveryComplete: make(chan struct{}),
			NonLongRunningRequests: new(waitgroup.SafeWaitGroup), WatchRequests: new(waitgroup.RateLimitedSafeWaitGroup)},
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for _, path := range paths {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// summary returns the fields of an event that the tests compare.
func summary(e auditv1.Event) string {
	return fmt.Sprintf("%s %s %s %s %d", e.Stage, e.User.Username, e.Verb, e.RequestURI, e.ResponseStatus.Code)
}

var (
	asked    = []string{"/api/v1/namespaces/n/pods", "/livez", "/api?401"}
	recorded = []string{
		"ResponseComplete u list /api/v1/namespaces/n/pods 200",
		"ResponseStarted  get /api?401 401",
	}
)

func TestLog_WritesEvents(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{
		nil,
		{"--audit-log-mode=batch"},
		{"--audit-log-mode=blocking-strict"},
		{"--audit-log-maxsize=0"},
		{"--audit-log-truncate-enabled"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "new", "audit.log")
			record(t,
				options(t, append(flags, "--audit-policy-file="+write(t, "policy.yaml", rules), "--audit-log-path="+file)...),
				asked...)

			log, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if info, err := log.Stat(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode is %v (%v)", info.Mode(), err)
			}
			var got []string
			for lines := bufio.NewScanner(log); lines.Scan(); {
				var event auditv1.Event
				if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
					t.Fatal(err)
				}
				got = append(got, summary(event))
			}
			// Batches may arrive in any order.
			slices.Sort(got)
			if diff := cmp.Diff(recorded, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWebhook_SendsEvents(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	webhook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, event := range list.Items {
			got = append(got, summary(event))
		}
	}))
	defer webhook.Close()
	config := write(t, "webhook.kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, webhook.URL))
	// The webhook's batch would wait for 30 s: the end of the run flushes it.
	record(t, options(t, "--audit-policy-file="+write(t, "policy.yaml", rules), "--audit-webhook-config-file="+config),
		asked...)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(got)
	if diff := cmp.Diff(recorded, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAudit_OffWithoutAPolicy: without a policy file nothing is recorded.
func TestAudit_OffWithoutAPolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	for _, flags := range [][]string{nil, {"--audit-log-path=" + file}} {
		a, err := NewAudit(options(t, flags...), nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.Backend != nil || a.Policy != nil {
			t.Errorf("%v: something is recorded", flags)
		}
	}
}

func TestAudit_RefusesWrongSettings(t *testing.T) {
	t.Parallel()
	file := write(t, "policy.yaml", rules)
	for _, test := range []struct {
		name, want string
		flags      []string
	}{
		{"no policy", "audit: loading audit policy file", []string{"--audit-policy-file=/nonexistent"}},
		{"no directory", "--audit-log-path", []string{"--audit-policy-file=" + file, "--audit-log-path=" + file + "/log"}},
		{"no webhook", "audit: initializing audit webhook",
			[]string{"--audit-policy-file=" + file, "--audit-webhook-config-file=/nonexistent"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := NewAudit(options(t, test.flags...), nil); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAuditOptions_Validate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flag, want string }{
		{"--audit-log-mode=never", `invalid audit log mode never, allowed modes are "batch,blocking,blocking-strict"`},
		{"--audit-log-format=xml", `invalid audit log format xml, allowed formats are "legacy,json"`},
		{"--audit-log-version=v1", `invalid group version, allowed versions are ["audit.k8s.io/v1"]`},
		{"--audit-log-maxage=-1", "--audit-log-maxage -1 can't be a negative number"},
		{"--audit-log-truncate-max-event-size=0", "invalid audit truncate log max event size 0, must be a positive number"},
		{"--audit-log-truncate-max-batch-size=1",
			"invalid audit truncate log max batch size 1, must be greater than max event size (102400)"},
		{"--audit-webhook-batch-buffer-size=0", "invalid audit batch webhook buffer size 0, must be a positive number"},
		{"--audit-webhook-batch-throttle-qps=0", "invalid audit batch webhook throttle QPS 0, must be a positive number"},
	} {
		t.Run(test.flag, func(t *testing.T) {
			o := NewAuditOptions()
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse([]string{"--audit-log-path=-", "--audit-webhook-config-file=f", test.flag}); err != nil {
				t.Fatal(err)
			}
			errs := o.Validate()
			if len(errs) != 1 || errs[0].Error() != test.want {
				t.Errorf("got %v, want %q", errs, test.want)
			}
		})
	}
}
