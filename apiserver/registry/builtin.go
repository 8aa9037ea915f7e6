package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

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
	if c.RESTOptions == nil || c.Client == nil || c.Informers == nil || c.Authorizer == nil {
		return nil, errors.New("builtin: RESTOptions, Client, Informers and Authorizer are required")
	}
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
func (c Config) newGroup(p storageProvider, release genericapiserver.ResourceExpirationEvaluator, codecs runtime.NegotiatedSerializer) (handlers.Group, error) {
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
