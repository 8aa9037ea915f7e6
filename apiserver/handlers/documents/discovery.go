package documents

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/endpoints"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// Origin says which server of the delegation chain serves a group version.
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

// DiscoveryVersion describes one group version of one origin.
type DiscoveryVersion struct {
	schema.GroupVersion
	Origin Origin
	// Resources are the served resources and subresources.
	Resources []metav1.APIResource
	// AggregatedResources are the resources in the form of the aggregated document.
	// nil means that Add converts Resources. A version with AggregatedResources
	// alone has no document at /apis/<group>/<version>. A version with neither is
	// listed as a version of its group, but not in the aggregated document.
	AggregatedResources []apidiscoveryv2.APIResourceDiscovery
	// Stale marks resources that could not be refreshed.
	Stale bool

	// GroupPriority orders the groups, and Priority the versions of a group, the
	// highest first. Groups of equal priority are ordered by the names of their
	// APIServices (v1.apps), in the aggregated document by their own names; versions by
	// maturity. A group has the highest GroupPriority of its versions. Zero means the
	// value of Priorities or, for a group version that is not there, that of a custom
	// resource: 1000 and 100.
	GroupPriority, Priority int
}

const (
	defaultGroupPriority   = 1000
	defaultVersionPriority = 100
)

// Discovery holds the group versions and makes the handlers of the discovery documents.
type Discovery struct {
	// codecs encode the lists of groups, versions and resources.
	codecs serializer.CodecFactory

	addresses        upstream.Addresses
	aggregatedLegacy aggregated.ResourceManager // the core group, at /api
	aggregatedGroups aggregated.ResourceManager // all others, at /apis
	priorities       map[schema.GroupVersion]GroupPriority

	mu sync.RWMutex
	// observers are called after each change.
	observers []func()
	versions  map[schema.GroupVersion]map[Origin]DiscoveryVersion
	// placed has the priorities that SetPriority has set.
	placed map[schema.GroupVersion]GroupPriority
	// groups are the groups in the order of /apis. nil after a change; the next
	// request builds them.
	groups []metav1.APIGroup
}

// A CIDRRule names the address that clients of a network are told to use.
type CIDRRule = upstream.CIDRRule

// NewDiscovery returns an empty registry. serverAddress is the host and port that the
// document at /api gives to clients; rules give other addresses to the clients of some
// networks.
func NewDiscovery(serverAddress string, rules ...CIDRRule) *Discovery {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	var options []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		options = append(options, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return &Discovery{
		codecs:           serializer.NewCodecFactory(scheme, options...),
		addresses:        upstream.DefaultAddresses{DefaultAddress: serverAddress, CIDRRules: rules},
		aggregatedLegacy: aggregated.NewResourceManager("api"),
		aggregatedGroups: aggregated.NewResourceManager("apis"),
		priorities:       GroupPriorities(),
		versions:         map[schema.GroupVersion]map[Origin]DiscoveryVersion{},
		placed:           map[schema.GroupVersion]GroupPriority{},
	}
}

// Add adds a group version, or replaces the one of the same origin. The caller must not
// modify v's slices afterwards.
func (r *Discovery) Add(v DiscoveryVersion) error {
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
		r.versions[v.GroupVersion] = map[Origin]DiscoveryVersion{}
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

// setPriorities sets the priorities that are zero to their defaults.
func (r *Discovery) setPriorities(v *DiscoveryVersion) {
	group, version := defaultGroupPriority, defaultVersionPriority
	if v.Group == registrationGroup {
		group, version = registrationPriority, registrationVersionPriority
	} else if p, ok := r.priorities[v.GroupVersion]; ok && v.Origin == BuiltIn {
		group, version = int(p.Group), int(p.Version)
	}
	v.GroupPriority, v.Priority = cmp.Or(v.GroupPriority, group), cmp.Or(v.Priority, version)
}

// SetPriority sets the priorities of a group version that this server serves itself in the lists
// of groups and versions, by its APIService; the zero Priority restores those of Add. As with
// upstream, the aggregated document does not follow.
func (r *Discovery) SetPriority(gv schema.GroupVersion, p GroupPriority) {
	if gv.Group == registrationGroup {
		return // it is always the first
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.placed[gv] == p {
		return
	}
	r.groups = nil
	if r.placed[gv] = p; p == (GroupPriority{}) {
		delete(r.placed, gv)
	}
}

// Remove removes the group version of the given origin.
func (r *Discovery) Remove(gv schema.GroupVersion, origin Origin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.versions[gv], origin)
	if len(r.versions[gv]) == 0 {
		delete(r.versions, gv)
	}
	r.notifyObservers()
	r.manager(gv.Group).WithSource(origin.source()).RemoveGroupVersion(metav1.GroupVersion(gv))
}

// group returns the entry of a group in groupList.
func (r *Discovery) group(name string) (metav1.APIGroup, bool) {
	groups := r.groupList()
	if i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name }); i >= 0 {
		return groups[i], true
	}
	return metav1.APIGroup{}, false
}

func (r *Discovery) manager(group string) aggregated.ResourceManager {
	if group == "" {
		return r.aggregatedLegacy
	}
	return r.aggregatedGroups
}

// preferredVersion returns the group version of the origin that takes precedence, among those
// that match. The caller holds mu.
func (r *Discovery) preferredVersion(
	gv schema.GroupVersion, matches func(DiscoveryVersion) bool,
) (DiscoveryVersion, bool) {
	for _, origin := range []Origin{Aggregated, BuiltIn, Custom} {
		if v, ok := r.versions[gv][origin]; ok && matches(v) {
			return v, true
		}
	}
	return DiscoveryVersion{}, false
}

// hasDocument reports whether the document of the group version is made from v. A version with
// AggregatedResources alone is that of an aggregated API server, which serves the document
// itself.
func (v DiscoveryVersion) hasDocument() bool { return v.Resources != nil }

// isLocal reports whether this server serves the version itself.
func (v DiscoveryVersion) isLocal() bool { return v.Origin != Aggregated }

// LocalVersions returns the group versions that this server serves itself: those of
// origin BuiltIn and Custom. They are not ordered. The caller must not modify them.
func (r *Discovery) LocalVersions() []DiscoveryVersion {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var served []DiscoveryVersion
	for gv := range r.versions {
		if v, ok := r.preferredVersion(gv, DiscoveryVersion.isLocal); ok {
			served = append(served, v)
		}
	}
	return served
}

// AddObserver makes the registry call observe after every later change. The registry's
// lock is held during the call: observe must not block and must not call the registry.
func (r *Discovery) AddObserver(observe func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(r.observers, observe)
}

// notifyObservers drops the list of groups and calls the observers. The caller holds mu.
func (r *Discovery) notifyObservers() {
	r.groups = nil
	for _, observe := range r.observers {
		observe()
	}
}

// groupList returns the groups in the order of /apis. It builds them if they have changed.
func (r *Discovery) groupList() []metav1.APIGroup {
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

// buildGroupList builds groups from versions, in the order in which upstream lists their
// APIServices. The caller holds mu.
func (r *Discovery) buildGroupList() []metav1.APIGroup {
	var services []*apiregistrationv1.APIService
	for gv := range r.versions {
		v, ok := r.preferredVersion(gv, func(DiscoveryVersion) bool { return true })
		if !ok || gv.Group == "" {
			continue
		}
		priority, ok := r.placed[gv]
		if !ok || !v.isLocal() {
			priority = GroupPriority{int32(v.GroupPriority), int32(v.Priority)}
		}
		services = append(services, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, GroupPriorityMinimum: priority.Group, Version: gv.Version, VersionPriority: priority.Version,
			},
		})
	}
	groups := []metav1.APIGroup{}
	for _, versions := range helper.SortedByGroupAndVersion(services) {
		groups = append(groups, apiGroup(versions))
	}
	return groups
}

// Paths returns the paths of all discovery documents, for the index at /.
func (r *Discovery) Paths() []string {
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

// Lookup returns the handler of the document at /apis/<group> or /apis/<group>/<version>.
// It returns false if there is no such document now.
func (r *Discovery) Lookup(path string) (DiscoveryHandler, bool) {
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
	_, ok := r.preferredVersion(gv, DiscoveryVersion.hasDocument)
	return r.VersionHandler(gv), ok
}

// A DiscoveryHandler serves one discovery document, made from the registry's content at the time
// of the request.
type DiscoveryHandler interface {
	http.Handler
	// Operation describes the route of the document at path, for OpenAPI.
	Operation(path string) restful.Route
}

type discoveryHandler struct {
	http.Handler
	// operation is the description, without its path.
	operation restful.Route
}

func (d discoveryHandler) Operation(path string) restful.Route {
	d.operation.Path = path + "/"
	return d.operation
}

// handler returns the handler of a document. name and doc describe it, and response has its type.
func (r *Discovery) handler(document http.Handler, name, doc string, response any) DiscoveryHandler {
	// Documents are served in every encoding of objects, but not as a stream.
	media, _ := negotiation.MediaTypesForSerializer(r.codecs)
	return discoveryHandler{document, restful.Route{
		Method: http.MethodGet, Operation: name, Doc: doc, Consumes: media, Produces: media, WriteSample: response,
	}}
}

// GroupsHandler serves the document at /apis.
func (r *Discovery) GroupsHandler() DiscoveryHandler {
	list := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.write(w, req, &metav1.APIGroupList{Groups: r.groupList()})
	})
	return r.handler(aggregated.WrapAggregatedDiscoveryToHandler(list, r.aggregatedGroups, nil),
		"getAPIVersions", "get available API versions", metav1.APIGroupList{})
}

// LegacyHandler serves the document at /api.
func (r *Discovery) LegacyHandler() DiscoveryHandler {
	versions := upstream.NewLegacyRootAPIHandler(r.addresses, r.codecs, "/api")
	return r.handler(aggregated.WrapAggregatedDiscoveryToHandler(versions, r.aggregatedLegacy, nil),
		"getAPIVersions", "get available API versions", metav1.APIVersions{})
}

// GroupHandler serves the document at /apis/<group>. It answers 404 if the registry has no
// version of the group.
func (r *Discovery) GroupHandler(name string) DiscoveryHandler {
	document := func(w http.ResponseWriter, req *http.Request) {
		group, ok := r.group(name)
		if !ok {
			http.NotFound(w, req)
			return
		}
		r.write(w, req, &group)
	}
	return r.handler(http.HandlerFunc(document), "getAPIGroup", "get information of a group", metav1.APIGroup{})
}

// VersionHandler serves the document at /apis/<group>/<version> or /api/<version>. It
// answers 404 if the registry has no resources of the group version.
func (r *Discovery) VersionHandler(gv schema.GroupVersion) DiscoveryHandler {
	document := func(w http.ResponseWriter, req *http.Request) {
		r.mu.RLock()
		v, ok := r.preferredVersion(gv, DiscoveryVersion.hasDocument)
		r.mu.RUnlock()
		if !ok {
			http.NotFound(w, req)
			return
		}
		resources := upstream.APIResourceListerFunc(func() []metav1.APIResource { return v.Resources })
		upstream.NewAPIVersionHandler(r.codecs, gv, resources).ServeHTTP(w, req)
	}
	return r.handler(http.HandlerFunc(document), "getAPIResources", "get available resources", metav1.APIResourceList{})
}

func (r *Discovery) write(w http.ResponseWriter, req *http.Request, object runtime.Object) {
	responsewriters.WriteObjectNegotiated(r.codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{Version: "v1"}, w, req, http.StatusOK, object, false)
}

// apiGroup returns the entry of a group with its versions, the preferred version first.
func apiGroup(versions []*apiregistrationv1.APIService) metav1.APIGroup {
	group := metav1.APIGroup{Name: versions[0].Spec.Group}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: v.Spec.Group + "/" + v.Spec.Version,
			Version:      v.Spec.Version,
		})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}

// GroupPriority determines the order of group versions in discovery: groups are listed by
// descending Group, the versions of a group by descending Version. If several groups have
// a resource name, kubectl resolves it to the group that is listed first.
type GroupPriority struct {
	Group   int32
	Version int32
}

// registrationGroup is the group that is listed before all others, with its priorities
// (k8s.io/kube-aggregator/pkg/apiserver/handler_discovery.go).
const (
	registrationGroup           = "apiregistration.k8s.io"
	registrationPriority        = 20001
	registrationVersionPriority = 1
)

// builtIn has the priority of each group that the server serves itself, and those of its versions.
var builtIn = map[string]struct {
	group    int32
	versions map[string]int32
}{
	"":                             {18000, map[string]int32{"v1": 1}},
	"apps":                         {17800, map[string]int32{"v1": 15}},
	"events.k8s.io":                {17750, map[string]int32{"v1": 15}},
	"authentication.k8s.io":        {17700, map[string]int32{"v1": 15, "v1beta1": 9}},
	"authorization.k8s.io":         {17600, map[string]int32{"v1": 15}},
	"autoscaling":                  {17500, map[string]int32{"v2": 30, "v1": 15}},
	"batch":                        {17400, map[string]int32{"v1": 15}},
	"certificates.k8s.io":          {17300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"networking.k8s.io":            {17200, map[string]int32{"v1": 15, "v1beta1": 9}},
	"policy":                       {17100, map[string]int32{"v1": 15}},
	"rbac.authorization.k8s.io":    {17000, map[string]int32{"v1": 15}},
	"storage.k8s.io":               {16800, map[string]int32{"v1": 15, "v1beta1": 9}},
	"apiextensions.k8s.io":         {16700, map[string]int32{"v1": 15}},
	"admissionregistration.k8s.io": {16700, map[string]int32{"v1": 15, "v1beta1": 12, "v1alpha1": 9}},
	"scheduling.k8s.io":            {16600, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha3": 3}},
	"coordination.k8s.io":          {16500, map[string]int32{"v1": 15, "v1beta1": 13, "v1alpha2": 12}},
	"node.k8s.io":                  {16300, map[string]int32{"v1": 15}},
	"discovery.k8s.io":             {16200, map[string]int32{"v1": 15}},
	"resource.k8s.io":              {16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1}},
	"flowcontrol.apiserver.k8s.io": {16100, map[string]int32{"v1": 21}},
	"internal.apiserver.k8s.io":    {16000, map[string]int32{"v1alpha1": 9}},
	"storagemigration.k8s.io":      {15800, map[string]int32{"v1": 15, "v1beta1": 9}},
	"lifecycle.k8s.io":             {15700, map[string]int32{"v1alpha1": 1}},
	"history.byre.dev":             {900, map[string]int32{"v1": 15}},
	"sql.byre.dev":                 {900, map[string]int32{"v1": 15}},
}

// GroupPriorities returns the priorities of the group versions that the server serves itself, also
// those of an earlier release that it emulates, without apiregistration.k8s.io: those of
// kube-apiserver (cmd/kube-apiserver/app/aggregator.go and
// pkg/controlplane/apiserver/aggregator.go), and byre's own, which come after all custom
// resources.
func GroupPriorities() map[schema.GroupVersion]GroupPriority {
	priorities := map[schema.GroupVersion]GroupPriority{}
	for name, g := range builtIn {
		for version, priority := range g.versions {
			priorities[schema.GroupVersion{Group: name, Version: version}] = GroupPriority{g.group, priority}
		}
	}
	return priorities
}
