package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/cryptobyte"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/features"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
	"k8s.io/utils/clock"

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
	if gates.Enabled(features.CoordinatedLeaderElection) &&
		!resources.ResourceEnabled(candidates.WithResource("leasecandidates")) {
		return fmt.Errorf("--feature-gates=%s=true needs --runtime-config=%s=true: candidates are kept in that API",
			features.CoordinatedLeaderElection, candidates)
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

func (c *ControlPlane) isServed(resource schema.GroupVersionResource) bool {
	return c.config.APIResourceConfigSource.ResourceEnabled(resource)
}

func (c *ControlPlane) add(name string, run func(context.Context)) {
	c.hooks = append(c.hooks, postStartHook{name, run})
}

// Checks returns a health check for each post-start hook, under upstream's names.
func (c *ControlPlane) Checks() []process.HealthChecker {
	var checks []process.HealthChecker
	for _, part := range c.hooks {
		checks = append(checks, process.PostStartHook(part.name, c.started))
	}
	return checks
}

// Run runs the controllers until ctx ends and waits for their end.
func (c *ControlPlane) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, part := range c.hooks {
		running.Go(func() { part.run(klog.NewContext(ctx, c.config.Logger)) })
	}
	if c.config.Hosts != nil {
		running.Go(func() { c.runHosts(ctx) })
	}
	close(c.started)
	<-ctx.Done()
	running.Wait()
	return nil
}

// Name, label and periods of the identity Lease are upstream's, because tools find the
// Lease by them.
const (
	identityLabel    = "apiserver.kubernetes.io/identity"
	identityName     = "kube-apiserver"
	identityDuration = time.Hour
	identityRenewal  = 10 * time.Second
	identityGCPeriod = time.Hour
)

// upstreamPort is the default of --secure-port.
const upstreamPort = "6443"

// ServerID returns the ID of the server on the given host and port. On the default port it is the
// one that upstream computes, from the host alone; servers on one host would renew one Lease then,
// and each would take the other's renewals for conflicts.
func ServerID(hostname, port string) (string, error) {
	b := cryptobyte.NewBuilder(nil)
	parts := []string{hostname, identityName}
	if port != upstreamPort {
		parts = append(parts, port)
	}
	for _, part := range parts {
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(part)) })
	}
	data, err := b.Bytes()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	hash := sha256.Sum256(data)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16])), nil
}

// runIdentityLease renews the identity Lease until ctx ends, and then deletes it.
func (c *ControlPlane) runIdentityLease(ctx context.Context) {
	controller := lease.NewController(clock.RealClock{}, c.config.Client, c.config.ServerID+"_"+uuid.NewString(),
		int32(identityDuration/time.Second), nil, identityRenewal, c.config.ServerID, metav1.NamespaceSystem,
		c.setLeaseMetadata)
	// Start first deletes a Lease that an earlier process has left.
	if err := controller.Start(ctx.Done()); err != nil {
		c.config.Logger.Error(err, "Could not start the controller of the identity Lease")
		return
	}
	<-ctx.Done()
	controller.Stop()
}

// setLeaseMetadata sets the labels and annotations of the identity Lease.
func (c *ControlPlane) setLeaseMetadata(identity *coordinationv1.Lease) error {
	set := func(all *map[string]string, key, value string) {
		if *all == nil {
			*all = map[string]string{}
		}
		(*all)[key] = value
	}
	set(&identity.Labels, identityLabel, identityName)
	set(&identity.Labels, corev1.LabelHostname, c.config.Hostname)
	if c.config.FeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy) && c.config.PeerAddress != "" {
		set(&identity.Annotations, corev1.AnnotationPeerAdvertiseAddress, c.config.PeerAddress)
	}
	return nil
}

// runIdentityLeaseGC deletes the expired Leases of servers that were killed.
func (c *ControlPlane) runIdentityLeaseGC(ctx context.Context) {
	apiserverleasegc.NewAPIServerLeaseGC(c.config.Client, identityGCPeriod, metav1.NamespaceSystem,
		identityLabel+"="+identityName).RunWithContext(ctx)
}

// HostsConfigMap is the ConfigMap in kube-system in which each server publishes its ServerHosts under its ID. The
// identity Lease would not do: a server deletes it when it stops, and its names must not become another's meanwhile.
const HostsConfigMap = "byre-apiserver-hosts"

const (
	// hostsLifetime is that of the certificates that byre issues: for so long after its last start a server that is gone
	// may have one for its names.
	hostsLifetime = 365 * 24 * time.Hour
	// hostsInterval is the time between two looks at the files of certificates. The server reloads them every minute.
	hostsInterval = time.Minute
	hostsRetry    = 2 * time.Second
)

// ServerHosts are the names and addresses under which an API server is reached. No node may have a certificate for
// them, unless it is proven that it is on the server's host.
type ServerHosts struct {
	// Hostname is the name of the server's host.
	Hostname string `json:"hostname"`
	// Hosts are the names and addresses in the certificates that the server serves with, and those of its flags.
	Hosts []string `json:"hosts"`
	// Until is when the entry ends unless it is renewed.
	Until metav1.Time `json:"until"`
}

// PublishedHosts returns what the servers of a cluster have published, by their IDs.
func PublishedHosts(ctx context.Context, client kubernetes.Interface) (map[string]ServerHosts, error) {
	published, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, HostsConfigMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	all := make(map[string]ServerHosts, len(published.Data))
	for id, text := range published.Data {
		var hosts ServerHosts
		if err := json.Unmarshal([]byte(text), &hosts); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %s: %w", metav1.NamespaceSystem, HostsConfigMap, id, err)
		}
		all[id] = hosts
	}
	return all, nil
}

// runHosts publishes the names and addresses of this server until ctx ends.
func (c *ControlPlane) runHosts(ctx context.Context) {
	for isReported := false; ; {
		next := hostsInterval
		if err := c.publishHosts(ctx); err == nil {
			isReported = false
		} else {
			next = hostsRetry
			if !isReported && ctx.Err() == nil {
				c.config.Logger.Error(err, "Could not publish the names and addresses of this server; will try again")
				isReported = true
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// publishHosts writes the entry of this server if it has changed or half of its lifetime is over, and deletes those
// that have ended.
func (c *ControlPlane) publishHosts(ctx context.Context) error {
	hosts, err := c.config.Hosts()
	if err != nil {
		return err
	}
	published, err := PublishedHosts(ctx, c.config.Client)
	if err != nil {
		return err
	}
	now := time.Now()
	data := make(map[string]*string)
	for id, entry := range published {
		if id != c.config.ServerID && entry.Until.Time.Before(now) {
			data[id] = nil
		}
	}
	entry := published[c.config.ServerID]
	if entry.Hostname != c.config.Hostname || !slices.Equal(entry.Hosts, hosts) ||
		entry.Until.Time.Before(now.Add(hostsLifetime/2)) {
		text, err := json.Marshal(ServerHosts{c.config.Hostname, hosts, metav1.NewTime(now.Add(hostsLifetime))})
		if err != nil {
			return err
		}
		data[c.config.ServerID] = new(string(text))
	}
	if len(data) == 0 {
		return nil
	}
	return PatchConfigMap(ctx, c.config.Client, HostsConfigMap, data)
}

// PatchConfigMap sets and, where a value is nil, deletes keys of a ConfigMap in kube-system. It creates the ConfigMap
// if there is none.
func PatchConfigMap(ctx context.Context, client kubernetes.Interface, name string, data map[string]*string) error {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: make(map[string]string)}
	for key, value := range data {
		if value != nil {
			made.Data[key] = *value
		}
	}
	_, err = maps.Create(ctx, made, metav1.CreateOptions{})
	return err
}

// LeaderElectionTimers are the timers of the election of the server that runs the
// coordinated leader election.
type LeaderElectionTimers struct{ LeaseDuration, RenewDeadline, RetryPeriod time.Duration }

// DefaultLeaderElectionTimers returns kube-apiserver's defaults.
func DefaultLeaderElectionTimers() LeaderElectionTimers {
	return LeaderElectionTimers{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 2 * time.Second}
}

// Validate returns one error for each invalid flag.
func (t LeaderElectionTimers) Validate() []error {
	var errs []error
	if t.LeaseDuration <= t.RenewDeadline {
		errs = append(errs,
			errors.New("--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"))
	}
	if t.RenewDeadline <= t.RetryPeriod {
		errs = append(errs,
			errors.New("--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"))
	}
	if t.RetryPeriod <= 0 {
		errs = append(errs, errors.New("--coordinated-leadership-retry-period must be positive"))
	}
	return errs
}

// candidateGCPeriod is the time between two garbage collections of LeaseCandidates, as in
// kube-apiserver.
const candidateGCPeriod = 30 * time.Minute

// runCoordinatedLeaderElection runs upstream's controller, which selects leaders among
// LeaseCandidates, while this server is the elected coordinator.
func (c *ControlPlane) runCoordinatedLeaderElection(ctx context.Context) {
	leases := c.config.Informers.Coordination().V1().Leases()
	candidates := c.config.Informers.Coordination().V1beta1().LeaseCandidates()
	leaderelection.RunWithLeaderElection(ctx, c.config.Loopback, func() (func(context.Context, int), error) {
		controller, err := leaderelection.NewController(leases, candidates, c.config.Client.CoordinationV1(),
			c.config.Client.CoordinationV1beta1())
		if err != nil {
			return nil, err
		}
		gc := leaderelection.NewLeaseCandidateGC(c.config.Client, candidateGCPeriod, candidates)
		return func(ctx context.Context, workers int) {
			var collecting sync.WaitGroup
			defer collecting.Wait()
			collecting.Go(func() { gc.Run(ctx) })
			controller.Run(ctx, workers)
		}, nil
	}, leaderelection.LeaderElectionTimers(c.config.LeaderElection))
}
