package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Emulation says which release's API the server serves. A kind that a later release
// introduced, or that this release or an earlier one removed, is not served, as upstream's
// ResourceExpirationEvaluator has it (k8s.io/apiserver/pkg/server/deleted_kinds.go).
type Emulation struct {
	// Version is the emulated release; nil means that of the program.
	Version *version.Version
	// ForwardCompatible also serves a newer version of a resource if an older
	// version that is not alpha is served
	// (--emulation-forward-compatible).
	ForwardCompatible bool
	// RuntimeConfigForwardCompatible also serves the newer versions that
	// --runtime-config names (--runtime-config-emulation-forward-compatible).
	RuntimeConfigForwardCompatible bool
}

// introducedInterface is implemented by generated code of versioned kinds
// (zz_generated.prerelease-lifecycle.go). Upstream declares the same interface.
type introducedInterface interface {
	APILifecycleIntroduced() (major, minor int)
}

// removedInterface is implemented as introducedInterface is.
type removedInterface interface {
	APILifecycleRemoved() (major, minor int)
}

// removeDeleted removes the storages of kinds that are not in the emulated release any more
// from storage, which is keyed by version and path.
func (e Emulation) removeDeleted(group string, storage map[string]map[string]rest.Storage) error {
	for v, storages := range storage {
		removed := map[string]bool{}
		for path, s := range storages {
			kind, err := versionedKind(schema.GroupVersion{Group: group, Version: v}.WithResource(path), s)
			if err != nil {
				return err
			}
			if kind, ok := kind.(removedInterface); ok {
				major, minor := kind.APILifecycleRemoved()
				removed[path] = e.Version.AtLeast(version.MajorMinor(uint(major), uint(minor)))
			}
		}
		if deleteWithSubresources(storages, removed); len(storages) == 0 {
			delete(storage, v)
		}
	}
	return nil
}

// deleteWithSubresources deletes the storages whose paths are in removed, and those of
// subresources of such paths.
func deleteWithSubresources(storages map[string]rest.Storage, removed map[string]bool) {
	maps.DeleteFunc(storages, func(path string, _ rest.Storage) bool {
		resource, _, _ := strings.Cut(path, "/")
		return removed[path] || removed[resource]
	})
}

// versionedKind returns an empty object of the kind that a storage serves in a version.
func versionedKind(gvr schema.GroupVersionResource, s rest.Storage) (runtime.Object, error) {
	target := gvr.GroupVersion()
	if p, ok := s.(rest.GroupVersionKindProvider); ok { // for example Scale
		target = p.GroupVersionKind(target).GroupVersion()
	}
	object, err := legacyscheme.Scheme.ConvertToVersion(s.New(), target)
	if err != nil {
		return nil, fmt.Errorf("kind of %s: %w", gvr, err)
	}
	return object, nil
}

// removeUnintroduced removes the storages that the emulated release did not have from
// storage, which is keyed by version and path. It returns an error if --runtime-config
// enables one of them by name.
func (e Emulation) removeUnintroduced(group string, storage map[string]map[string]rest.Storage, enabled serverstorage.APIResourceConfigSource) error {
	// The order is ascending: with ForwardCompatible, a version is served if an
	// older one is.
	served := map[string]bool{}
	for _, v := range slices.SortedFunc(maps.Keys(storage), apiversion.CompareKubeAwareVersionStrings) {
		gv := schema.GroupVersion{Group: group, Version: v}
		removed := map[string]bool{}
		for path, s := range storage[v] {
			serves, err := e.serves(gv.WithResource(path), s, enabled, served[path])
			switch {
			case err != nil:
				return err
			case !serves:
				removed[path] = true
			case !strings.Contains(v, "alpha"):
				served[path] = true
			}
		}
		if deleteWithSubresources(storage[v], removed); len(storage[v]) > 0 {
			continue
		}
		if enabled.VersionExplicitlyEnabled(gv) {
			return fmt.Errorf("--runtime-config: %s came after %s, which is emulated: leave it out, or set --runtime-config-emulation-forward-compatible", gv, e.Version)
		}
		delete(storage, v)
	}
	return nil
}

// serves reports whether the resource is served: because the emulated release has it, or
// because one of the forward compatible settings applies. isServed says whether an older
// version of the resource is served.
func (e Emulation) serves(gvr schema.GroupVersionResource, s rest.Storage, enabled serverstorage.APIResourceConfigSource, isServed bool) (bool, error) {
	object, err := versionedKind(gvr, s)
	if err != nil {
		return false, err
	}
	kind, ok := object.(introducedInterface)
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
