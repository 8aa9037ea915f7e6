package documents

import "k8s.io/apimachinery/pkg/runtime/schema"

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
