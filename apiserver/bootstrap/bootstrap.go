package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"

	"byre/apiserver/process"
)

// Config holds the dependencies and settings of Bootstrap.
type Config struct {
	// Client is a clientset over the server's loopback transport.
	Client kubernetes.Interface
	// Informers is an informer factory over Client. The caller starts it after New.
	Informers informers.SharedInformerFactory
	// APIResourceConfigSource says which APIs are served; nil means all.
	APIResourceConfigSource serverstorage.APIResourceConfigSource

	// ServiceCIDRs are the ranges of the default ServiceCIDR, one or two, the
	// primary first.
	ServiceCIDRs []net.IPNet
	// Service describes the kubernetes Service.
	Service Service
	// Leases stores the addresses of the running servers. nil means that this
	// server is the only one.
	Leases reconcilers.Leases
	// Ready is closed when this server is ready. PublishEndpoints adds the server to
	// the endpoints only then. nil means at once.
	Ready <-chan struct{}

	// ClusterAuthentication publishes the CAs and header names that extension API
	// servers trust in the ConfigMap kube-system/extension-apiserver-authentication.
	// Run runs it; nil publishes nothing.
	ClusterAuthentication *clusterauthenticationtrust.Controller
	// EpochEnded returns a channel that is closed when the store has lost commits, perhaps those of the steps that
	// have no interval. nil means never.
	EpochEnded func() <-chan struct{}

	Logger klog.Logger
}

// Service describes the Service default/kubernetes, by which Pods reach the API.
type Service struct {
	// ClusterIP is the Service's cluster IP, by convention the first address of the
	// primary range.
	ClusterIP net.IP
	// NodePort, if not zero, makes the Service a NodePort Service.
	NodePort int
	// AdvertiseAddress and AdvertisePort are the address at which this server is
	// reached. With a nil address the server is not added to the endpoints.
	AdvertiseAddress net.IP
	AdvertisePort    int
}

// step creates and repairs one kind of bootstrap objects, as one of upstream's post-start
// hooks does.
type step struct {
	// name is the name of upstream's post-start hook.
	name string
	// requires is the resource that the step writes. The step is left out if it is
	// not served.
	requires schema.GroupVersionResource
	// ensure creates the objects that are missing and repairs the others. It is
	// idempotent.
	ensure func(context.Context) error
	// interval is the time between two repairs. Zero means that ensure runs once
	// per start.
	interval time.Duration
	// isPrerequisite says that the other steps fail unless this one is done.
	isPrerequisite bool

	// done is true after the first success.
	done atomic.Bool
	// lastErr is the error of the last attempt; it points to nil after a success.
	lastErr atomic.Pointer[error]
}

// Bootstrap creates the bootstrap objects and repairs them periodically.
type Bootstrap struct {
	config Config
	steps  []*step
	// done is closed when every step has succeeded once.
	done chan struct{}
	// differentCIDRs are the ranges of the default ServiceCIDR that ensureServiceCIDR has logged last.
	differentCIDRs []string
}

// New makes a Bootstrap. It makes no request and starts no goroutine.
func New(c Config) *Bootstrap {
	if c.Leases == nil {
		c.Leases = &singleServerLeases{}
	}
	if c.Ready == nil {
		ready := make(chan struct{})
		close(ready)
		c.Ready = ready
	}
	if c.EpochEnded == nil {
		c.EpochEnded = func() <-chan struct{} { return nil }
	}
	b := &Bootstrap{config: c, done: make(chan struct{})}
	for _, s := range b.allSteps() {
		if c.APIResourceConfigSource != nil && !c.APIResourceConfigSource.ResourceEnabled(s.requires) {
			continue
		}
		if b.steps = append(b.steps, s); s.requires.Group == flowcontrolv1.GroupName {
			c.Informers.Flowcontrol().V1().FlowSchemas().Informer()
			c.Informers.Flowcontrol().V1().PriorityLevelConfigurations().Informer()
		}
	}
	return b
}

// allSteps returns every step, with the intervals of upstream's controllers.
func (b *Bootstrap) allSteps() []*step {
	core := schema.GroupVersion{Version: "v1"}
	return []*step{
		{name: "start-system-namespaces-controller", requires: core.WithResource("namespaces"),
			ensure: b.ensureNamespaces, interval: time.Minute, isPrerequisite: true},
		{name: "start-kubernetes-service-cidr-controller",
			requires: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
			ensure:   b.ensureServiceCIDR, interval: 10 * time.Second},
		{name: "bootstrap-controller", requires: core.WithResource("services"),
			ensure: b.ensureService, interval: 10 * time.Second},
		{name: "rbac/bootstrap-roles",
			requires: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
			ensure:   b.ensurePolicy},
		{name: "scheduling/bootstrap-system-priority-classes",
			requires: schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
			ensure:   b.ensurePriorityClasses},
		{name: "priority-and-fairness-config-producer",
			requires: schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
			ensure:   b.ensureFlowControl, interval: time.Minute},
	}
}

// Done is closed when every step has succeeded once. The server is not ready before.
func (b *Bootstrap) Done() <-chan struct{} { return b.done }

// Checks returns a readiness check for every step, which passes after the step's first success,
// and else says why the step is not done.
func (b *Bootstrap) Checks() []process.HealthChecker {
	var all []process.HealthChecker
	for _, s := range b.steps {
		all = append(all, healthz.NamedCheck(process.PostStartHookPrefix+s.name, s.check))
	}
	return all
}

func (s *step) check(*http.Request) error {
	if s.done.Load() {
		return nil
	}
	if err := s.lastErr.Load(); err != nil && *err != nil {
		return *err
	}
	return errors.New("not finished")
}

// Run calls Ensure and then repairs the steps that have an interval until ctx ends. It
// returns when all its goroutines have ended.
func (b *Bootstrap) Run(ctx context.Context) error {
	// Got before Ensure: commits that are lost while it runs may be those of a step that is done.
	ended := b.config.EpochEnded()
	if err := b.Ensure(ctx); err != nil {
		return nil //nolint:nilerr // Ensure fails only when ctx ends.
	}
	var loops sync.WaitGroup
	for _, s := range b.steps {
		if s.interval > 0 {
			loops.Go(func() { b.ensurePeriodically(ctx, s) })
		} else {
			loops.Go(func() { b.ensureInEachEpoch(ctx, s, ended) })
		}
	}
	if b.config.ClusterAuthentication != nil {
		loops.Go(func() { b.config.ClusterAuthentication.Run(ctx, 1) })
	}
	loops.Wait()
	return nil
}

// Ensure runs every step until it succeeds once, the prerequisites first. It returns an
// error only if ctx ends. It is called once, by Run or in its place.
func (b *Bootstrap) Ensure(ctx context.Context) error {
	for _, prerequisites := range []bool{true, false} {
		var running sync.WaitGroup
		for _, s := range b.steps {
			if s.isPrerequisite == prerequisites {
				running.Go(func() { b.ensureWithRetry(ctx, s) })
			}
		}
		running.Wait()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	close(b.done)
	return nil
}

// The first retry comes soon: during the start a step usually fails because a cache of
// another component has not synced yet.
const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// ensureWithRetry runs a step with exponential backoff until it succeeds or ctx ends.
func (b *Bootstrap) ensureWithRetry(ctx context.Context, s *step) {
	start := time.Now()
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		err := s.ensure(ctx)
		s.lastErr.Store(&err)
		if err == nil {
			s.done.Store(true)
			b.config.Logger.V(2).Info("Bootstrap step is done", "step", s.name, "duration", time.Since(start))
			return
		}
		b.report(err, s.name, delay)
		if !b.sleep(ctx, delay) {
			return
		}
	}
}

// report logs a failure of a step that is retried after delay. Failures before the
// longest delay are expected during the start (see minRetryDelay) and are logged at
// verbosity 2.
func (b *Bootstrap) report(err error, step string, delay time.Duration) {
	if delay < maxRetryDelay {
		b.config.Logger.V(2).Info("Bootstrap step will be tried again", "step", step, "err", err)
		return
	}
	b.config.Logger.Error(err, "Bootstrap step keeps failing; will try again", "step", step)
}

// ensurePeriodically repairs a step every interval until ctx ends.
func (b *Bootstrap) ensurePeriodically(ctx context.Context, s *step) {
	for b.sleep(ctx, s.interval) {
		if err := s.ensure(ctx); err != nil && ctx.Err() == nil {
			b.config.Logger.Error(err, "Could not repair the bootstrap objects; will try again", "step", s.name)
		}
	}
}

// ensureInEachEpoch runs a step again when ended is closed, and then in each new epoch until ctx ends.
func (b *Bootstrap) ensureInEachEpoch(ctx context.Context, s *step, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			ended = b.config.EpochEnded()
			b.ensureWithRetry(ctx, s)
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits for d. It returns false if ctx ends first.
func (b *Bootstrap) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// creator is the part of a client that createIfMissing uses.
type creator[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
}

// createIfMissing creates an object unless there is one of its name, which it does not change.
func createIfMissing[T metav1.Object](ctx context.Context, client creator[T], object T) error {
	_, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err = client.Create(ctx, object, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil // another replica has created it meanwhile
	}
	return err
}

// ensureNamespaces creates the system namespaces that are missing: those that every cluster has.
func (b *Bootstrap) ensureNamespaces(ctx context.Context) error {
	var failed []error
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
		metav1.NamespaceDefault} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := createIfMissing(ctx, b.config.Client.CoreV1().Namespaces(), namespace); err != nil {
			failed = append(failed, fmt.Errorf("namespace %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

// defaultServiceCIDR is the name of the ServiceCIDR with the ranges of the flags.
const defaultServiceCIDR = "kubernetes"

// ensureServiceCIDR creates the default ServiceCIDR and sets its condition Ready. It
// follows upstream's defaultservicecidr controller: it changes an existing ServiceCIDR
// only from single-stack to dual-stack, and sets the condition only if it is missing or
// unknown, so that changes by an administrator stay.
func (b *Bootstrap) ensureServiceCIDR(ctx context.Context) error {
	client := b.config.Client.NetworkingV1().ServiceCIDRs()
	var want []string
	for _, cidr := range b.config.ServiceCIDRs {
		want = append(want, cidr.String())
	}
	current, err := client.Get(ctx, defaultServiceCIDR, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		current, err = client.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDR},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: want},
		}, metav1.CreateOptions{})
	case err == nil && len(want) == 2 && slices.Equal(current.Spec.CIDRs, want[:1]):
		current = current.DeepCopy()
		current.Spec.CIDRs = want
		current, err = client.Update(ctx, current, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return b.ensureServiceCIDRReady(ctx, current, want)
}

func (b *Bootstrap) ensureServiceCIDRReady(
	ctx context.Context, current *networkingv1.ServiceCIDR, want []string,
) error {
	if current.DeletionTimestamp != nil {
		return nil // kube-controller-manager completes the deletion
	}
	if cidrs := current.Spec.CIDRs; !slices.Equal(cidrs, want) {
		if !slices.Equal(cidrs, b.differentCIDRs) {
			b.config.Logger.Info("The default ServiceCIDR differs from the configured ranges and is not changed", "is", cidrs,
				"configured", want)
			b.differentCIDRs = cidrs
		}
		return nil
	}
	ready := meta.FindStatusCondition(current.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if ready != nil && ready.Status != metav1.ConditionUnknown {
		return nil
	}
	current = current.DeepCopy()
	meta.SetStatusCondition(&current.Status.Conditions, metav1.Condition{
		Type:    networkingv1.ServiceCIDRConditionReady,
		Status:  metav1.ConditionTrue,
		Message: "Kubernetes default Service CIDR is ready",
	})
	_, err := b.config.Client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return err
}

const (
	// serviceName is the name of the Service in the namespace default.
	serviceName = "kubernetes"
	// portName is the name of the Service's port.
	portName = "https"
)

// ensureService creates the Service default/kubernetes if it is missing. It does not
// change an existing Service.
func (b *Bootstrap) ensureService(ctx context.Context) error {
	return createIfMissing(ctx, b.config.Client.CoreV1().Services(metav1.NamespaceDefault), b.service())
}

func (b *Bootstrap) service() *corev1.Service {
	singleStack := corev1.IPFamilyPolicySingleStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      serviceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{
				Protocol:   corev1.ProtocolTCP,
				Port:       443,
				Name:       portName,
				TargetPort: intstr.FromInt32(int32(b.config.Service.AdvertisePort)),
			}},
			// No selector: PublishEndpoints writes the endpoints.
			ClusterIP:       b.config.Service.ClusterIP.String(),
			IPFamilyPolicy:  &singleStack,
			SessionAffinity: corev1.ServiceAffinityNone,
			Type:            corev1.ServiceTypeClusterIP,
		},
	}
	if b.config.Service.NodePort > 0 {
		service.Spec.Type = corev1.ServiceTypeNodePort
		service.Spec.Ports[0].NodePort = int32(b.config.Service.NodePort)
	}
	return service
}

// ensurePriorityClasses creates the system priority classes that are missing.
func (b *Bootstrap) ensurePriorityClasses(ctx context.Context) error {
	for _, class := range schedulingv1.SystemPriorityClasses() {
		if err := createIfMissing(ctx, b.config.Client.SchedulingV1().PriorityClasses(), class); err != nil {
			return fmt.Errorf("priority class %s: %w", class.Name, err)
		}
	}
	return nil
}

// ensureFlowControl creates the suggested flow schemas and priority levels that are
// missing, creates or repairs the mandatory ones, and deletes those that an older release
// has created and nobody has changed.
func (b *Bootstrap) ensureFlowControl(ctx context.Context) error {
	client, cached := b.config.Client.FlowcontrolV1(), b.config.Informers.Flowcontrol().V1()
	levels, schemas := cached.PriorityLevelConfigurations(), cached.FlowSchemas()
	if !levels.Informer().HasSynced() || !schemas.Informer().HasSynced() {
		return errors.New("the informers of priority levels and flow schemas have not synced")
	}
	levelOps := ensurer.NewPriorityLevelConfigurationOps(client.PriorityLevelConfigurations(), levels.Lister())
	schemaOps := ensurer.NewFlowSchemaOps(client.FlowSchemas(), schemas.Lister())

	// The flow schemas follow the priority levels, because a schema names a level.
	err := ensureAll(ctx, levelOps, bootstrap.SuggestedPriorityLevelConfigurations,
		bootstrap.MandatoryPriorityLevelConfigurations)
	if err != nil {
		return fmt.Errorf("priority levels: %w", err)
	}
	if err := ensureAll(ctx, schemaOps, bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas); err != nil {
		return fmt.Errorf("flow schemas: %w", err)
	}

	allSchemas := slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas)
	if err := ensurer.RemoveUnwantedObjects(ctx, schemaOps, allSchemas); err != nil {
		return fmt.Errorf("remove flow schemas: %w", err)
	}
	allLevels := slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations)
	if err := ensurer.RemoveUnwantedObjects(ctx, levelOps, allLevels); err != nil {
		return fmt.Errorf("remove priority levels: %w", err)
	}
	return nil
}

// configuration is an object of flow control.
type configuration interface {
	*flowcontrolv1.PriorityLevelConfiguration | *flowcontrolv1.FlowSchema
	metav1.Object
	runtime.Object
}

// ensureAll ensures the objects of one kind side by side: concurrent writes share a commit, and
// so its fsync.
func ensureAll[T configuration](ctx context.Context, ops ensurer.ObjectOps[T], suggested, mandatory []T) error {
	var writes errgroup.Group
	ensure := func(objects []T, strategy ensurer.EnsureStrategy[T]) {
		for _, object := range objects {
			writes.Go(func() error { return ensurer.EnsureConfiguration(ctx, ops, object, strategy) })
		}
	}
	ensure(suggested, ensurer.NewSuggestedEnsureStrategy[T]())
	ensure(mandatory, ensurer.NewMandatoryEnsureStrategy[T]())
	return writes.Wait()
}
