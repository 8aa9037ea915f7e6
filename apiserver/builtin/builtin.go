package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/builtin/allocation"
	"byre/apiserver/endpoints"
)

// Builtin is the built-in groups and what keeps their allocations in order.
type Builtin struct {
	groups    []endpoints.Group
	ips       *allocation.ClusterIPs
	nodePorts *allocation.NodePorts

	// repaired is closed after both allocations were repaired once.
	repaired chan struct{}
}

// New builds the storages of everything that Config.Resources and the feature
// gates have on. The cluster IP allocator begins to follow the ServiceCIDRs at
// once (upstream's has no other way); everything else waits for Run.
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
	w := newWiring(c, ips, nodePorts)
	codecs := newCodecs()
	for _, g := range table() {
		built, err := w.buildGroup(g, codecs)
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

// Groups returns the groups that have something to serve, in upstream's order.
func (b *Builtin) Groups() []endpoints.Group { return slices.Clone(b.groups) }

// Repaired is closed once cluster IPs and node ports have been checked against
// the Services there are; the server isn't ready before. It needs Run, and the
// default ServiceCIDR (see bootstrap).
func (b *Builtin) Repaired() <-chan struct{} { return b.repaired }

// Run repairs the allocations, at once and then periodically, until ctx ends. It
// returns an error when the first repair of the cluster IPs fails for good.
func (b *Builtin) Run(ctx context.Context) error {
	defer b.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var left atomic.Int32
	left.Store(2)
	first := func() {
		if left.Add(-1) == 0 {
			close(b.repaired)
		}
	}
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := b.ips.Repair(ctx, first); err != nil {
			cancel(err)
		}
	})
	loops.Go(func() { b.nodePorts.Repair(ctx, first) })
	<-ctx.Done()
	loops.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close stops the allocators of a Builtin that isn't Run.
func (b *Builtin) Close() { b.ips.Stop() }

// newCodecs makes the codecs of all groups with the encodings that the feature
// gates have on, as upstream does for each group.
func newCodecs() runtime.NegotiatedSerializer {
	var opts []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		opts = append(opts, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToJSON())
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return serializer.NewCodecFactory(legacyscheme.Scheme, opts...)
}

// buildGroup builds what a group serves; its Versions are empty when that is
// nothing.
func (w *wiring) buildGroup(g group, codecs runtime.NegotiatedSerializer) (endpoints.Group, error) {
	built := endpoints.Group{
		Name:           g.name,
		Storage:        map[string]map[string]rest.Storage{},
		Scheme:         legacyscheme.Scheme,
		Codecs:         codecs,
		ParameterCodec: legacyscheme.ParameterCodec,
	}
	for _, r := range g.resources {
		versions := w.served(g.name, r)
		if len(versions) == 0 {
			continue
		}
		storages, err := r.build(w)
		if err != nil {
			return endpoints.Group{}, fmt.Errorf("build %s: %w", schema.GroupResource{Group: g.name, Resource: r.name}, err)
		}
		for _, version := range versions {
			if built.Storage[version] == nil {
				built.Storage[version] = map[string]rest.Storage{}
			}
			for subresource, storage := range storages {
				built.Storage[version][path(r.name, subresource)] = storage
			}
		}
	}
	if err := w.Emulation.removeUnintroduced(g.name, built.Storage, w.Resources); err != nil {
		return endpoints.Group{}, err
	}
	for _, gv := range legacyscheme.Scheme.PrioritizedVersionsForGroup(g.name) {
		if len(built.Storage[gv.Version]) > 0 {
			built.Versions = append(built.Versions, gv.Version)
		}
	}
	return built, nil
}

// served returns the versions of a resource that are on.
func (w *wiring) served(group string, r resource) []string {
	var versions []string
	for _, version := range r.versions {
		gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: r.name}
		if w.Resources.ResourceEnabled(gvr) {
			versions = append(versions, version)
		}
	}
	if len(versions) > 0 && r.feature != on && !utilfeature.DefaultFeatureGate.Enabled(r.feature) {
		w.Logger.Info("Resource is not served because its feature gate is off", "group", group, "resource", r.name, "feature", r.feature)
		return nil
	}
	return versions
}

func path(resource, subresource string) string {
	if subresource == "" {
		return resource
	}
	return resource + "/" + subresource
}
