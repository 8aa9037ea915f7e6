package instances

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// createGuard runs the admission plugins, and forbids the creation of instances of a
// definition that is being deleted. Such instances would outlive the definition.
type createGuard struct {
	plugins       admission.Interface
	isTerminating func() bool
}

func (g createGuard) Handles(operation admission.Operation) bool {
	if operation == admission.Create && g.isTerminating() {
		return true
	}
	return g.plugins != nil && g.plugins.Handles(operation)
}

func (g createGuard) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.forbid(attributes); err != nil {
		return err
	}
	if plugins, ok := g.plugins.(admission.MutationInterface); ok && g.plugins.Handles(attributes.GetOperation()) {
		return plugins.Admit(ctx, attributes, o)
	}
	return nil
}

func (g createGuard) Validate(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.forbid(attributes); err != nil {
		return err
	}
	if plugins, ok := g.plugins.(admission.ValidationInterface); ok && g.plugins.Handles(attributes.GetOperation()) {
		return plugins.Validate(ctx, attributes, o)
	}
	return nil
}

func (g createGuard) forbid(attributes admission.Attributes) error {
	if attributes.GetOperation() != admission.Create || !g.isTerminating() {
		return nil
	}
	return apierrors.NewForbidden(attributes.GetResource().GroupResource(), attributes.GetName(),
		errors.New("create not allowed while custom resource definition is terminating"))
}
