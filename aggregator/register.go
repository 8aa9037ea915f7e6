package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

	"byre/apiserver/discovery"
)

// registrar gives every group version that is served by this server itself an
// APIService: a built-in one when the server starts, as upstream does, and those
// of custom resources whenever they change.
type registrar struct {
	registry *discovery.Registry
	places   map[schema.GroupVersion]discovery.Priority
	// changed is poked when the registry has changed; it has room for one.
	changed chan struct{}
	// registered is what upstream's controller was told of custom resources.
	registered sets.Set[schema.GroupVersion]

	mu sync.Mutex
	// missing are the built-in group versions that were not seen available yet;
	// nil until it is known which there are.
	missing sets.Set[string]
}

func newRegistrar(registry *discovery.Registry) *registrar {
	r := &registrar{
		registry:   registry,
		places:     discovery.Priorities(),
		changed:    make(chan struct{}, 1),
		registered: sets.New[schema.GroupVersion](),
	}
	registry.AddObserver(func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	})
	return r
}

// registerWorkers is how many APIServices upstream's controllers handle at a time.
const registerWorkers = 5

// run registers until ctx ends. What custom resources there are must be known
// to the registry before, or their APIServices would be taken for left over.
func (r *registrar) run(ctx context.Context, services informers.APIServiceInformer, client clientset.APIServicesGetter) error {
	controller := autoregister.NewAutoRegisterController(services, client)
	r.expect(r.addBuiltIn(controller))
	watching, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.see,
		UpdateFunc: func(_, object any) { r.see(object) },
	})
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	defer func() {
		if err := services.Informer().RemoveEventHandler(watching); err != nil {
			klog.V(2).InfoS("Handler of APIServices was not removed", "err", err)
		}
	}()
	r.sync(controller)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { controller.Run(registerWorkers, ctx.Done()) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			r.sync(controller)
		}
	}
}

// addBuiltIn has the built-in group versions registered and returns the names of
// their APIServices.
func (r *registrar) addBuiltIn(to autoregister.AutoAPIServiceRegistration) sets.Set[string] {
	names := sets.New[string]()
	for _, v := range r.registry.LocalVersions() {
		// What has no place is not registered: upstream would not know it from
		// what a custom resource has left.
		place, ok := r.places[v.GroupVersion]
		if v.Origin != discovery.BuiltIn || !ok {
			continue
		}
		service := apiService(v.GroupVersion, place)
		names.Insert(service.Name)
		to.AddAPIServiceToSyncOnStart(service)
	}
	return names
}

// sync has the group versions of custom resources registered, and no others.
func (r *registrar) sync(with autoregister.AutoAPIServiceRegistration) {
	custom := sets.New[schema.GroupVersion]()
	for _, v := range r.registry.LocalVersions() {
		if v.Origin == discovery.Custom {
			custom.Insert(v.GroupVersion)
		}
	}
	for gv := range custom.Difference(r.registered) {
		with.AddAPIServiceToSync(apiService(gv, discovery.Priority{Group: 1000, Version: 100}))
	}
	for gv := range r.registered.Difference(custom) {
		with.RemoveAPIServiceToSync(apiServiceName(gv))
	}
	r.registered = custom
}

func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func apiService(gv schema.GroupVersion, at discovery.Priority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: apiServiceName(gv)},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:                gv.Group,
			Version:              gv.Version,
			GroupPriorityMinimum: at.Group,
			VersionPriority:      at.Version,
		},
	}
}

func (r *registrar) expect(names sets.Set[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = names
}

func (r *registrar) see(object any) {
	service, ok := object.(*apiregistrationv1.APIService)
	if ok && helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.missing.Delete(service.Name)
	}
}

// ready is a health check that fails until every built-in group version was seen
// available.
func (r *registrar) ready(*http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing == nil {
		return errNotStarted
	}
	if len(r.missing) > 0 {
		return fmt.Errorf("missing APIService: %v", sets.List(r.missing))
	}
	return nil
}
