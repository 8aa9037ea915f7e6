package instances

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"byre/crd/definition"
	"byre/sqlstore"
)

// requirements are what the writes of a definition's instances require of its row.
//
// Invariant: an instance is written only while its definition exists, has the spec by which the
// instance was decoded, pruned and validated, and, for a create, is not being deleted. The
// database checks this in the transaction of the write. Otherwise a replica that has not seen a
// change of the definition would prune a new field by the old schema, or would leave an instance
// behind that no definition owns.
type requirements struct{ create, update sqlstore.Requirement }

func newRequirements(crd *apiextensionsv1.CustomResourceDefinition) *requirements {
	r := sqlstore.Requirement{
		Key:        sqlstore.Key{Group: apiextensions.GroupName, Resource: "customresourcedefinitions", Name: crd.Name},
		UID:        string(crd.UID),
		Generation: crd.Generation,
	}
	both := &requirements{create: r, update: r}
	// Instances can be changed while their definition is being deleted: their finalizers go.
	both.update.Generation = definition.Generation(crd)
	return both
}

// of returns what a create or an update requires. A delete requires nothing: it writes nothing
// that depends on the definition.
func (r *requirements) of(op sqlstore.Op) *sqlstore.Requirement {
	if op == sqlstore.Create {
		return &r.create
	}
	return &r.update
}
