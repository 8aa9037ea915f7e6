package endpoints

import (
	"context"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
)

// unchangedFields spares a create the check of managed fields that admission has
// left alone. Upstream's handler decodes them after admission, for the case that
// admission has spoilt them; they are its field manager's own, and decoding them is
// a fifteenth of what a Pod's create takes. So they are taken off the object when
// admission is done, and are back on it when it is created.
//
// It is made for one request.
type unchangedFields struct {
	object metav1.Object
	fields []metav1.ManagedFieldsEntry // nil: none were taken off
}

// plugins are what admission is made of wherever it both changes and validates.
type plugins interface {
	admission.MutationInterface
	admission.ValidationInterface
}

// createResource is upstream's handler, without its check where nothing can be wrong.
func createResource(creater rest.Creater, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	both, ok := admit.(plugins)
	if !ok {
		return handlers.CreateResource(creater, scope, admit)
	}
	var u unchangedFields
	return handlers.CreateResource(puttingBack{creater, &u}, scope, takingOff{both, &u})
}

// takingOff is admission that takes off unchanged fields.
type takingOff struct {
	plugins
	u *unchangedFields
}

func (t takingOff) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return t.plugins.Admit(ctx, attributes, o)
	}
	before := slices.Clone(object.GetManagedFields())
	if err := t.plugins.Admit(ctx, attributes, o); err != nil {
		return err
	}
	if after := object.GetManagedFields(); len(after) > 0 && slices.Equal(before, after) {
		t.u.object, t.u.fields = object, after
		object.SetManagedFields(nil)
	}
	return nil
}

// puttingBack creates objects with the fields that were taken off.
type puttingBack struct {
	rest.Creater
	u *unchangedFields
}

func (p puttingBack) Create(ctx context.Context, object runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if p.u.fields != nil {
		// Once: an object that is too large is created again without them.
		p.u.object.SetManagedFields(p.u.fields)
		p.u.fields = nil
	}
	return p.Creater.Create(ctx, object, validate, options)
}
