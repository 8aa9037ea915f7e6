package builtin

import (
	mutatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy/storage"
	mutatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding/storage"
	validatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy/storage"
	validatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding/storage"
	resourceclaimstore "k8s.io/kubernetes/pkg/registry/resource/resourceclaim/storage"
	resourceclaimtemplatestore "k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate/storage"
)

func (w *wiring) newValidatingPolicies() (storages, error) {
	kinds, err := w.resolver()
	if err != nil {
		return nil, err
	}
	s, status, err := validatingpolicystore.NewREST(w.RESTOptions, w.Authorizer, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

func (w *wiring) newMutatingPolicies() (storages, error) {
	kinds, err := w.resolver()
	if err != nil {
		return nil, err
	}
	s, err := mutatingpolicystore.NewREST(w.RESTOptions, w.Authorizer, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func validatingAdmissionPolicies(w *wiring) (storages, error) { return w.validatingPolicies() }

func mutatingAdmissionPolicies(w *wiring) (storages, error) { return w.mutatingPolicies() }

// validatingAdmissionPolicyBindings looks up a binding's policy to see whether
// its author may read the policy's parameters.
func validatingAdmissionPolicyBindings(w *wiring) (storages, error) {
	kinds, err := w.resolver()
	if err != nil {
		return nil, err
	}
	policies, err := w.validatingPolicies()
	if err != nil {
		return nil, err
	}
	s, err := validatingbindingstore.NewREST(w.RESTOptions, w.Authorizer,
		&validatingbindingstore.DefaultPolicyGetter{Getter: getter(policies)}, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func mutatingAdmissionPolicyBindings(w *wiring) (storages, error) {
	kinds, err := w.resolver()
	if err != nil {
		return nil, err
	}
	policies, err := w.mutatingPolicies()
	if err != nil {
		return nil, err
	}
	s, err := mutatingbindingstore.NewREST(w.RESTOptions, w.Authorizer,
		&mutatingbindingstore.DefaultPolicyGetter{Getter: getter(policies)}, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func resourceClaims(w *wiring) (storages, error) {
	s, status, err := resourceclaimstore.NewREST(w.RESTOptions, w.Client.CoreV1().Namespaces(), w.Authorizer)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

func resourceClaimTemplates(w *wiring) (storages, error) {
	s, err := resourceclaimtemplatestore.NewREST(w.RESTOptions, w.Client.CoreV1().Namespaces())
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}
