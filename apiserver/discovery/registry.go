package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/endpoints"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Origin says who serves a group version.
type Origin int

// The origins. Aggregated takes precedence over BuiltIn, and BuiltIn over Custom.
const (
	BuiltIn Origin = iota
	Custom
	Aggregated
)

func (o Origin) source() aggregated.Source {
	switch o {
	case Aggregated:
		return aggregated.AggregatorSource
	case Custom:
		return aggregated.CRDSource
	default:
		return aggregated.BuiltinSource
	}
}

// Version is what is known of one group version.
type Version struct {
	schema.GroupVersion
	Origin Origin
	// Resources are the resources and subresources served.
	Resources []metav1.APIResource
	// AggregatedResources are the resources in the form of the aggregated document. They
	// are made of Resources if they are not given. Where only they are, there is
	// no document at /apis/<group>/<version>. Where neither is, the group version
	// is known by name alone: it is listed, but not in the aggregated document.
	AggregatedResources []apidiscoveryv2.APIResourceDiscovery
	// Stale marks a description that could not be refreshed.
	Stale bool

	// GroupPriority orders the groups and Priority the versions of a group, the
	// higher first; among equals, groups go by name and versions by maturity. A
	// group has the highest GroupPriority of its versions. Zero means the place
	// of Priorities or, for what is not there, that of a custom resource: 1000
	// and 100.
	GroupPriority, Priority int
}

const (
	defaultGroupPriority   = 1000
	defaultVersionPriority = 100
)

// Registry holds the group versions and answers the discovery documents.
type Registry struct {
	// codecs encode the lists of groups and versions, and resourceCodecs those
	// of resources, which upstream alone has in CBOR too.
	codecs, resourceCodecs serializer.CodecFactory

	addresses        upstream.Addresses
	aggregatedLegacy aggregated.ResourceManager // the core group, at /api
	aggregatedGroups aggregated.ResourceManager // all others, at /apis
	priorities       map[schema.GroupVersion]Priority

	mu sync.RWMutex
	// observers are told of each change.
	observers []func()
	// versions has every group version by who serves it.
	versions map[schema.GroupVersion]map[Origin]Version
	// groups is what /apis lists, in order; nil after a change, until asked for.
	groups []metav1.APIGroup
}

// A Rule names the address that clients of a network are told to use.
type CIDRRule = upstream.CIDRRule

// NewRegistry makes an empty registry. serverAddress is the host and port that
// clients are told to use, by the document at /api, besides those of the rules
// for where they are.
func NewRegistry(serverAddress string, rules ...CIDRRule) *Registry {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	var options []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		options = append(options, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return &Registry{
		codecs:           serializer.NewCodecFactory(scheme),
		resourceCodecs:   serializer.NewCodecFactory(scheme, options...),
		addresses:        upstream.DefaultAddresses{DefaultAddress: serverAddress, CIDRRules: rules},
		aggregatedLegacy: aggregated.NewResourceManager("api"),
		aggregatedGroups: aggregated.NewResourceManager("apis"),
		priorities:       Priorities(),
		versions:         map[schema.GroupVersion]map[Origin]Version{},
	}
}

// Add enters a group version or replaces what its origin said of it before.
func (r *Registry) Add(v Version) error {
	r.setPriorities(&v)
	described := v.AggregatedResources
	if v.Resources != nil && described == nil {
		var err error
		if described, err = endpoints.ConvertGroupVersionIntoToDiscovery(v.Resources); err != nil {
			return fmt.Errorf("discovery: %s: %w", v.GroupVersion, err)
		}
	}
	freshness := apidiscoveryv2.DiscoveryFreshnessCurrent
	if v.Stale {
		freshness = apidiscoveryv2.DiscoveryFreshnessStale
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.versions[v.GroupVersion] == nil {
		r.versions[v.GroupVersion] = map[Origin]Version{}
	}
	r.versions[v.GroupVersion][v.Origin] = v
	r.notifyObservers()

	manager := r.manager(v.Group).WithSource(v.Origin.source())
	if described == nil {
		manager.RemoveGroupVersion(metav1.GroupVersion(v.GroupVersion))
		return nil
	}
	manager.AddGroupVersion(v.Group, apidiscoveryv2.APIVersionDiscovery{
		Version:   v.Version,
		Freshness: freshness,
		Resources: described,
	})
	manager.SetGroupVersionPriority(metav1.GroupVersion(v.GroupVersion), v.GroupPriority, v.Priority)
	return nil
}

// versionWithResources is the description that the document of a group version is made of.
// What is described for the aggregated document alone has one elsewhere: who asks
// here was not sent on to it, or not yet. The caller holds mu.
func (r *Registry) versionWithResources(gv schema.GroupVersion) (Version, bool) {
	for _, origin := range []Origin{Aggregated, BuiltIn, Custom} {
		if v, ok := r.versions[gv][origin]; ok && v.Resources != nil {
			return v, true
		}
	}
	return Version{}, false
}

// setPriorities gives a version its place in discovery as far as it was given none.
func (r *Registry) setPriorities(v *Version) {
	group, version := defaultGroupPriority, defaultVersionPriority
	if v.Group == registrationGroup {
		group, version = registrationPriority, registrationVersionPriority
	} else if p, ok := r.priorities[v.GroupVersion]; ok && v.Origin == BuiltIn {
		group, version = int(p.Group), int(p.Version)
	}
	v.GroupPriority, v.Priority = cmp.Or(v.GroupPriority, group), cmp.Or(v.Priority, version)
}

// Remove takes back what origin said of a group version.
func (r *Registry) Remove(gv schema.GroupVersion, origin Origin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.versions[gv], origin)
	if len(r.versions[gv]) == 0 {
		delete(r.versions, gv)
	}
	r.notifyObservers()
	r.manager(gv.Group).WithSource(origin.source()).RemoveGroupVersion(metav1.GroupVersion(gv))
}

// group returns what is listed of a group.
func (r *Registry) group(name string) (metav1.APIGroup, bool) {
	groups := r.groupList()
	if i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name }); i >= 0 {
		return groups[i], true
	}
	return metav1.APIGroup{}, false
}

func (r *Registry) manager(group string) aggregated.ResourceManager {
	if group == "" {
		return r.aggregatedLegacy
	}
	return r.aggregatedGroups
}

// preferredVersion is the description of a group version that takes precedence.
func (r *Registry) preferredVersion(gv schema.GroupVersion) (Version, bool) {
	for _, origin := range []Origin{Aggregated, BuiltIn, Custom} {
		if v, ok := r.versions[gv][origin]; ok {
			return v, true
		}
	}
	return Version{}, false
}

// LocalVersions returns what is served by this server itself: all but what an aggregated
// server has. The order is of no account; the descriptions must not be changed.
func (r *Registry) LocalVersions() []Version {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var served []Version
	for _, by := range r.versions {
		if v, ok := by[BuiltIn]; ok {
			served = append(served, v)
		} else if v, ok := by[Custom]; ok {
			served = append(served, v)
		}
	}
	return served
}

// AddObserver has changed called after every change from now on. It must neither
// wait for anything nor ask the registry.
func (r *Registry) AddObserver(changed func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(r.observers, changed)
}

// notifyObservers tells the observers. The caller holds mu.
func (r *Registry) notifyObservers() {
	r.groups = nil
	for _, changed := range r.observers {
		changed()
	}
}

// groupList returns groups, made anew if something has changed.
func (r *Registry) groupList() []metav1.APIGroup {
	r.mu.RLock()
	groups := r.groups
	r.mu.RUnlock()
	if groups != nil {
		return groups
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.groups == nil {
		r.groups = r.buildGroupList()
	}
	return r.groups
}

// buildGroupList makes groups of versions. The caller holds mu.
func (r *Registry) buildGroupList() []metav1.APIGroup {
	byGroup := map[string][]Version{}
	for gv := range r.versions {
		if v, ok := r.preferredVersion(gv); ok && gv.Group != "" {
			byGroup[gv.Group] = append(byGroup[gv.Group], v)
		}
	}
	priority := func(group string) int {
		return slices.MaxFunc(byGroup[group], func(a, b Version) int { return cmp.Compare(a.GroupPriority, b.GroupPriority) }).GroupPriority
	}
	groups := make([]metav1.APIGroup, 0, len(byGroup))
	for name, versions := range byGroup {
		groups = append(groups, apiGroup(name, versions))
	}
	slices.SortFunc(groups, func(a, b metav1.APIGroup) int {
		return cmp.Or(cmp.Compare(priority(b.Name), priority(a.Name)), strings.Compare(a.Name, b.Name))
	})
	return groups
}

// Paths are the paths that documents are answered at, as the index at / lists
// them.
func (r *Registry) Paths() []string {
	groups := r.groupList()
	r.mu.RLock()
	defer r.mu.RUnlock()
	paths := []string{"/apis", "/apis/"}
	for _, group := range groups {
		paths = append(paths, "/apis/"+group.Name)
	}
	for gv := range r.versions {
		if gv.Group == "" {
			paths = append(paths, "/api", "/api/"+gv.Version)
		} else {
			paths = append(paths, "/apis/"+gv.Group+"/"+gv.Version)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Lookup returns the document at /apis/<group> or /apis/<group>/<version>, if
// there is one now.
func (r *Registry) Lookup(path string) (Handler, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] != "apis" || len(parts) < 2 || len(parts) > 3 || !strings.HasPrefix(path, "/apis/") {
		return nil, false
	}
	if len(parts) == 2 {
		_, known := r.group(parts[1])
		return r.GroupHandler(parts[1]), known
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	gv := schema.GroupVersion{Group: parts[1], Version: parts[2]}
	_, ok := r.versionWithResources(gv)
	return r.VersionHandler(gv), ok
}
