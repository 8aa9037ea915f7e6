package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers rest_client_* and workqueue_*
	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/component-base/tracing"
	zpages "k8s.io/component-base/zpages/features"
	_ "k8s.io/controller-manager/pkg/features/register" // registers a feature gate that kube-apiserver has too
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/access/filters"
	"byre/apiserver/handlers"
	"byre/apiserver/process"
	"byre/apiserver/process/kubeversion"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
)

// counted counts the requests of a path that is no resource's, under the name that the
// aggregator gives it in kube-apiserver's metrics.
func counted(name string, handler http.Handler) http.Handler {
	return endpointmetrics.InstrumentHandlerFunc(http.MethodGet, "", "", "", name, "", "", false, "", handler.ServeHTTP)
}

// installPaths adds the paths that belong to no API group, but for those of checks.
func installPaths(paths *mux.PathRecorderMux, o Completed, d process.Dependencies, s *storageBackend, a *access) {
	index := routes.ListedPathProviders{paths, listed(d.Discovery.Paths)}
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

// newChecks makes the checks of /livez, /readyz and /healthz. A check that kube-apiserver
// has too bears kube-apiserver's name, because probes and dashboards name it.
func newChecks(
	o Completed, s *storageBackend, c clients, a *access, b *registry.Builtin, h *hooks, signals *process.Signals,
	features []process.HealthChecker,
) process.HealthChecks {
	store, storeReady := process.StoreHealth(s.checkDatabase)
	return process.HealthChecks{
		Always:       []process.HealthChecker{healthz.LogHealthz, store},
		NotLive:      s.encryption.checks,
		BootSequence: newBootChecks(a, b, h, signals),
		Writes: append([]process.HealthChecker{s.writable(storeReady)},
			s.quotaCheck(o.Store.DatabaseQuota.Value())...),
		ReadyzOnly: []process.HealthChecker{informerCheck(a.auth.Ready, c.informers),
			healthz.NewShutdownHealthz(signals.ShutdownInitiated.Signaled())},
		Separate:         features,
		LivezGracePeriod: o.Generic.LivezGracePeriod,
	}
}

// informerCheck is kube-apiserver's check of its informers, of which the Node authorizer here
// has one of its own: isReady reports it.
func informerCheck(isReady func() error, shared informers.SharedInformerFactory) process.HealthChecker {
	synced := healthz.NewInformerSyncHealthz(shared)
	return healthz.NamedCheck(synced.Name(), func(r *http.Request) error {
		if err := isReady(); err != nil {
			return err
		}
		return synced.Check(r)
	})
}

// newBootChecks makes the checks that pass once the parts of this server have started.
func newBootChecks(
	a *access, b *registry.Builtin, h *hooks, signals *process.Signals,
) []process.HealthChecker {
	started := signals.MuxAndDiscoveryComplete.Signaled()
	checks := process.PostStartHooks(started,
		// MuxAndDiscoveryComplete is signaled after the store has its first revision
		// and the feed follows the store.
		"storage-readiness",
		"start-apiserver-admission-initializer",
		"generic-apiserver-start-informers",
	)
	if a.flow == nil {
		checks = append(checks, process.PostStartHook("max-in-flight-filter", started))
	} else {
		checks = append(checks,
			process.PostStartHooks(started, "priority-and-fairness-config-consumer", "priority-and-fairness-filter")...)
	}
	checks = append(checks, process.PostStartHook("start-service-ip-repair-controllers", b.Repaired()))
	checks = append(checks, h.bootstrap.Checks()...)
	checks = append(checks, process.PostStartHook("start-cluster-authentication-info-controller", h.keys.tried.Signaled()))
	return append(checks, h.controlplane.Checks()...)
}

// zpagesName is what a kube-apiserver calls itself on /statusz and /flagz.
const zpagesName = "apiserver"

// installZPages adds /flagz and /statusz where upstream's feature gates enable them.
// The caller adds all other paths before, because /statusz lists them.
func installZPages(paths *mux.PathRecorderMux, o *Options, listed func() []string) {
	if utilfeature.DefaultFeatureGate.Enabled(zpages.ComponentFlagz) {
		flagz.Install(paths, zpagesName, o)
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpages.ComponentStatusz) {
		all := append(listed(), statusz.DefaultStatuszPath)
		slices.Sort(all)
		statusz.Install(paths, zpagesName, statusz.NewRegistry(release{effectiveVersion()}, statusz.WithListedPaths(all)))
	}
}

// release is an effective version that has the binary version of /version, which
// includes the patch level.
type release struct {
	basecompatibility.EffectiveVersion
}

func (r release) BinaryVersion() *utilversion.Version {
	full, err := utilversion.ParseSemantic(Version(r.EffectiveVersion).GitVersion)
	if err != nil {
		return r.EffectiveVersion.BinaryVersion()
	}
	return full
}

// installProfiling adds /debug to the paths of the API's port.
func installProfiling(o *genericoptions.FeatureOptions, paths *mux.PathRecorderMux) {
	if o.EnableContentionProfiling && (o.EnableProfiling || o.DebugSocketPath != "") {
		runtime.SetBlockProfileRate(1)
	}
	if o.EnableProfiling {
		routes.Profiling{}.Install(paths)
		routes.DebugFlags{}.Install(paths, "v", routes.StringFlagPutHandler(logs.GlogSetter))
	}
}

// serveDebugSocket serves profiles over the Unix socket at path until ctx ends.
func serveDebugSocket(ctx context.Context, path string) error {
	socket := routes.NewDebugSocket(path)
	socket.InstallProfiling()
	socket.InstallDebugFlag("v", routes.StringFlagPutHandler(logs.GlogSetter))
	if err := ignoreClosed(socket.RunWithContext(ctx)); err != nil {
		return fmt.Errorf("--debug-socket-path: %w", err)
	}
	return nil
}

// traceTimeout bounds how long a shutdown waits until the last spans are sent.
const traceTimeout = 5 * time.Second

// newTracer makes the provider that sends spans, which starts sending; it is nil
// without a configuration. The selector finds the collector's dialer; nil means a direct connection.
func newTracer(file, serverID string, selector *egressselector.EgressSelector) (tracing.TracerProvider, error) {
	config := genericapiserver.Config{APIServerID: serverID}
	if err := (&genericoptions.TracingOptions{ConfigFile: file}).ApplyTo(selector, &config); err != nil {
		return nil, fmt.Errorf("--tracing-config-file: %w", err)
	}
	return config.TracerProvider, nil
}

// closeTracer sends the spans that are left, for at most traceTimeout.
func closeTracer(tracer tracing.TracerProvider) {
	if tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceTimeout)
	defer cancel()
	if err := tracer.Shutdown(ctx); err != nil {
		klog.InfoS("The last spans could not be sent", "err", err)
	}
}
