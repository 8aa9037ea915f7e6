package options

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

// maxPatchCopy is how many bytes the copies of one JSON patch may add up to;
// kube-apiserver's bound.
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
	// Upstream complains in the log about flags that nobody set.
	if !equality.Semantic.DeepEqual(o.Metrics, metrics.NewOptions()) {
		o.Metrics.Apply()
	}
	// Upstream's clients count their requests in OpenTelemetry's metrics too, which
	// nothing reads and which would keep each client for ever.
	otel.SetMeterProvider(noop.NewMeterProvider())
	// A JSON patch copies within a document: without a bound, a small patch of a
	// small object makes an answer that fills the memory.
	atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchCopy)
	capabilities.Setup(o.Cluster.AllowPrivileged, o.Cluster.MaxConnectionBytesPerSec)
	return nil
}
