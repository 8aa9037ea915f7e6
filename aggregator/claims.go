package aggregator

import (
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// claim is a group version that a backend serves, by an APIService. It is immutable.
type claim struct {
	// name is that of the APIService.
	name      string
	gv        schema.GroupVersion
	available bool
	// groupPriority and priority order discovery.
	groupPriority, priority int
	backend                 *backend
}

func newClaim(service *apiregistrationv1.APIService, b *backend) *claim {
	return &claim{
		name:          service.Name,
		gv:            schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		available:     helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available),
		groupPriority: int(service.Spec.GroupPriorityMinimum),
		priority:      int(service.Spec.VersionPriority),
		backend:       b,
	}
}

// legacy is the name of the APIService of the core group, /api.
const legacy = "v1."

// root is the path that is claimed, with all paths below it.
func (c *claim) root() string {
	if c.name == legacy {
		return "/api"
	}
	return "/apis/" + c.gv.Group + "/" + c.gv.Version
}

// claims has the claims by root. Every set replaces all of them at once, so that a request
// never sees a mix of two sets. The zero value is empty.
type claims struct {
	byRoot atomic.Pointer[map[string]*claim]
}

func (c *claims) set(byRoot map[string]*claim) { c.byRoot.Store(&byRoot) }

func (c *claims) empty() bool {
	byRoot := c.byRoot.Load()
	return byRoot == nil || len(*byRoot) == 0
}

// find returns the claim of a path, or nil.
func (c *claims) find(path string) *claim {
	if c.empty() {
		return nil // the common case
	}
	return (*c.byRoot.Load())[rootOf(path)]
}

// rootOf returns the part of a path that could be a claim's root.
func rootOf(path string) string {
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return "/api"
	}
	end := 0
	for range 3 { // "/apis", "/<group>", "/<version>"
		next := strings.IndexByte(path[min(end+1, len(path)):], '/')
		if next < 0 {
			return path
		}
		end += 1 + next
	}
	return path[:end]
}
