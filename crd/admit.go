package crd

import (
	"context"
	"errors"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// admit is the server's admission, and refuses to create instances of a
// definition that is being deleted: they would outlive it.
type admit struct {
	plugins     admission.Interface
	terminating *atomic.Bool
}

func (a admit) Handles(operation admission.Operation) bool {
	if operation == admission.Create && a.terminating.Load() {
		return true
	}
	return a.plugins != nil && a.plugins.Handles(operation)
}

func (a admit) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if err := a.refuse(attributes); err != nil {
		return err
	}
	if plugins, ok := a.plugins.(admission.MutationInterface); ok && a.plugins.Handles(attributes.GetOperation()) {
		return plugins.Admit(ctx, attributes, o)
	}
	return nil
}

func (a admit) Validate(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if err := a.refuse(attributes); err != nil {
		return err
	}
	if plugins, ok := a.plugins.(admission.ValidationInterface); ok && a.plugins.Handles(attributes.GetOperation()) {
		return plugins.Validate(ctx, attributes, o)
	}
	return nil
}

func (a admit) refuse(attributes admission.Attributes) error {
	if attributes.GetOperation() != admission.Create || !a.terminating.Load() {
		return nil
	}
	return apierrors.NewForbidden(attributes.GetResource().GroupResource(), attributes.GetName(),
		errors.New("create not allowed while custom resource definition is terminating"))
}
