package registry

import (
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"
	certificatestore "k8s.io/kubernetes/pkg/registry/certificates/certificates/storage"
	podcertificaterequeststore "k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/utils/clock"
)

func tokenReviews(p *storageProvider) (storages, error) {
	return storages{"": tokenreview.NewREST(p.Authenticator, p.APIAudiences)}, nil
}

func selfSubjectReviews(*storageProvider) (storages, error) {
	return storages{"": selfsubjectreview.NewREST()}, nil
}

func subjectAccessReviews(p *storageProvider) (storages, error) {
	return storages{"": subjectaccessreview.NewREST(p.Authorizer, legacyscheme.Scheme)}, nil
}

func selfSubjectAccessReviews(p *storageProvider) (storages, error) {
	return storages{"": selfsubjectaccessreview.NewREST(p.Authorizer, legacyscheme.Scheme)}, nil
}

func localSubjectAccessReviews(p *storageProvider) (storages, error) {
	return storages{"": localsubjectaccessreview.NewREST(p.Authorizer, legacyscheme.Scheme)}, nil
}

func selfSubjectRulesReviews(p *storageProvider) (storages, error) {
	return storages{"": selfsubjectrulesreview.NewREST(p.RuleResolver)}, nil
}

func certificateSigningRequests(p *storageProvider) (storages, error) {
	s, status, approval, err := certificatestore.NewREST(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status, "approval": approval}, nil
}

func podCertificateRequests(p *storageProvider) (storages, error) {
	s, status, err := podcertificaterequeststore.NewREST(p.RESTOptions, p.Authorizer, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

// rbacStorages are the storages of the four RBAC resources. Their escalation check
// requires that a user who writes a role or a binding holds every permission that it
// grants, and the check reads all four resources.
type rbacStorages struct {
	roles               *rolepolicy.Storage
	roleBindings        *rolebindingpolicy.Storage
	clusterRoles        *clusterrolepolicy.Storage
	clusterRoleBindings *clusterrolebindingpolicy.Storage
}

func (p *storageProvider) newRBAC() (rbacStorages, error) {
	roles, err := rolestore.NewREST(p.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	roleBindings, err := rolebindingstore.NewREST(p.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	clusterRoles, err := clusterrolestore.NewREST(p.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	clusterRoleBindings, err := clusterrolebindingstore.NewREST(p.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	rules := rbacvalidation.NewDefaultRuleResolver(
		role.AuthorizerAdapter{Registry: role.NewRegistry(roles)},
		rolebinding.AuthorizerAdapter{Registry: rolebinding.NewRegistry(roleBindings)},
		clusterrole.AuthorizerAdapter{Registry: clusterrole.NewRegistry(clusterRoles)},
		clusterrolebinding.AuthorizerAdapter{Registry: clusterrolebinding.NewRegistry(clusterRoleBindings)},
	)
	return rbacStorages{
		roles:               rolepolicy.NewStorage(roles, p.Authorizer, rules),
		roleBindings:        rolebindingpolicy.NewStorage(roleBindings, p.Authorizer, rules),
		clusterRoles:        clusterrolepolicy.NewStorage(clusterRoles, p.Authorizer, rules),
		clusterRoleBindings: clusterrolebindingpolicy.NewStorage(clusterRoleBindings, p.Authorizer, rules),
	}, nil
}

func roles(p *storageProvider) (storages, error) {
	s, err := p.rbac()
	return storages{"": s.roles}, err
}

func roleBindings(p *storageProvider) (storages, error) {
	s, err := p.rbac()
	return storages{"": s.roleBindings}, err
}

func clusterRoles(p *storageProvider) (storages, error) {
	s, err := p.rbac()
	return storages{"": s.clusterRoles}, err
}

func clusterRoleBindings(p *storageProvider) (storages, error) {
	s, err := p.rbac()
	return storages{"": s.clusterRoleBindings}, err
}
