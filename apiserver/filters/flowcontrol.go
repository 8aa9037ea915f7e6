package filters

import (
	"context"
	"net/http"
	"sync"

	serverfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// DebugPath is the prefix under which DebugHandler answers.
const DebugPath = "/debug/api_priority_and_fairness/"

// FlowControl is API priority and fairness (KEP-1040): which requests run now,
// which wait in which queue, which are turned away with 429.
//
// Before its configuration objects are known it works by upstream's built-in
// mandatory ones, so requests are served from the first moment.
type FlowControl struct {
	controller flowcontrol.Interface
	estimator  flowrequest.WorkEstimatorFunc
}

// ObjectCounter tells how many objects of a resource ("pods", "deployments.apps")
// there are, and of which size, by which the cost of a LIST is estimated. An
// error makes the estimate a careful one.
type ObjectCounter = func(resource string) (storage.Stats, error)

// NewFlowControl returns nil when the options turn priority and fairness off.
// It registers informers with the factory, which the caller starts.
func NewFlowControl(o *Options, factory informers.SharedInformerFactory, client kubernetes.Interface, count ObjectCounter) *FlowControl {
	if !o.PriorityAndFairness {
		return nil
	}
	expectListsFromMemory()
	controller := flowcontrol.New(factory, client.FlowcontrolV1(), o.MaxRequestsInFlight+o.MaxMutatingRequestsInFlight)
	return &FlowControl{
		controller: controller,
		estimator: flowrequest.NewWorkEstimator(count, controller.GetInterestedWatchCount,
			flowrequest.DefaultWorkEstimatorConfig(), controller.GetMaxSeats),
	}
}

// expectListsFromMemory makes the estimator charge consistent lists as lists from the
// watch cache, which they are. Upstream asks the version of etcd whether the cache can
// answer them, and charges them as lists from etcd where there is none to ask.
var expectListsFromMemory = sync.OnceFunc(func() {
	feature.DefaultFeatureSupportChecker = consistentReads{feature.DefaultFeatureSupportChecker}
})

type consistentReads struct{ feature.FeatureSupportChecker }

// Supports implements feature.FeatureSupportChecker.
func (consistentReads) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }

// Run keeps the queues in line with the configuration objects, and the
// metrics' high-water marks fresh, until ctx ends. It runs on a nil FlowControl
// too, where only the marks of the plain limits are kept.
func (f *FlowControl) Run(ctx context.Context) error {
	if f == nil {
		serverfilters.StartMaxInFlightWatermarkMaintenance(ctx.Done())
		<-ctx.Done()
		return nil
	}
	serverfilters.StartPriorityAndFairnessWatermarkMaintenance(ctx.Done())
	return f.controller.Run(ctx.Done())
}

// DebugHandler serves upstream's dumps of levels, queues and requests under
// DebugPath. It must stand behind the chain, as whatever shows users' requests.
func (f *FlowControl) DebugHandler() http.Handler {
	m := mux.NewPathRecorderMux("priority-and-fairness")
	if f != nil {
		f.controller.Install(m)
	}
	return m
}
