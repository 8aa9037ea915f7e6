package instances

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
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

// ScaleKind is the kind of every scale subresource.
var ScaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// DefinitionVersion returns a version of a definition, or nil.
func DefinitionVersion(
	crd *apiextensionsv1.CustomResourceDefinition, name string,
) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == name {
			return &crd.Spec.Versions[i]
		}
	}
	return nil
}

// HasStatus tells whether a version has the status subresource.
func HasStatus(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Status != nil
}

// HasScale tells whether a version has the scale subresource.
func HasScale(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Scale != nil
}

// SelectableFieldsEnabled tells whether the program honours selectable fields (KEP-4358).
func SelectableFieldsEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors)
}

func ageColumn() apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{
		Name:        "Age",
		Type:        "date",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		JSONPath:    ".metadata.creationTimestamp",
	}
}

// Columns are the printer columns of a version: those that it asks for, or the age.
func Columns(spec *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(spec.AdditionalPrinterColumns) > 0 {
		return spec.AdditionalPrinterColumns
	}
	return []apiextensionsv1.CustomResourceColumnDefinition{ageColumn()}
}

// ScaleColumns are the printer columns of a version's scale subresource.
func ScaleColumns(
	spec *apiextensionsv1.CustomResourceDefinitionVersion,
) []apiextensionsv1.CustomResourceColumnDefinition {
	var columns []apiextensionsv1.CustomResourceColumnDefinition
	if spec.Subresources.Scale.SpecReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Desired", Type: "integer", Description: "Number of desired replicas", JSONPath: ".spec.replicas",
		})
	}
	if spec.Subresources.Scale.StatusReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Available", Type: "integer", Description: "Number of actual replicas", JSONPath: ".status.replicas",
		})
	}
	return append(columns, ageColumn())
}

// DeprecationWarnings are the warnings in every answer of a deprecated version.
func DeprecationWarnings(
	crd *apiextensionsv1.CustomResourceDefinition, spec *apiextensionsv1.CustomResourceDefinitionVersion,
) []string {
	switch {
	case !spec.Deprecated:
		return nil
	case spec.DeprecationWarning != nil:
		return []string{*spec.DeprecationWarning}
	default:
		return []string{deprecationWarning(crd, spec.Name)}
	}
}

// deprecationWarning recommends the newest version that is served, not deprecated and
// newer than the deprecated one.
func deprecationWarning(crd *apiextensionsv1.CustomResourceDefinition, deprecated string) string {
	group, kind := crd.Spec.Group, crd.Spec.Names.Kind
	text := fmt.Sprintf("%s/%s %s is deprecated", group, deprecated, kind)
	var newer []string
	for _, v := range crd.Spec.Versions {
		if v.Served && !v.Deprecated && kubeversion.CompareKubeAwareVersionStrings(deprecated, v.Name) < 0 {
			newer = append(newer, v.Name)
		}
	}
	if len(newer) == 0 {
		return text
	}
	newest := slices.MaxFunc(newer, kubeversion.CompareKubeAwareVersionStrings)
	return text + fmt.Sprintf("; use %s/%s %s", group, newest, kind)
}

// Resources are a version's resource and its subresources, as discovery lists them.
func Resources(
	crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion,
) []metav1.APIResource {
	names := crd.Status.AcceptedNames
	namespaced := crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	if IsTerminating(crd) {
		verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	main := metav1.APIResource{
		Name:         names.Plural,
		SingularName: names.Singular,
		Namespaced:   namespaced,
		Kind:         names.Kind,
		Verbs:        verbs,
		ShortNames:   names.ShortNames,
		Categories:   names.Categories,
	}
	if stored, err := apihelpers.GetCRDStorageVersion(crd); err == nil && apihelpers.HasServedCRDVersion(crd, stored) {
		main.StorageVersionHash = discovery.StorageVersionHash(crd.Spec.Group, stored, crd.Spec.Names.Kind)
	}
	resources := []metav1.APIResource{main}
	subresourceVerbs := metav1.Verbs{"get", "patch", "update"}
	if HasStatus(v) {
		resources = append(resources, metav1.APIResource{
			Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: subresourceVerbs,
		})
	}
	if HasScale(v) {
		resources = append(resources, metav1.APIResource{
			Group: ScaleKind.Group, Version: ScaleKind.Version, Kind: ScaleKind.Kind,
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: subresourceVerbs,
		})
	}
	return resources
}

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
		!slices.EqualFunc(c.Before.CRD.Spec.Versions, c.After.CRD.Spec.Versions,
			func(a, b apiextensionsv1.CustomResourceDefinitionVersion) bool {
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
	slices.SortFunc(found, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return strings.Compare(a.Name, b.Name)
	})
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
