package builtin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Emulation says which release's API is served. A kind that a later release
// introduced is left out, as upstream's ResourceExpirationEvaluator does
// (k8s.io/apiserver/pkg/server/deleted_kinds.go).
type Emulation struct {
	// Version is the emulated release; nil leaves nothing out.
	Version *version.Version
	// ForwardCompatible serves a later version of a resource all the same where
	// an earlier one that is not alpha is served.
	ForwardCompatible bool
	// RuntimeConfigForwardCompatible serves what --runtime-config names all the
	// same.
	RuntimeConfigForwardCompatible bool
}

// introduced is what generated code knows of a versioned kind.
type introduced interface {
	APILifecycleIntroduced() (major, minor int)
}

// removeUnintroduced takes out of a group's storages, by version and path, those
// that the emulated release did not have. It is an error to have enabled one by
// name.
func (e Emulation) removeUnintroduced(group string, storage map[string]map[string]rest.Storage, enabled serverstorage.APIResourceConfigSource) error {
	if e.Version == nil {
		return nil
	}
	// Versions of lower priority come first: what of them is served decides, with
	// ForwardCompatible, about the later ones.
	served := map[string]bool{}
	for _, v := range slices.SortedFunc(maps.Keys(storage), apiversion.CompareKubeAwareVersionStrings) {
		gv := schema.GroupVersion{Group: group, Version: v}
		gone := map[string]bool{}
		for path, s := range storage[v] {
			serves, err := e.serves(gv.WithResource(path), s, enabled, served[path])
			switch {
			case err != nil:
				return err
			case !serves:
				gone[path] = true
			case !strings.Contains(v, "alpha"):
				served[path] = true
			}
		}
		maps.DeleteFunc(storage[v], func(path string, _ rest.Storage) bool {
			resource, _, _ := strings.Cut(path, "/")
			return gone[path] || gone[resource]
		})
		if len(storage[v]) > 0 {
			continue
		}
		if enabled.VersionExplicitlyEnabled(gv) {
			return fmt.Errorf("--runtime-config: %s came after %s, which is emulated: leave it out, or set --runtime-config-emulation-forward-compatible", gv, e.Version)
		}
		delete(storage, v)
	}
	return nil
}

// serves tells whether a resource is part of the emulated release, or to be served
// all the same; isServed, whether an earlier version of it is served.
func (e Emulation) serves(gvr schema.GroupVersionResource, s rest.Storage, enabled serverstorage.APIResourceConfigSource, isServed bool) (bool, error) {
	target := gvr.GroupVersion()
	if p, ok := s.(rest.GroupVersionKindProvider); ok { // such as that of Scale
		target = p.GroupVersionKind(target).GroupVersion()
	}
	object, err := legacyscheme.Scheme.ConvertToVersion(s.New(), target)
	if err != nil {
		return false, fmt.Errorf("kind of %s: %w", gvr, err)
	}
	kind, ok := object.(introduced)
	if !ok {
		return true, nil
	}
	major, minor := kind.APILifecycleIntroduced()
	switch {
	case e.Version.AtLeast(version.MajorMinor(uint(major), uint(minor))):
		return true, nil
	case e.ForwardCompatible && isServed:
		return true, nil
	case e.RuntimeConfigForwardCompatible && (enabled.ResourceExplicitlyEnabled(gvr) || enabled.VersionExplicitlyEnabled(gvr.GroupVersion())):
		return true, nil
	case enabled.ResourceExplicitlyEnabled(gvr):
		return false, fmt.Errorf("--runtime-config: %s of %s came with %d.%d, after %s, which is emulated: leave it out, or set --runtime-config-emulation-forward-compatible",
			gvr.Resource, gvr.GroupVersion(), major, minor, e.Version)
	default:
		return false, nil
	}
}
