package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"byre/apiserver/handlers"
)

// Builtin holds the built-in groups and the allocators of cluster IPs and node ports.
type Builtin struct {
	groups    []handlers.Group
	ips       *ClusterIPs
	nodePorts *NodePorts

	// repaired is closed when cluster IPs and node ports have been repaired once.
	repaired chan struct{}
}

// New builds the storages of the resources that Config.APIResourceConfigSource and the
// feature gates enable. The constructor of upstream's cluster IP allocator starts a
// goroutine that watches the ServiceCIDRs; Run or Close ends it. New starts nothing
// else.
func New(c Config) (*Builtin, error) {
	release, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(c.Emulation)
	if err != nil {
		return nil, err
	}
	nodePorts, err := NewNodePorts(c.RESTOptions, c.Services.NodePortRange, c.Client)
	if err != nil {
		return nil, fmt.Errorf("node ports: %w", err)
	}
	ips, err := NewClusterIPs(c.Client, c.Informers, c.Services.ClusterIPRange, c.Services.SecondaryClusterIPRange)
	if err != nil {
		return nil, fmt.Errorf("cluster IPs: %w", err)
	}
	b := &Builtin{ips: ips, nodePorts: nodePorts, repaired: make(chan struct{})}
	codecs := handlers.NewCodecs(legacyscheme.Scheme)
	for _, p := range c.providers(coreProvider{c, ips, nodePorts}) {
		group, err := c.newGroup(p, release, codecs)
		if err != nil {
			b.Close()
			return nil, err
		}
		if len(group.Versions) > 0 {
			b.groups = append(b.groups, group)
		}
	}
	return b, nil
}

// newGroup builds the storages of a group and removes those of kinds that the emulated release
// does not have. The returned group has no Versions if nothing is left.
func (c Config) newGroup(
	p storageProvider, release genericapiserver.ResourceExpirationEvaluator, codecs runtime.NegotiatedSerializer,
) (handlers.Group, error) {
	info, err := p.NewRESTStorage(c.APIResourceConfigSource, c.RESTOptions)
	if err != nil {
		return handlers.Group{}, fmt.Errorf("build the storages of the group %q: %w", p.GroupName(), err)
	}
	storage := info.VersionedResourcesStorageMap
	if err := release.RemoveUnavailableKinds(p.GroupName(), info.Scheme, storage, c.APIResourceConfigSource); err != nil {
		return handlers.Group{}, err
	}
	group := handlers.Group{
		Name:           p.GroupName(),
		Storage:        storage,
		Scheme:         info.Scheme,
		Codecs:         codecs,
		ParameterCodec: info.ParameterCodec,
	}
	for _, gv := range info.PrioritizedVersions {
		if len(storage[gv.Version]) > 0 {
			group.Versions = append(group.Versions, gv.Version)
		}
	}
	return group, nil
}

// Groups returns the groups that have at least one enabled resource, in upstream's order.
func (b *Builtin) Groups() []handlers.Group { return slices.Clone(b.groups) }

// Repaired is closed when cluster IPs and node ports have been repaired once against the
// existing Services. The server is not ready before. The first repair needs Run and the
// default ServiceCIDR, which package bootstrap creates.
func (b *Builtin) Repaired() <-chan struct{} { return b.repaired }

// Run repairs the allocations at once and then periodically until ctx ends.
func (b *Builtin) Run(ctx context.Context) error {
	defer b.Close()
	var pending atomic.Int32
	pending.Store(2)
	onFirstSuccess := func() {
		if pending.Add(-1) == 0 {
			close(b.repaired)
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() { b.ips.Repair(ctx, onFirstSuccess) })
	loops.Go(func() { b.nodePorts.Repair(ctx, onFirstSuccess) })
	loops.Wait()
	return nil
}

// Close stops the allocators. Run calls it; a caller that does not call Run calls Close.
func (b *Builtin) Close() { b.ips.Stop() }

// Config holds the dependencies of the storages of the built-in groups. All are required but
// those that say what their zero value means.
type Config struct {
	// RESTOptions returns the storage options of each resource.
	RESTOptions generic.RESTOptionsGetter
	// APIResourceConfigSource says which versions and resources are served; see
	// ParseRuntimeConfig.
	APIResourceConfigSource serverstorage.APIResourceConfigSource
	// Emulation says which release's API is served: a kind that a later release introduced, or
	// that this release or an earlier one removed, is not.
	Emulation genericapiserver.ResourceExpirationEvaluatorOptions
	// Client is a clientset over the server's loopback transport.
	Client kubernetes.Interface
	// Informers is an informer factory over Client, made with AllocatorResync. The
	// cluster IP allocator and its repair loop use its informers of Services,
	// ServiceCIDRs and IPAddresses. The caller starts it after New.
	Informers informers.SharedInformerFactory

	// Authenticator answers TokenReviews. If it is nil, they fail with an internal
	// error.
	Authenticator authenticator.Request
	// APIAudiences are the server's own audiences.
	APIAudiences authenticator.Audiences
	// Authorizer answers access reviews and decides about escalation of privileges.
	Authorizer authorizer.Authorizer
	// EndpointSlices finds the endpoints of a Service for its subresource proxy.
	EndpointSlices proxy.EndpointSliceGetter
	// RuleResolver answers SelfSubjectRulesReviews.
	RuleResolver authorizer.RuleResolver

	Tokens   TokenConfig
	Services ServiceConfig
	// EventTTL is the lifetime of an event.
	EventTTL time.Duration

	// Kubelet configures connections to kubelets.
	Kubelet *kubeletclient.KubeletClientConfig
	// ProxyTransport connects to pods, services and nodes for the proxy
	// subresources.
	ProxyTransport http.RoundTripper

	// StoreReady returns an error if the database does not answer. The component
	// status etcd-0 reports it.
	StoreReady func(context.Context) error
	// InProcess are the component statuses, controller-manager and scheduler, whose work this process does.
	InProcess []string
}

// TokenConfig configures the subresource serviceaccounts/token.
type TokenConfig struct {
	// Issuer signs tokens. If it is nil, serviceaccounts/token is not served.
	Issuer serviceaccount.TokenGenerator
	// MaxExpiration is the longest lifetime of a token; zero means no limit.
	MaxExpiration time.Duration
	// ExtendExpiration extends the lifetime of projected tokens to
	// MaxExtendedExpiration, for old clients that do not reload them.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

// ServiceConfig holds the ranges from which Services get cluster IPs and node ports.
type ServiceConfig struct {
	// ClusterIPRange is the range of the primary IP family.
	ClusterIPRange net.IPNet
	// SecondaryClusterIPRange is the range of the other IP family; the zero value
	// means single-stack.
	SecondaryClusterIPRange net.IPNet
	// NodePortRange is the range of node ports.
	NodePortRange utilnet.PortRange
}

// DefaultKubelet returns the kubelet configuration of kube-apiserver's default flags.
func DefaultKubelet() *kubeletclient.KubeletClientConfig {
	return &kubeletclient.KubeletClientConfig{
		Port:         10250,
		ReadOnlyPort: 10255,
		PreferredAddressTypes: []string{
			string(api.NodeHostName),
			string(api.NodeInternalDNS),
			string(api.NodeInternalIP),
			string(api.NodeExternalDNS),
			string(api.NodeExternalIP),
		},
		HTTPTimeout: 5 * time.Second,
	}
}

// DefaultNodePortRange returns kube-apiserver's default, 30000-32767.
func DefaultNodePortRange() utilnet.PortRange {
	return utilnet.PortRange{Base: 30000, Size: 2768}
}

// DefaultClusterIPRange returns kube-apiserver's default, 10.0.0.0/24.
func DefaultClusterIPRange() net.IPNet {
	return net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
}

// Resources returns the resources of all built-in groups that have objects, enabled or not.
func Resources() []schema.GroupResource { return slices.Collect(maps.Keys(Kinds())) }

// Kinds returns the kinds of Resources: those that have metadata and a kind of lists. Kinds of reviews have none.
func Kinds() map[schema.GroupResource]string {
	all := map[schema.GroupResource]string{}
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsAllGroups() {
		if gv.Group == "extensions" {
			continue // its kinds are served, and stored, in other groups
		}
		kinds := legacyscheme.Scheme.KnownTypes(gv)
		for kind, object := range kinds {
			if _, hasList := kinds[kind+"List"]; hasList &&
				reflect.PointerTo(object).Implements(reflect.TypeFor[metav1.Object]()) {
				resource, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
				all[resource.GroupResource()] = kind
			}
		}
	}
	return all
}

// stableVersion matches the versions that are served by default. Alpha and beta versions
// are served only if --runtime-config enables them.
var stableVersion = regexp.MustCompile(`^v\d+$`)

// DefaultAPIResourceConfigSource returns the configuration without --runtime-config: all
// stable versions are enabled. Alpha and beta versions are listed as disabled, so that
// the keys api/alpha and api/beta of --runtime-config can enable them.
func DefaultAPIResourceConfigSource() *serverstorage.ResourceConfig {
	config := serverstorage.NewResourceConfig()
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsAllGroups() {
		if stableVersion.MatchString(gv.Version) {
			config.EnableVersions(gv)
		} else {
			config.DisableVersions(gv)
		}
	}
	return config
}

// ParseRuntimeConfig returns which versions and resources the value of --runtime-config
// enables. otherGroups are the groups that other servers of the delegation chain serve;
// the value may name them too. The error says what is wrong with the value.
func ParseRuntimeConfig(
	runtimeConfig cliflag.ConfigurationMap, otherGroups ...string,
) (*serverstorage.ResourceConfig, error) {
	options := genericoptions.APIEnablementOptions{RuntimeConfig: normalizeRuntimeConfig(runtimeConfig)}
	if errs := options.Validate(legacyscheme.Scheme, groups(otherGroups)); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return resourceconfig.MergeAPIResourceConfigs(DefaultAPIResourceConfigSource(), options.RuntimeConfig,
		legacyscheme.Scheme)
}

// groups implements genericoptions.GroupRegistry.
type groups []string

// IsGroupRegistered implements genericoptions.GroupRegistry.
func (g groups) IsGroupRegistered(group string) bool { return slices.Contains(g, group) }

// normalizeRuntimeConfig converts the keys of the core group, v1 and api/v1, to the form
// group/version with an empty group, as kube-apiserver does
// (k8s.io/kubernetes/pkg/controlplane/apiserver/server). It drops the key api/legacy,
// which kube-apiserver accepts and ignores.
func normalizeRuntimeConfig(runtimeConfig cliflag.ConfigurationMap) cliflag.ConfigurationMap {
	named := make(cliflag.ConfigurationMap, len(runtimeConfig))
	for key, value := range runtimeConfig {
		core := strings.TrimPrefix(key, "api/")
		switch {
		case core == "v1" || strings.HasPrefix(core, "v1/"):
			named["/"+core] = value
		case key != "api/legacy":
			named[key] = value
		}
	}
	return named
}
