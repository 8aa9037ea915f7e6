package controllers

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

	"byre/apiserver/process"
)

// ControlPlaneConfig holds the dependencies of a ControlPlane. All fields but PeerAddress and Hosts are
// required.
type ControlPlaneConfig struct {
	// ServerID is the name of this server's identity Lease; see ServerID.
	ServerID string
	// Hostname is the host's name, which the Lease has as a label.
	Hostname string
	// PeerAddress is the host and port at which other servers reach this one.
	PeerAddress string
	// Hosts returns the names and addresses under which this server is reached now. nil publishes none.
	Hosts func() ([]string, error)
	// Client is a clientset over the server's loopback transport, and Loopback its
	// configuration.
	Client   kubernetes.Interface
	Loopback *rest.Config
	// Informers is an informer factory over Client.
	Informers informers.SharedInformerFactory
	// APIResourceConfigSource says which APIs are served.
	APIResourceConfigSource serverstorage.APIResourceConfigSource
	FeatureGate             featuregate.FeatureGate
	LeaderElection          LeaderElectionTimers
	Logger                  klog.Logger
}

// ControlPlane runs the controllers.
type ControlPlane struct {
	config  ControlPlaneConfig
	hooks   []postStartHook
	started chan struct{}
}

// postStartHook is one controller with the name of the upstream post-start hook that
// starts it.
type postStartHook struct {
	name string
	run  func(context.Context)
}

// Validate returns an error if an enabled feature gate needs an API that is not served.
func Validate(gates featuregate.FeatureGate, resources serverstorage.APIResourceConfigSource) error {
	candidates := coordinationv1beta1.SchemeGroupVersion
	if gates.Enabled(features.CoordinatedLeaderElection) && !resources.ResourceEnabled(candidates.WithResource("leasecandidates")) {
		return fmt.Errorf("--feature-gates=%s=true needs --runtime-config=%s=true: candidates are kept in that API", features.CoordinatedLeaderElection, candidates)
	}
	return nil
}

// NewControlPlane builds the controllers that the feature gates and the served APIs enable. It starts
// no goroutine.
func NewControlPlane(c ControlPlaneConfig) *ControlPlane {
	p := &ControlPlane{config: c, started: make(chan struct{})}
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	if c.FeatureGate.Enabled(features.CoordinatedLeaderElection) {
		// An informer must be requested before the factory is started.
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

// Checks returns a health check for each post-start hook, under upstream's names.
func (p *ControlPlane) Checks() []process.HealthChecker {
	var checks []process.HealthChecker
	for _, part := range p.hooks {
		checks = append(checks, process.PostStartHook(part.name, p.started))
	}
	return checks
}

// Run runs the controllers until ctx ends and waits for their end.
func (p *ControlPlane) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, part := range p.hooks {
		running.Go(func() { part.run(klog.NewContext(ctx, p.config.Logger)) })
	}
	if p.config.Hosts != nil {
		running.Go(func() { p.runHosts(ctx) })
	}
	close(p.started)
	<-ctx.Done()
	running.Wait()
	return nil
}
