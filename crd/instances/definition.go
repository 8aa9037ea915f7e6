package instances

import (
	"strconv"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Definition is one state of a CustomResourceDefinition. It is immutable.
type Definition struct {
	// CRD is stripped; see Strip.
	CRD *apiextensionsv1.CustomResourceDefinition
	// Provisional is true while only a request has read the definition from the store
	// and the informer has not shown it yet. Invariant: a provisional definition serves
	// requests, but discovery and OpenAPI do not show it. The Table keeps this. Otherwise
	// a definition that is deleted before the informer sees it would be shown for ever:
	// the informer would never report its deletion.
	Provisional bool
}

// Serves tells whether the definition answers requests for a version. A nil Definition
// serves nothing.
func (d *Definition) Serves(version string) bool {
	return d != nil && ownsNames(d.CRD) && apihelpers.HasServedCRDVersion(d.CRD, version)
}

// ownsNames tells whether the names in a definition's status belong to it. A definition
// that was once established keeps its names, whatever becomes of NamesAccepted.
func ownsNames(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) || IsEstablished(crd)
}

// IsEstablished tells whether the definition's resource is served.
func IsEstablished(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}

// IsTerminating tells whether the definition's instances are being deleted, or are about to be.
func IsTerminating(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return !crd.DeletionTimestamp.IsZero() || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
}

// IsCurrent tells whether no newer state of the definition has been acknowledged to any
// client of this server. revision is the definition's in the watch cache, loaded is
// false if the watch cache does not hold definitions.
//
// Invariant: a client that has seen its own write of a definition is served by that
// write. The watch cache holds a write before the writer is answered; the informer,
// which fills the Table, may lag. A definition is therefore current if its revision is
// that of the watch cache. Without a watch cache, what the informer has shown counts as
// current: nothing better is known.
func (d *Definition) IsCurrent(revision int64, loaded bool) bool {
	if loaded {
		return strconv.FormatInt(revision, 10) == d.CRD.ResourceVersion
	}
	return !d.Provisional
}

// Resource is the resource that a definition defines.
func Resource(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

// Generation is the sqlstore.Write.Generation of a definition: that of its metadata, and the
// negative of that once its deletion has begun. metadata.generation changes with the spec;
// the registry of definitions, unlike others, does not increment it when a deletion begins.
func Generation(crd metav1.Object) int64 {
	if crd.GetDeletionTimestamp() != nil {
		return -crd.GetGeneration()
	}
	return crd.GetGeneration()
}

// Revision is the revision of a definition's state; 0 if it has none.
func Revision(crd *apiextensionsv1.CustomResourceDefinition) int64 {
	revision, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64)
	return revision
}
