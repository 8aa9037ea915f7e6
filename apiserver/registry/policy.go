package registry

import (
	mutatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy/storage"
	mutatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding/storage"
	validatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy/storage"
	validatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding/storage"
	resourceclaimstore "k8s.io/kubernetes/pkg/registry/resource/resourceclaim/storage"
	resourceclaimtemplatestore "k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate/storage"
)

func (p *storageProvider) newValidatingPolicies() (storages, error) {
	kinds, err := p.resolver()
	if err != nil {
		return nil, err
	}
	s, status, err := validatingpolicystore.NewREST(p.RESTOptions, p.Authorizer, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

func (p *storageProvider) newMutatingPolicies() (storages, error) {
	kinds, err := p.resolver()
	if err != nil {
		return nil, err
	}
	s, err := mutatingpolicystore.NewREST(p.RESTOptions, p.Authorizer, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func validatingAdmissionPolicies(p *storageProvider) (storages, error) { return p.validatingPolicies() }

func mutatingAdmissionPolicies(p *storageProvider) (storages, error) { return p.mutatingPolicies() }

// validatingAdmissionPolicyBindings gives the storage of bindings a getter of policies:
// it reads a binding's policy to check that the author may read the policy's parameters.
func validatingAdmissionPolicyBindings(p *storageProvider) (storages, error) {
	kinds, err := p.resolver()
	if err != nil {
		return nil, err
	}
	policies, err := p.validatingPolicies()
	if err != nil {
		return nil, err
	}
	s, err := validatingbindingstore.NewREST(p.RESTOptions, p.Authorizer,
		&validatingbindingstore.DefaultPolicyGetter{Getter: getterOf(policies)}, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func mutatingAdmissionPolicyBindings(p *storageProvider) (storages, error) {
	kinds, err := p.resolver()
	if err != nil {
		return nil, err
	}
	policies, err := p.mutatingPolicies()
	if err != nil {
		return nil, err
	}
	s, err := mutatingbindingstore.NewREST(p.RESTOptions, p.Authorizer,
		&mutatingbindingstore.DefaultPolicyGetter{Getter: getterOf(policies)}, kinds)
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func resourceClaims(p *storageProvider) (storages, error) {
	s, status, err := resourceclaimstore.NewREST(p.RESTOptions, p.Client.CoreV1().Namespaces(), p.Authorizer)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

func resourceClaimTemplates(p *storageProvider) (storages, error) {
	s, err := resourceclaimtemplatestore.NewREST(p.RESTOptions, p.Client.CoreV1().Namespaces())
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}
