package instances

import (
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Table holds the newest state of each definition, by name. The zero value is empty. It
// is not safe for concurrent use.
type Table struct {
	byName map[string]*Definition
}

// Change is what a call of Put or Remove has changed: Before was replaced by After. Both
// are nil where nothing has changed.
type Change struct {
	// Before is nil for a definition that was not in the table.
	Before *Definition
	// After is nil for a definition that was removed.
	After *Definition
	// Deleted is the revision at which a definition that was removed was deleted.
	Deleted int64
}

// IsNone tells whether nothing has changed.
func (c Change) IsNone() bool { return c.Before == c.After }

// Group is the API group of the definition that has changed.
func (c Change) Group() string {
	if c.After != nil {
		return c.After.CRD.Spec.Group
	}
	return c.Before.CRD.Spec.Group
}

// IsVisible tells whether the change may affect discovery and OpenAPI, so that both have to
// be brought up to date.
func (c Change) IsVisible() bool {
	return !c.IsNone() && (c.After == nil || !c.After.Provisional)
}

// KeepsHandlers tells whether the handlers of Before's instances serve After's as well: no
// answer depends on what has changed, see SpecHash.
// The generation is not compared: the deletion of a definition begins with a new
// generation of the same spec, and watches must not end before the instances are gone.
func (c Change) KeepsHandlers() bool {
	return c.Before != nil && c.After != nil &&
		c.Before.CRD.UID == c.After.CRD.UID &&
		c.Before.CRD.Annotations[SpecHash] == c.After.CRD.Annotations[SpecHash] &&
		apiequality.Semantic.DeepEqual(c.Before.CRD.Status.AcceptedNames, c.After.CRD.Status.AcceptedNames)
}

// WatchesEnd tells whether the watches of Before's instances end. They first deliver all
// events up to the revision after. Where after is 0, they end at once.
//
// Invariant: watches of a deleted definition's instances deliver every DELETED. The
// deletion of each instance is older than that of the definition, so that the watches
// end after the definition's own revision. A watch that ends because the spec has
// changed loses nothing: its client resumes where it was.
func (c Change) WatchesEnd() (after int64, end bool) {
	switch {
	case c.Before == nil || c.IsNone() || c.KeepsHandlers():
		return 0, false
	case c.After == nil:
		return c.Deleted, true
	case c.After.CRD.UID != c.Before.CRD.UID:
		// The informer has missed the deletion of Before. It is older than After.
		return Revision(c.After.CRD), true
	default:
		return 0, true
	}
}

// ChangesIndexes tells whether instances are selected by other fields than before.
func (c Change) ChangesIndexes() bool {
	return c.Before != nil && c.After != nil && c.Before.CRD.UID == c.After.CRD.UID &&
		!slices.EqualFunc(c.Before.CRD.Spec.Versions, c.After.CRD.Spec.Versions, func(a, b apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return a.Storage == b.Storage && slices.Equal(a.SelectableFields, b.SelectableFields)
		})
}

// Get returns the definition of that name, or nil.
func (t *Table) Get(name string) *Definition { return t.byName[name] }

// All returns the definitions in no order.
func (t *Table) All() []*Definition { return slices.Collect(maps.Values(t.byName)) }

// Group returns the definitions of a group that are not provisional, by name.
func (t *Table) Group(group string) []*apiextensionsv1.CustomResourceDefinition {
	var found []*apiextensionsv1.CustomResourceDefinition
	for _, d := range t.byName {
		if d.CRD.Spec.Group == group && !d.Provisional {
			found = append(found, d.CRD)
		}
	}
	slices.SortFunc(found, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Put enters a stripped state of a definition. provisional says that a request has read
// it from the store; otherwise the informer has shown it. The table drops a state that
// is not newer than what it holds, except that the informer confirms a provisional one. It takes an older one if
// current says that the watch cache shows that now: a new epoch has begun, which lacks what the table holds.
func (t *Table) Put(crd *apiextensionsv1.CustomResourceDefinition, provisional, current bool) Change {
	before := t.byName[crd.Name]
	if before != nil {
		switch order := compareRevisions(crd, before.CRD); {
		case order < 0 && !current:
			return Change{}
		case order == 0 && (provisional || !before.Provisional):
			return Change{}
		}
	}
	after := &Definition{CRD: crd, Provisional: provisional}
	if provisional && before != nil && before.CRD.UID == crd.UID {
		// The informer shows this definition already, and will report its deletion.
		after.Provisional = before.Provisional
	}
	if t.byName == nil {
		t.byName = map[string]*Definition{}
	}
	t.byName[crd.Name] = after
	return Change{Before: before, After: after}
}

// Remove takes a definition out that was deleted at a revision. It changes nothing if
// the table holds another definition of that name.
func (t *Table) Remove(crd *apiextensionsv1.CustomResourceDefinition, deleted int64) Change {
	before := t.byName[crd.Name]
	if before == nil || before.CRD.UID != crd.UID {
		return Change{}
	}
	delete(t.byName, crd.Name)
	return Change{Before: before, Deleted: deleted}
}

// compareRevisions orders two states of definitions of one name. States that cannot be
// compared are in the order in which they arrive.
func compareRevisions(a, b *apiextensionsv1.CustomResourceDefinition) int {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	if err != nil {
		return 1
	}
	return order
}
