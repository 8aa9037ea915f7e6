package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// definition is a CustomResourceDefinition as it was last seen. It is immutable.
type definition struct {
	// crd is stripped; see strip.
	crd *apiextensionsv1.CustomResourceDefinition
	// instances go on from one state of a definition to the next for as long as
	// what they are made of does not change.
	instances *instances
	// provisional is a definition that a request has read from the store, and
	// the watch has not shown yet. It is not shown to clients before: it may be
	// gone, and the watch would never say so.
	provisional bool
}

// serves says whether requests for a version are the definition's to answer.
func (d *definition) serves(version string) bool {
	return d != nil && servesAny(d.crd) && apihelpers.HasServedCRDVersion(d.crd, version)
}

func (d *definition) servingOrNil(version string) *definition {
	if d.serves(version) {
		return d
	}
	return nil
}

// servesAny says whether the definition's names are its own. Those of one that
// was established once stay so, whatever becomes of its names.
func servesAny(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}

// table has the definitions by name, as the watch shows them. Where that is late
// it asks the store: a definition that some client has seen established, on
// whatever server, is served here by the time that client asks.
type table struct {
	shared *shared
	// known is the revision of a definition that the feed has, 0 if it has none.
	// loaded is false when the feed can't tell.
	known func(name string) (revision int64, loaded bool)
	// fresh waits until known says what is stored now, and returns a revision that
	// is not older.
	fresh func(ctx context.Context) (int64, error)
	// seen is the revision that the feed has.
	seen func() int64
	// latest reads a definition from the store, as it is now.
	latest func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
	// forget is told of resources whose instances are gone, or are found by other
	// fields now: what the watch cache keeps of them is of no use. It must not call
	// back.
	forget func(group, plural string)
	// changed is told the group of every definition that the watch has shown to
	// come, change or go. It must not call back.
	changed func(group string)

	mu     sync.RWMutex
	byName map[string]*definition
	// gone are the resources of definitions that were removed since the last
	// release. They are forgotten by the next but one: until then, watches give what
	// they have left to give.
	gone, forgettable map[schema.GroupResource]bool
}

func (t *table) get(name string) *definition {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byName[name]
}

// group returns the definitions of a group that the watch has shown, by name.
func (t *table) group(group string) []*apiextensionsv1.CustomResourceDefinition {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var found []*apiextensionsv1.CustomResourceDefinition
	for _, d := range t.byName {
		if d.crd.Spec.Group == group && !d.provisional {
			found = append(found, d.crd)
		}
	}
	slices.SortFunc(found, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// maxReplaced bounds how often a request looks again for a definition that is
// replaced between being found and being read.
const maxReplaced = 5

// version returns the definition of that name, and what serves the version of it;
// nil if it does not serve the version.
func (t *table) version(ctx context.Context, name, of string) (*definition, *version, error) {
	d, err := t.find(ctx, name, of)
	for range maxReplaced {
		if d == nil || err != nil {
			return nil, nil, err
		}
		serving, err := d.instances.version(ctx, of)
		if !errors.Is(err, errReplaced) {
			return d, serving, err
		}
		if d, err = t.refresh(ctx, name); err != nil {
			return nil, nil, err
		}
		d = d.servingOrNil(of)
	}
	return nil, nil, fmt.Errorf("%s: %w", name, errReplaced)
}

// find returns the definition of that name if it serves the version, or nil.
func (t *table) find(ctx context.Context, name, version string) (*definition, error) {
	d := t.get(name)
	if d.serves(version) && t.current(d) {
		return d, nil
	}
	if d != nil {
		// Clients that come before a version is served ask again and again. Whether
		// the definition has changed is cheaper to find out than what it is.
		if _, err := t.fresh(ctx); err != nil {
			return nil, err
		}
		if revision, loaded := t.known(name); loaded && strconv.FormatInt(revision, 10) == d.crd.ResourceVersion {
			return d.servingOrNil(version), nil
		}
	}
	d, err := t.refresh(ctx, name)
	return d.servingOrNil(version), err
}

// refresh returns the definition as the store has it now, or nil.
func (t *table) refresh(ctx context.Context, name string) (*definition, error) {
	d := t.get(name)
	crd, err := t.latest(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		if d == nil {
			return nil, nil
		}
		revision, err := t.fresh(ctx)
		if err == nil {
			t.remove(d.crd, revision)
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	// What was read may be shared with other readers, but not its conversion.
	strip(crd)
	return t.put(crd, true), nil
}

// current says whether a definition is not older than what this server has
// answered: the feed has a change before who made it is told, the watch only
// after. So whoever has changed a definition is served by what they made it.
func (t *table) current(d *definition) bool {
	if revision, loaded := t.known(d.crd.Name); loaded {
		return strconv.FormatInt(revision, 10) == d.crd.ResourceVersion
	}
	return !d.provisional
}

// put enters a definition, unless a newer state of it is there already, and
// returns what is there then.
func (t *table) put(crd *apiextensionsv1.CustomResourceDefinition, provisional bool) *definition {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.byName[crd.Name]
	if last != nil {
		switch order := compareVersions(crd, last.crd); {
		case order < 0:
			return last
		case order == 0 && (provisional || !last.provisional):
			return last
		}
	}
	d := &definition{crd: crd, provisional: provisional}
	if provisional && last != nil && last.crd.UID == crd.UID {
		// The watch knows it, or will: it will show the end of it too.
		d.provisional = last.provisional
	}
	if last != nil && sameInstances(last.crd, crd) {
		d.instances = last.instances
		d.instances.adopt(crd)
	} else {
		d.instances = newInstances(t.shared, crd)
		switch {
		case last == nil:
		case last.crd.UID != crd.UID:
			// The end of the last was not seen. It was before this.
			last.instances.ending.After(revisionOf(crd))
		default:
			last.instances.ending.Now()
			if !sameSelectable(last.crd, crd) {
				t.forget(crd.Spec.Group, crd.Spec.Names.Plural)
			}
		}
	}
	t.byName[crd.Name] = d
	if !d.provisional {
		t.changed(crd.Spec.Group)
	}
	return d
}

// remove takes out a definition that is gone at a revision, if it is the one that is
// there. Watches of its instances end when they have given all that happened until
// then: the deletion of every instance came before that of the definition.
func (t *table) remove(crd *apiextensionsv1.CustomResourceDefinition, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.byName[crd.Name]
	if last == nil || last.crd.UID != crd.UID {
		return
	}
	delete(t.byName, crd.Name)
	last.instances.ending.After(revision)
	t.gone[resourceOf(crd)] = true
	t.changed(crd.Spec.Group)
}

// release gives up what instances have not used since it was called last.
func (t *table) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.byName {
		d.instances.release()
		delete(t.forgettable, resourceOf(d.crd))
	}
	for resource := range t.forgettable {
		t.forget(resource.Group, resource.Resource)
	}
	t.gone, t.forgettable = map[schema.GroupResource]bool{}, t.gone
}

func resourceOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

// revisionOf is 0 for what has no revision.
func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) int64 {
	revision, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64)
	return revision
}

// sameInstances says whether what serves the instances of one state of a
// definition can serve those of the next. The generation is not compared: the begin
// of a delete changes it, and watches must not end before the instances are gone.
func sameInstances(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	return a.UID == b.UID && a.Annotations[specHash] == b.Annotations[specHash] &&
		apiequality.Semantic.DeepEqual(a.Status.AcceptedNames, b.Status.AcceptedNames)
}

// sameSelectable says whether instances are found by the same fields.
func sameSelectable(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.EqualFunc(a.Spec.Versions, b.Spec.Versions, func(a, b apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return a.Storage == b.Storage && slices.Equal(a.SelectableFields, b.SelectableFields)
	})
}

// compareVersions orders two states of definitions of one name by their
// revision.
func compareVersions(a, b *apiextensionsv1.CustomResourceDefinition) int {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	if err != nil {
		return 1 // of what can't be compared the last to come stays
	}
	return order
}
