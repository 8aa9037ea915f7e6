package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
	"byre/crd/instances"
)

// controller follows the definitions with an informer. It updates the resolver, discovery
// and OpenAPI, and runs upstream's controllers, which set the conditions of definitions
// and delete the instances of deleted ones.
type controller struct {
	resolver  *resolver
	factory   externalversions.SharedInformerFactory
	informer  cache.SharedIndexInformer
	discovery *discoveryPublisher
	openapi   *openAPIPublisher
	// revision returns the last revision that the feed has applied.
	revision func() int64

	establishing *establish.EstablishingController
	controllers  []func(context.Context)
	calls        *storeCalls

	// synced is closed when discovery lists all definitions that existed at the start.
	synced chan struct{}
	// started is closed when the informers and controllers have been started.
	started chan struct{}
}

// controllerWorkers is the number of workers of those controllers that take one;
// upstream's value.
const controllerWorkers = 5

func newController(d process.Dependencies, r *resolver, own *group) (*controller, error) {
	client, err := clientset.NewForConfig(d.Loopback)
	if err != nil {
		return nil, fmt.Errorf("crd: loopback client: %w", err)
	}
	c := &controller{
		resolver:  r,
		factory:   externalversions.NewSharedInformerFactory(client, 0),
		discovery: newDiscoveryPublisher(r, d.Discovery),
		openapi:   newOpenAPIPublisher(r, d.OpenAPI, d.Build, own),
		revision:  d.Storage.Feed.Revision,
		started:   make(chan struct{}),
		synced:    make(chan struct{}),
		calls:     &storeCalls{},
	}
	// The factory keeps the informer of the first call of InformerFor, and gives it to all
	// controllers.
	c.informer = c.factory.InformerFor(&apiextensionsv1.CustomResourceDefinition{},
		func(_ clientset.Interface, resync time.Duration) cache.SharedIndexInformer {
			return own.newInformer(resync)
		})
	definitions, api := c.factory.Apiextensions().V1().CustomResourceDefinitions(), statusClient{client.ApiextensionsV1()}
	c.establishing = establish.NewEstablishingController(definitions, api)
	naming := status.NewNamingConditionController(klog.Background(), definitions, api)
	structural := nonstructuralschema.NewConditionController(definitions, api)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(definitions, api)
	finalizing := finalizer.NewCRDFinalizer(definitions, api, cleaners{r, c.calls})
	c.controllers = []func(context.Context){
		c.establishing.RunWithContext,
		naming.RunWithContext,
		func(ctx context.Context) { structural.RunWithContext(controllerWorkers, ctx) },
		func(ctx context.Context) { approval.RunWithContext(controllerWorkers, ctx) },
		func(ctx context.Context) { finalizing.RunWithContext(controllerWorkers, ctx) },
	}
	return c, nil
}

// releaseInterval is how long compiled validation and types stay in memory without a
// request that uses them, at least.
const releaseInterval = 5 * time.Minute

// Run follows the definitions until ctx ends.
func (c *controller) Run(ctx context.Context) error {
	handler, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { c.onChange(object) },
		UpdateFunc: func(_, object any) { c.onChange(object) },
		DeleteFunc: c.onDelete,
	})
	if err != nil {
		return fmt.Errorf("crd: %w", err)
	}
	var group sync.WaitGroup
	defer c.calls.drain()
	defer group.Wait()
	c.factory.StartWithContext(ctx)
	defer c.factory.Shutdown()
	for _, run := range c.controllers {
		group.Go(func() { run(ctx) })
	}
	close(c.started)
	if !cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
		return nil
	}
	c.publish()
	close(c.synced)
	idle := time.NewTicker(releaseInterval)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.resolver.notify:
			c.publish()
		case <-idle.C:
			c.resolver.release()
		}
	}
}

// Synced is closed when discovery lists all definitions that existed when Run began.
// Requests for instances are answered before: the resolver reads definitions that the
// informer has not shown yet from the store.
func (c *controller) Synced() <-chan struct{} { return c.synced }

// Checks are the readiness checks, under upstream's names.
func (c *controller) Checks() []process.HealthChecker {
	return append(process.PostStartHooks(c.started, "start-apiextensions-informers", "start-apiextensions-controllers"),
		process.PostStartHook("crd-informer-synced", c.synced))
}

func (c *controller) onChange(object any) {
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	c.resolver.put(crd, false)
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) && !instances.IsEstablished(crd) {
		// Upstream delays this until other servers have seen the definition. Here every
		// server reads what its informer has not shown yet; see resolver.
		c.establishing.QueueCRD(crd.Name, 0)
	}
}

func (c *controller) onDelete(object any) {
	missed := false
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object, missed = last.Obj, true
	}
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	// A DELETED event has the object at the revision of its deletion.
	revision := instances.Revision(crd)
	if missed {
		revision = max(revision, c.revision())
	}
	c.resolver.remove(crd, revision)
}

// publish brings discovery and OpenAPI up to date with the groups that have changed.
func (c *controller) publish() {
	groups := c.resolver.takeChanged()
	if groups.Len() == 0 {
		return
	}
	var errs []error
	for group := range groups {
		errs = append(errs, c.discovery.update(group))
		c.openapi.update(group)
	}
	c.openapi.publish()
	if err := errors.Join(errs...); err != nil {
		klog.ErrorS(err, "Discovery of custom resources is not complete")
	}
}

// statusClient is the client of the controllers. Invariant: it writes only what they
// change, the status and the finalizers. They work on stripped definitions: an update
// would remove the schemas.
type statusClient struct {
	client.CustomResourceDefinitionsGetter
}

func (c statusClient) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return statusWriter{c.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

type statusWriter struct {
	client.CustomResourceDefinitionInterface
}

// patchOperation is an operation of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// UpdateStatus patches the status and the finalizers. It fails with a conflict where an
// update would.
func (w statusWriter) UpdateStatus(
	ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, options metav1.UpdateOptions,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	finalizers := crd.Finalizers
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal([]patchOperation{
		{"add", "/metadata/uid", crd.UID},
		{"add", "/metadata/resourceVersion", crd.ResourceVersion},
		{"add", "/metadata/finalizers", finalizers},
		{"add", "/status", crd.Status},
	})
	if err != nil {
		return nil, err
	}
	written, err := w.Patch(ctx, crd.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{DryRun: options.DryRun, FieldManager: options.FieldManager,
			FieldValidation: options.FieldValidation}, "status")
	if err != nil {
		return nil, err
	}
	instances.Strip(written)
	return written, nil
}
