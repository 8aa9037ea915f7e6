package server

import (
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric/noop"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/capabilities"
)

// maxPatchCopy bounds the bytes that the copy operations of one JSON patch add up to;
// kube-apiserver's value.
const maxPatchCopy = 3 << 20

// Apply sets what upstream keeps process-wide: feature gates, logging, which
// metrics are shown, and whether containers may be privileged. A process calls it once,
// before Complete.
func (o *Options) Apply() error {
	if err := compatibility.DefaultComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	filterLog(o.Logs)
	utilfeature.DefaultMutableFeatureGate.AddMetrics()
	compatibility.DefaultComponentGlobalsRegistry.AddMetrics()
	// Upstream logs warnings about metrics options even if none is set.
	if !equality.Semantic.DeepEqual(o.Metrics, metrics.NewOptions()) {
		o.Metrics.Apply()
	}
	// Upstream's clients also count their requests in OpenTelemetry's metrics. Nothing
	// reads these here, and they would keep every client in memory for ever.
	otel.SetMeterProvider(noop.NewMeterProvider())
	// A JSON patch can copy within a document. Without a bound, a small patch of a
	// small object could make an object that exhausts the memory.
	atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchCopy)
	capabilities.Setup(o.Cluster.AllowPrivileged, o.Cluster.MaxConnectionBytesPerSec)
	return nil
}
