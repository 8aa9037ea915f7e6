package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers rest_client_* and workqueue_*
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/controller-manager/pkg/features/register" // registers a feature gate that kube-apiserver has too
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/access/filters"
	"byre/apiserver/console"
	"byre/apiserver/handlers"
	"byre/apiserver/process"

	"byre/apiserver/process/kubeversion"
	"byre/apiserver/storage"
	"byre/sqlstore"
)

// counted counts the requests of a path that is no resource's, under the name that the
// aggregator gives it in kube-apiserver's metrics.
func counted(name string, handler http.Handler) http.Handler {
	return endpointmetrics.InstrumentHandlerFunc(http.MethodGet, "", "", "", name, "", "", false, "", handler.ServeHTTP)
}

// installPaths adds the paths that belong to no API group, and checks.
func installPaths(paths *mux.PathRecorderMux, o Completed, d process.Dependencies, s *storageBackend, a *access, checks *checkPaths) {
	checks.addTo(paths)
	index := routes.ListedPathProviders{paths, checks, listed(d.Discovery.Paths)}
	routes.Index{}.Install(index, paths)
	handleDocument(paths, "/version", http.HandlerFunc(serveVersion))
	paths.Handle("/openapi/v2", d.OpenAPI)
	paths.Handle("/openapi/v3", counted("openapi/v3", d.OpenAPI))
	paths.HandlePrefix("/openapi/v3/", counted("openapi/v3/", d.OpenAPI))
	exported := mux.NewPathRecorderMux("metrics")
	if o.Features.EnableProfiling { // as kube-apiserver, which resets metrics by DELETE only then
		routes.MetricsWithReset{}.Install(exported)
		slis.SLIMetricsWithReset{}.Install(paths)
	} else {
		routes.DefaultMetrics{}.Install(exported)
		slis.SLIMetrics{}.Install(paths)
	}
	serviceaccount.RegisterMetrics()
	kubeversion.Register(legacyregistry.Register)
	metrics.SetStorageMonitorGetter(storageMonitors(s.database.Driver))
	paths.Handle("/metrics", withStorageMetrics(s.getter, exported))
	paths.UnlistedHandle(CompactPath, http.HandlerFunc(s.serveCompact))
	if o.Console {
		paths.UnlistedHandlePrefix(console.Path, http.HandlerFunc(console.Gate))
	}
	installProfiling(o.Features, paths)
	if a.flow != nil {
		paths.UnlistedHandlePrefix(filters.DebugPath, a.flow.DebugHandler())
	}
	documents, err := a.auth.TokenIssuer.OpenIDMetadataHandlers()
	if err != nil {
		// Tokens are issued all the same, but other servers cannot discover the keys
		// that verify them.
		klog.InfoS("Service account issuer discovery is off", "reason", err)
	}
	for path, handler := range documents {
		handleDocument(paths, path, handler)
	}
	installZPages(paths, o.Options, index.ListedPaths)
}

// handleDocument serves a path that can only be read, also with a slash at its end.
func handleDocument(paths *mux.PathRecorderMux, path string, h http.Handler) {
	h = handlers.GetOnly(h, legacyscheme.Codecs)
	paths.Handle(path, h)
	paths.UnlistedHandle(path+"/", h)
}

// listed is a function that lists paths for the index of paths at "/".
type listed func() []string

func (l listed) ListedPaths() []string { return l() }

// serveVersion answers /version.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	body, err := json.MarshalIndent(Version(effectiveVersion()), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails only if the client has gone
}

// withStorageMetrics updates the gauges of what is stored before next reports them.
func withStorageMetrics(getter *storage.RESTOptionsGetter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		getter.UpdateMetrics()
		next.ServeHTTP(w, req)
	})
}

// sizeMonitor measures the database for apiserver_storage_size_bytes.
type sizeMonitor struct{ driver sqlstore.Driver }

// sizeTimeout bounds one measurement. Without it /metrics would not be answered while the
// database is silent.
const sizeTimeout = 2 * time.Second

// Monitor implements upstream's metrics.Monitor.
func (m sizeMonitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, sizeTimeout)
	defer cancel()
	size, err := m.driver.Size(ctx)
	return metrics.StorageMetrics{Size: size}, err
}

// Close implements upstream's metrics.Monitor.
func (sizeMonitor) Close() error { return nil }

func storageMonitors(driver sqlstore.Driver) func() ([]metrics.Monitor, error) {
	return func() ([]metrics.Monitor, error) { return []metrics.Monitor{sizeMonitor{driver}}, nil }
}
