package server

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/tracing"
	zpages "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"
)

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
type release struct{ compatibility.EffectiveVersion }

func (r release) BinaryVersion() *version.Version {
	full, err := version.ParseSemantic(Version(r.EffectiveVersion).GitVersion)
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
