package handlers

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"byre/apiserver/handlers/managedfields"
)

// createdFields are the managed fields of one create.
//
// What upstream does: its handler computes the managed fields with its field manager before
// admission. After admission it decodes and checks them, in case a plugin has made them
// invalid.
//
// What is done instead: where there is a tracker, the handler gets a managedfields.Live, for
// which its field manager computes no fields, and the tracker sets them when admission
// begins, which is the handler's next step. Where admission has left the fields unchanged,
// they are removed from the object, and restored when it is created: they are the field
// manager's own and need no check.
//
// What it relies on: the handler skips the check when there are no managed fields, and calls
// Create with the object that admission had. The package managedfields says what the tracker
// relies on. TestManagedFields_AdmissionsChangesAreStored and
// TestCreate_HasManagedFieldsOfUpstream fail when upstream does otherwise.
//
// What it earns: without the check, 12 to 20 percent of the processor time of the handler of
// a small Pod's create (BenchmarkOptimizations); the tracker, see BenchmarkTrack in
// managedfields.
//
// One value serves one request.
type createdFields struct {
	tracker     *managedfields.Tracker // nil: upstream's field manager has computed the fields
	keepsFields bool                   // the fields are not removed after admission
	manager     string
	live        *managedfields.Live // nil until the handler asks for it

	object  metav1.Object
	removed []metav1.ManagedFieldsEntry // nil: none were removed
}

// plugins is the interface of admission that both changes and validates.
type plugins interface {
	admission.MutationInterface
	admission.ValidationInterface
}

// createResource is upstream's handler of creates with what createdFields describes.
// tracker may be nil.
func createResource(creater rest.Creater, scope *handlers.RequestScope, admit admission.Interface, tracker *managedfields.Tracker, keepsFields bool) http.HandlerFunc {
	both, ok := admit.(plugins)
	if !ok || !both.Handles(admission.Create) {
		return handlers.CreateResource(creater, scope, admit)
	}
	return func(w http.ResponseWriter, req *http.Request) {
		f := &createdFields{tracker: tracker, keepsFields: keepsFields, manager: managerOfAgent(req.UserAgent())}
		scope := scope
		if tracker != nil {
			tracked := *scope
			tracked.Creater = &liveCreater{scope.Creater, f}
			scope = &tracked
		}
		handlers.CreateResource(managedFieldsRestorer{creater, f}, scope, managedFieldsAdmission{both, f})(w, req)
	}
}

// liveCreater makes a Live of the first object that upstream's handler asks for. The
// handler uses this object as the empty state before the create.
type liveCreater struct {
	runtime.ObjectCreater
	f *createdFields
}

func (c *liveCreater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object, err := c.ObjectCreater.New(kind)
	if err != nil || c.f.live != nil {
		return object, err
	}
	c.f.live = managedfields.NewLive(object)
	return c.f.live, nil
}

// managedFieldsAdmission is admission before which the managed fields are set. If
// admission leaves them unchanged, they are removed afterwards.
type managedFieldsAdmission struct {
	plugins
	f *createdFields
}

func (a managedFieldsAdmission) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return a.plugins.Admit(ctx, attributes, o)
	}
	a.f.track(attributes, object)
	unchanged, err := admitWithFields(ctx, a.plugins, attributes, o, object)
	if err == nil && unchanged != nil && !a.f.keepsFields {
		a.f.object, a.f.removed = object, unchanged
		object.SetManagedFields(nil)
	}
	return err
}

// admitWithFields calls admission. It returns the managed fields if admission has left
// them unchanged, and otherwise nil. It undoes a change that makes them invalid.
func admitWithFields(ctx context.Context, p plugins, attributes admission.Attributes, o admission.ObjectInterfaces, object metav1.Object) (unchanged []metav1.ManagedFieldsEntry, err error) {
	before := slices.Clone(object.GetManagedFields())
	if err := p.Admit(ctx, attributes, o); err != nil {
		return nil, err
	}
	after := object.GetManagedFields()
	if slices.Equal(before, after) {
		return after, nil
	}
	// Upstream's handler can't undo this change, because it has not seen the fields
	// before.
	if err := upstream.ValidateManagedFields(after); err != nil {
		object.SetManagedFields(before)
		warning.AddWarning(ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
	}
	return nil, nil
}

// track sets the managed fields of the object, unless upstream's field manager has set
// them.
func (f *createdFields) track(attributes admission.Attributes, object metav1.Object) {
	if f.tracker == nil || f.live == nil || f.live.IsUsed() || len(object.GetManagedFields()) > 0 {
		return
	}
	manager := f.manager
	if options, ok := attributes.GetOperationOptions().(*metav1.CreateOptions); ok && options.FieldManager != "" {
		manager = options.FieldManager
	}
	f.tracker.Track(attributes.GetObject(), manager)
}

// managerOfAgent is the field manager of a request that names none: the user agent up
// to the first slash, without characters that can't be printed, as in upstream's
// handlers.prefixFromUserAgent.
func managerOfAgent(agent string) string {
	name, _, _ := strings.Cut(agent, "/")
	var b bytes.Buffer
	for _, r := range name {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// managedFieldsRestorer restores the managed fields that were removed, before it
// creates the object.
type managedFieldsRestorer struct {
	rest.Creater
	f *createdFields
}

func (r managedFieldsRestorer) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if r.f.removed != nil {
		// Only for the first call: upstream creates an object that is too large again,
		// without managed fields.
		r.f.object.SetManagedFields(r.f.removed)
		r.f.removed = nil
	}
	return r.Creater.Create(ctx, object, validate, options)
}
