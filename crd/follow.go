package crd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"byre/apiserver/delegation"
	"byre/apiserver/health"
)

// follower watches the definitions: it keeps the table, discovery and OpenAPI
// at what there is, and runs the controllers that give definitions their
// conditions and clean up after them.
type follower struct {
	table     *table
	factory   externalversions.SharedInformerFactory
	informer  cache.SharedIndexInformer
	announcer *announcer
	publisher *publisher

	establishing *establish.EstablishingController
	controllers  []func(context.Context)
	calls        *storeCalls

	// synced is closed when everything that was defined at the start is served,
	// and shown by discovery.
	synced chan struct{}
	// started is closed when the informers and controllers have been started.
	started chan struct{}

	mu     sync.Mutex
	groups sets.Set[string] // that have changed
	poke   chan struct{}    // has room for one
}

// controllerWorkers is how many definitions upstream's controllers look at at a
// time, where they take a number.
const controllerWorkers = 5

func newFollower(d delegation.Dependencies, t *table) (*follower, error) {
	client, err := clientset.NewForConfig(d.Loopback)
	if err != nil {
		return nil, fmt.Errorf("crd: loopback client: %w", err)
	}
	f := &follower{
		table:     t,
		factory:   externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTransform(forCache)),
		announcer: &announcer{table: t, registry: d.Discovery, announced: map[string]map[string][]metav1.APIResource{}},
		publisher: &publisher{
			table: t, service: d.OpenAPI, build: d.Build,
			parts:  &documentParts{shared: t.shared, kept: map[partKey][]byte{}},
			groups: map[string]map[schema.GroupVersion][]described{},
		},
		started: make(chan struct{}),
		synced:  make(chan struct{}),
		calls:   &storeCalls{},
		groups:  sets.New[string](),
		poke:    make(chan struct{}, 1),
	}
	definitions, api := f.factory.Apiextensions().V1().CustomResourceDefinitions(), statusClient{client.ApiextensionsV1(), f.calls}
	f.informer = definitions.Informer()
	f.establishing = establish.NewEstablishingController(definitions, api)
	naming := status.NewNamingConditionController(klog.Background(), definitions, api)
	structural := nonstructuralschema.NewConditionController(definitions, api)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(definitions, api)
	finalizing := finalizer.NewCRDFinalizer(definitions, api, cleaners{t, f.calls})
	f.controllers = []func(context.Context){
		f.establishing.RunWithContext,
		naming.RunWithContext,
		func(ctx context.Context) { structural.RunWithContext(controllerWorkers, ctx) },
		func(ctx context.Context) { approval.RunWithContext(controllerWorkers, ctx) },
		func(ctx context.Context) { finalizing.RunWithContext(controllerWorkers, ctx) },
	}
	return f, nil
}

// forCache is what the informer keeps of an object.
func forCache(object any) (any, error) {
	if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
		strip(crd)
	}
	return object, nil
}

// releaseInterval is how long what was compiled for writers is kept without any,
// at least.
const releaseInterval = 5 * time.Minute

// Run follows the definitions until ctx ends.
func (f *follower) Run(ctx context.Context) error {
	handler, err := f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { f.onChange(object) },
		UpdateFunc: func(_, object any) { f.onChange(object) },
		DeleteFunc: f.onDelete,
	})
	if err != nil {
		return fmt.Errorf("crd: %w", err)
	}
	var group sync.WaitGroup
	defer f.calls.drain()
	defer group.Wait()
	f.factory.StartWithContext(ctx)
	defer f.factory.Shutdown()
	for _, run := range f.controllers {
		group.Go(func() { run(ctx) })
	}
	close(f.started)
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil
	}
	f.flush()
	close(f.synced)
	idle := time.NewTicker(releaseInterval)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.poke:
			f.flush()
		case <-idle.C:
			f.table.release()
		}
	}
}

// Synced is closed when everything that was defined when Run began is shown by
// discovery. (Requests are answered before: what the watch has not shown yet is
// looked for in the store.)
func (f *follower) Synced() <-chan struct{} { return f.synced }

// Checks are the parts of a start, under upstream's names.
func (f *follower) Checks() []health.Checker {
	return append(health.Hooks(f.started, "start-apiextensions-informers", "start-apiextensions-controllers"),
		health.Hook("crd-informer-synced", f.synced))
}

func (f *follower) onChange(object any) {
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	f.table.put(crd, false)
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) && !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		// Upstream waits here for other servers to have seen it. Ours look for
		// what they have not seen; see table.find.
		f.establishing.QueueCRD(crd.Name, 0)
	}
}

func (f *follower) onDelete(object any) {
	unseen := false
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object, unseen = last.Obj, true
	}
	crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	// What a watch shows of a deleted object has the revision of the delete.
	revision := revisionOf(crd)
	if unseen {
		revision = max(revision, f.table.seen())
	}
	f.table.remove(crd, revision)
}

// mark notes that a group has changed. Changes that come together are shown
// together.
func (f *follower) mark(group string) {
	f.mu.Lock()
	f.groups.Insert(group)
	f.mu.Unlock()
	select {
	case f.poke <- struct{}{}:
	default:
	}
}

// flush shows the groups that have changed as they are now.
func (f *follower) flush() {
	f.mu.Lock()
	groups := f.groups
	f.groups = sets.New[string]()
	f.mu.Unlock()
	if len(groups) == 0 {
		return
	}
	var errs []error
	for group := range groups {
		errs = append(errs, f.announcer.announce(group))
		f.publisher.note(group)
	}
	f.publisher.publish()
	if err := errors.Join(errs...); err != nil {
		klog.ErrorS(err, "Discovery of custom resources is not complete")
	}
}
