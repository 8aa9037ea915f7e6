package aggregator

import (
	"context"
	"errors"
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

	"byre/apiserver/handlers/documents"
)

// registrar registers an APIService for every group version that this server serves
// itself: for built-in ones at the start, as upstream does, and for those of custom
// resources whenever they change.
type registrar struct {
	registry   *documents.Discovery
	priorities map[schema.GroupVersion]documents.GroupPriority
	// changed receives a value after the registry has changed.
	changed chan struct{}
	// registered has the group versions of custom resources that upstream's controller
	// registers.
	registered sets.Set[schema.GroupVersion]

	mu sync.Mutex
	// missing has the APIServices of built-in group versions that were not available yet;
	// nil before run.
	missing sets.Set[string]
}

func newRegistrar(registry *documents.Discovery) *registrar {
	r := &registrar{
		registry:   registry,
		priorities: documents.GroupPriorities(),
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

// registerWorkers is how many APIServices upstream's controller processes at a time.
const registerWorkers = 5

// run registers APIServices until ctx ends. The caller calls it once the registry lists all
// custom resources: upstream's controller deletes the APIServices of group versions that the
// registry does not list.
func (r *registrar) run(ctx context.Context, services informers.APIServiceInformer, client clientset.APIServicesGetter) error {
	controller := autoregister.NewAutoRegisterController(services, client)
	r.setMissing(r.addBuiltIn(controller))
	registration, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.onAPIService,
		UpdateFunc: func(_, object any) { r.onAPIService(object) },
	})
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	defer func() {
		if err := services.Informer().RemoveEventHandler(registration); err != nil {
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

// addBuiltIn registers the built-in group versions and returns the names of their
// APIServices.
func (r *registrar) addBuiltIn(to autoregister.AutoAPIServiceRegistration) sets.Set[string] {
	names := sets.New[string]()
	for _, v := range r.registry.LocalVersions() {
		// A group version without a priority is not registered: at the next start upstream
		// could not tell its APIService from one that a custom resource has left.
		priority, ok := r.priorities[v.GroupVersion]
		if v.Origin != documents.BuiltIn || !ok {
			continue
		}
		service := apiService(v.GroupVersion, priority)
		names.Insert(service.Name)
		to.AddAPIServiceToSyncOnStart(service)
	}
	return names
}

// sync registers the group versions of custom resources, and removes those that are gone.
func (r *registrar) sync(with autoregister.AutoAPIServiceRegistration) {
	custom := sets.New[schema.GroupVersion]()
	for _, v := range r.registry.LocalVersions() {
		if v.Origin == documents.Custom {
			custom.Insert(v.GroupVersion)
		}
	}
	for gv := range custom.Difference(r.registered) {
		with.AddAPIServiceToSync(apiService(gv, documents.GroupPriority{Group: 1000, Version: 100}))
	}
	for gv := range r.registered.Difference(custom) {
		with.RemoveAPIServiceToSync(apiServiceName(gv))
	}
	r.registered = custom
}

func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func apiService(gv schema.GroupVersion, at documents.GroupPriority) *apiregistrationv1.APIService {
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

func (r *registrar) setMissing(names sets.Set[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = names
}

// onAPIService notes that an APIService is available.
func (r *registrar) onAPIService(object any) {
	service, ok := object.(*apiregistrationv1.APIService)
	if ok && helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.missing.Delete(service.Name)
	}
}

var errNotFinished = errors.New("not finished")

// ready is a health check that fails until every built-in group version has been
// available.
func (r *registrar) ready(*http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing == nil {
		return errNotFinished
	}
	if len(r.missing) > 0 {
		return fmt.Errorf("missing APIService: %v", sets.List(r.missing))
	}
	return nil
}
