package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	// The metrics of client-go (rest_client_*, workqueue_*) and kubernetes_build_info.
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/endpoints"
	"byre/apiserver/filters"
	"byre/apiserver/health"
	"byre/apiserver/openapi"
	"byre/sqlstore"
)

// buildChain makes the handler behind the filters, from the last delegate to the
// first: 404, custom resources, this server's API, its other paths, the aggregator.
func (s *Server) buildChain() (http.Handler, error) {
	groups := s.builtin.Groups()
	names, err := endpoints.ModelNames(groups)
	if err != nil {
		return nil, err
	}
	models := openapi.NewModels(s.Effective.EmulationVersion().String(), generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
	s.Serving = endpoints.Serving{
		Admission:         s.admission.Plugins,
		Authorizer:        s.auth.Authorizer,
		TypeConverter:     models.TypeConverter(names...),
		MinRequestTimeout: time.Duration(s.config.Options.Filters.MinRequestTimeout) * time.Second,
	}
	var delegate http.Handler = notfoundhandler.New(legacyscheme.Codecs, endpointfilters.NoMuxAndDiscoveryIncompleteKey)
	if s.config.CustomResources != nil {
		if delegate, err = s.newChainedServer(s.config.CustomResources, delegate); err != nil {
			return nil, err
		}
	}
	api, err := endpoints.New(endpoints.Config{
		Groups:    groups,
		Serving:   s.Serving,
		Discovery: s.Discovery,
		NotFound:  delegate,
	})
	if err != nil {
		return nil, err
	}
	roots := append(api.Roots(), openapi.VersionRoot())
	roots = append(roots, openapi.TokenIssuerRoots()...)
	s.OpenAPI.Set("builtin", models.Source(roots, s.Build))
	paths := mux.NewPathRecorderMux("byre")
	paths.NotFoundHandler(api)
	var chain http.Handler = paths
	if s.config.Aggregator != nil {
		if chain, err = s.newChainedServer(s.config.Aggregator, paths); err != nil {
			return nil, err
		}
	}
	// Last: the checks of the other servers are among the paths.
	s.installPaths(paths)
	return chain, nil
}

func (s *Server) newChainedServer(build NewChainedServer, delegate http.Handler) (http.Handler, error) {
	n, err := build(s.Shared, delegate)
	if err != nil {
		return nil, err
	}
	s.chained = append(s.chained, n)
	return n, nil
}

// installPaths adds the paths that are not of any API group.
func (s *Server) installPaths(paths *mux.PathRecorderMux) {
	index := routes.ListedPathProviders{paths, listed(s.Discovery.Paths)}
	routes.Index{}.Install(index, paths)
	s.readyChecks = health.Install(paths, s.checks())
	document(paths, "/version", http.HandlerFunc(s.serveVersion))
	paths.Handle("/openapi/v2", s.OpenAPI)
	paths.Handle("/openapi/v3", s.OpenAPI)
	paths.HandlePrefix("/openapi/v3/", s.OpenAPI)
	exported := mux.NewPathRecorderMux("metrics")
	routes.MetricsWithReset{}.Install(exported)
	serviceaccount.RegisterMetrics()
	metrics.SetStorageMonitorGetter(storageMonitors(s.core.database.Driver))
	paths.Handle("/metrics", s.withStorageMetrics(exported))
	slis.SLIMetricsWithReset{}.Install(paths)
	s.config.Options.Debug.installProfiling(paths)
	if s.flow != nil {
		paths.UnlistedHandlePrefix(filters.DebugPath, s.flow.DebugHandler())
	}
	documents, err := s.auth.TokenIssuer.OpenIDMetadataHandlers()
	if err != nil {
		// Tokens work without: only other servers can't find the keys.
		klog.InfoS("Service account issuer discovery is off", "reason", err)
	}
	for path, handler := range documents {
		document(paths, path, handler)
	}
	s.installZPages(paths, index.ListedPaths)
}

// document serves what can only be read, with or without a slash at the end of
// its path.
func document(paths *mux.PathRecorderMux, path string, h http.Handler) {
	h = endpoints.GetOnly(h, legacyscheme.Codecs)
	paths.Handle(path, h)
	paths.UnlistedHandle(path+"/", h)
}

// listed is a function that lists paths for the index.
type listed func() []string

func (l listed) ListedPaths() []string { return l() }

func (s *Server) serveVersion(w http.ResponseWriter, _ *http.Request) {
	body, err := json.MarshalIndent(Version(s.Effective), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails only if the client has gone
}

// withStorageMetrics brings the gauges of what is stored up to date before they
// are read.
func (s *Server) withStorageMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.getter.UpdateMetrics()
		next.ServeHTTP(w, req)
	})
}

// sizeMonitor measures the database for apiserver_storage_size_bytes.
type sizeMonitor struct{ sqlstore.Sizer }

// Monitor implements upstream's metrics.Monitor.
func (m sizeMonitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	size, err := m.Size(ctx)
	return metrics.StorageMetrics{Size: size}, err
}

// Close implements upstream's metrics.Monitor.
func (sizeMonitor) Close() error { return nil }

func storageMonitors(driver sqlstore.Driver) func() ([]metrics.Monitor, error) {
	return func() ([]metrics.Monitor, error) {
		sizer, ok := driver.(sqlstore.Sizer)
		if !ok {
			return nil, nil
		}
		return []metrics.Monitor{sizeMonitor{sizer}}, nil
	}
}
