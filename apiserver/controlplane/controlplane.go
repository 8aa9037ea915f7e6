package controlplane

import (
	"context"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"

	"byre/apiserver/health"
)

// Config is what New needs; all but PeerAddress is required.
type Config struct {
	// ServerID is the name of this server's identity Lease; see ServerID.
	ServerID string
	// Hostname is the name of the host, for the Lease's label.
	Hostname string
	// PeerAddress is the host and port at which other servers reach this one.
	PeerAddress string
	// Client is the server's own clientset, and Loopback its configuration.
	Client   kubernetes.Interface
	Loopback *rest.Config
	// Informers is a factory over Client.
	Informers informers.SharedInformerFactory
	// APIResourceConfigSource says which APIs are on.
	APIResourceConfigSource serverstorage.APIResourceConfigSource
	FeatureGate             featuregate.FeatureGate
	LeaderElection          LeaderElectionTimers
	Logger                  klog.Logger
}

// ControlPlane is the controllers of one server.
type ControlPlane struct {
	config  Config
	hooks   []postStartHook
	started chan struct{}
}

// postStartHook is one controller, with the name of upstream's post-start hook.
type postStartHook struct {
	name string
	run  func(context.Context)
}

// Validate tells whether the feature gates that are on have the APIs they need.
func Validate(gates featuregate.FeatureGate, resources serverstorage.APIResourceConfigSource) error {
	candidates := coordinationv1beta1.SchemeGroupVersion
	if gates.Enabled(features.CoordinatedLeaderElection) && !resources.ResourceEnabled(candidates.WithResource("leasecandidates")) {
		return fmt.Errorf("--feature-gates=%s=true needs --runtime-config=%s=true: candidates are kept in that API", features.CoordinatedLeaderElection, candidates)
	}
	return nil
}

// New makes the controllers that the feature gates and the served APIs allow. It
// starts nothing.
func New(c Config) *ControlPlane {
	p := &ControlPlane{config: c, started: make(chan struct{})}
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	if c.FeatureGate.Enabled(features.CoordinatedLeaderElection) {
		// The factory must know of these before it is started.
		c.Informers.Coordination().V1().Leases().Informer()
		c.Informers.Coordination().V1beta1().LeaseCandidates().Informer()
		p.add("start-kube-apiserver-coordinated-leader-election-controller", p.runCoordinatedLeaderElection)
	}
	if c.FeatureGate.Enabled(features.APIServerIdentity) && p.isServed(leases) {
		p.add("start-kube-apiserver-identity-lease-controller", p.runIdentityLease)
		p.add("start-kube-apiserver-identity-lease-garbage-collector", p.runIdentityLeaseGC)
	}
	if p.isServed(corev1.SchemeGroupVersion.WithResource("configmaps")) {
		p.add("start-legacy-token-tracking-controller", func(ctx context.Context) {
			legacytokentracking.NewController(c.Client).RunWithContext(ctx)
		})
	}
	return p
}

func (p *ControlPlane) isServed(resource schema.GroupVersionResource) bool {
	return p.config.APIResourceConfigSource.ResourceEnabled(resource)
}

func (p *ControlPlane) add(name string, run func(context.Context)) {
	p.hooks = append(p.hooks, postStartHook{name, run})
}

// Checks are the parts of a start, under upstream's names.
func (p *ControlPlane) Checks() []health.Checker {
	var checks []health.Checker
	for _, part := range p.hooks {
		checks = append(checks, health.PostStartHook(part.name, p.started))
	}
	return checks
}

// Run runs the controllers until ctx ends.
func (p *ControlPlane) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, part := range p.hooks {
		running.Go(func() { part.run(klog.NewContext(ctx, p.config.Logger)) })
	}
	close(p.started)
	<-ctx.Done()
	running.Wait()
	return nil
}
