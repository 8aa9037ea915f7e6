package filters

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// DebugPath is the path prefix of DebugHandler.
const DebugPath = "/debug/api_priority_and_fairness/"

// FlowControl is API priority and fairness (KEP-1040): it decides which requests run,
// which wait in a queue, and which are rejected with 429.
//
// Until its informers have synced it uses upstream's mandatory configuration, so that
// requests are served from the start.
type FlowControl struct {
	controller flowcontrol.Interface
	estimator  flowrequest.WorkEstimatorFunc
}

// ObjectCounter returns the number and size of the objects of a resource ("pods",
// "deployments.apps"), from which the cost of a LIST is estimated. If it fails, the
// estimate is the maximum.
type ObjectCounter = func(resource string) (storage.Stats, error)

// NewFlowControl lets at most limit requests run, shared among the priority levels. It registers
// informers with factory; the caller starts the factory. To create an object of expensive takes costlySeats.
func NewFlowControl(
	limit int, factory informers.SharedInformerFactory, client kubernetes.Interface, count ObjectCounter,
	expensive []schema.GroupResource,
) *FlowControl {
	expectListsFromMemory()
	controller := flowcontrol.New(factory, client.FlowcontrolV1(), limit)
	estimate := flowrequest.NewWorkEstimator(count, controller.GetInterestedWatchCount,
		flowrequest.DefaultWorkEstimatorConfig(), controller.GetMaxSeats)
	return &FlowControl{
		controller: controller,
		estimator: func(r *http.Request, schemaName, level string) flowrequest.WorkEstimate {
			work := estimate(r, schemaName, level)
			if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb == "create" &&
				slices.Contains(expensive, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
				work.InitialSeats = costlySeats
				if most := controller.GetMaxSeats(level); most > 0 { // 0: it is not known
					work.InitialSeats = min(costlySeats, most)
				}
			}
			return work
		},
	}
}

// costlySeats is how many seats a request takes that reads and computes for seconds: as many as the largest LIST.
const costlySeats = 10

// expectListsFromMemory makes upstream's estimator charge a consistent LIST as a LIST from
// the watch cache, because the watch cache answers it. Upstream decides that by the
// version of etcd; without etcd it would charge such a LIST as one from etcd.
var expectListsFromMemory = sync.OnceFunc(func() {
	feature.DefaultFeatureSupportChecker = consistentReads{feature.DefaultFeatureSupportChecker}
})

type consistentReads struct{ feature.FeatureSupportChecker }

// Supports implements feature.FeatureSupportChecker.
func (consistentReads) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }

// Run updates the queues when the configuration objects change, and the high-water marks
// of the metrics, until ctx ends. On a nil FlowControl it updates only the high-water
// marks of requests in flight.
func (f *FlowControl) Run(ctx context.Context) error {
	if f == nil {
		serverfilters.StartMaxInFlightWatermarkMaintenance(ctx.Done())
		<-ctx.Done()
		return nil
	}
	serverfilters.StartPriorityAndFairnessWatermarkMaintenance(ctx.Done())
	return f.controller.Run(ctx.Done())
}

// DebugHandler serves upstream's dumps of priority levels, queues and requests under
// DebugPath. The dumps show requests of all users; the caller must wrap the handler in
// the chain, which authorizes access to it.
func (f *FlowControl) DebugHandler() http.Handler {
	m := mux.NewPathRecorderMux("priority-and-fairness")
	f.controller.Install(m)
	return m
}
