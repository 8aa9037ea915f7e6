package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/handlers"
	"byre/apiserver/registry/allocation"
)

// Builtin holds the built-in groups and the allocators of cluster IPs and node ports.
type Builtin struct {
	groups    []handlers.Group
	ips       *allocation.ClusterIPs
	nodePorts *allocation.NodePorts

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
	c = c.withDefaults()
	nodePorts, err := allocation.NewNodePorts(c.RESTOptions, c.Services.NodePortRange, c.Client, c.Services.RepairInterval)
	if err != nil {
		return nil, fmt.Errorf("node ports: %w", err)
	}
	ips, err := allocation.NewClusterIPs(c.Client, c.Informers, c.Services.ClusterIPRange, c.Services.SecondaryClusterIPRange, c.Services.RepairInterval)
	if err != nil {
		return nil, fmt.Errorf("cluster IPs: %w", err)
	}
	b := &Builtin{ips: ips, nodePorts: nodePorts, repaired: make(chan struct{})}
	p := newStorageProvider(c, ips, nodePorts)
	codecs := handlers.NewCodecs(legacyscheme.Scheme)
	for _, g := range apiGroups() {
		built, err := p.buildGroup(g, codecs)
		if err != nil {
			b.Close()
			return nil, err
		}
		if len(built.Versions) > 0 {
			b.groups = append(b.groups, built)
		}
	}
	return b, nil
}

// Groups returns the groups that have at least one enabled resource, in upstream's order.
func (b *Builtin) Groups() []handlers.Group { return slices.Clone(b.groups) }

// Repaired is closed when cluster IPs and node ports have been repaired once against the
// existing Services. The server is not ready before. The first repair needs Run and the
// default ServiceCIDR, which package bootstrap creates.
func (b *Builtin) Repaired() <-chan struct{} { return b.repaired }

// Run repairs the allocations at once and then periodically until ctx ends. It returns
// an error if upstream's repair loop of the cluster IPs gives up its first repair.
func (b *Builtin) Run(ctx context.Context) error {
	defer b.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var pending atomic.Int32
	pending.Store(2)
	onFirstSuccess := func() {
		if pending.Add(-1) == 0 {
			close(b.repaired)
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := b.ips.Repair(ctx, onFirstSuccess); err != nil {
			cancel(err)
		}
	})
	loops.Go(func() { b.nodePorts.Repair(ctx, onFirstSuccess) })
	<-ctx.Done()
	loops.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close stops the allocators. Run calls it; a caller that does not call Run calls Close.
func (b *Builtin) Close() { b.ips.Stop() }

// buildGroup builds the storages of a group. The returned group has no Versions if none
// of its resources is enabled.
func (p *storageProvider) buildGroup(g apiGroup, codecs runtime.NegotiatedSerializer) (handlers.Group, error) {
	built := handlers.Group{
		Name:           g.name,
		Storage:        map[string]map[string]rest.Storage{},
		Scheme:         legacyscheme.Scheme,
		Codecs:         codecs,
		ParameterCodec: legacyscheme.ParameterCodec,
	}
	for _, r := range g.resources {
		versions := p.servedVersions(g.name, r)
		if len(versions) == 0 {
			continue
		}
		storages, err := r.build(p)
		if err != nil {
			return handlers.Group{}, fmt.Errorf("build %s: %w", schema.GroupResource{Group: g.name, Resource: r.name}, err)
		}
		for _, version := range versions {
			if built.Storage[version] == nil {
				built.Storage[version] = map[string]rest.Storage{}
			}
			for subresource, storage := range storages {
				built.Storage[version][storagePath(r.name, subresource)] = storage
			}
		}
	}
	if err := p.Emulation.removeDeleted(g.name, built.Storage); err != nil {
		return handlers.Group{}, err
	}
	if err := p.Emulation.removeUnintroduced(g.name, built.Storage, p.APIResourceConfigSource); err != nil {
		return handlers.Group{}, err
	}
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsForGroup(g.name) {
		if len(built.Storage[gv.Version]) > 0 {
			built.Versions = append(built.Versions, gv.Version)
		}
	}
	return built, nil
}

// servedVersions returns the enabled versions of a resource; none if its feature gate is
// off.
func (p *storageProvider) servedVersions(group string, r apiResource) []string {
	var versions []string
	for _, version := range r.versions {
		gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: r.name}
		if p.APIResourceConfigSource.ResourceEnabled(gvr) {
			versions = append(versions, version)
		}
	}
	if len(versions) > 0 && r.featureGate != ungated && !utilfeature.DefaultFeatureGate.Enabled(r.featureGate) {
		p.Logger.Info("Resource is not served because its feature gate is off", "group", group, "resource", r.name, "feature", r.featureGate)
		return nil
	}
	return versions
}

func storagePath(resource, subresource string) string {
	if subresource == "" {
		return resource
	}
	return resource + "/" + subresource
}
