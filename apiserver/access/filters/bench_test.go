package filters

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

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
			response := &authenticator.Response{User: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
			cfg.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return response, true, nil })
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

			handler := Chain(cfg)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
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
