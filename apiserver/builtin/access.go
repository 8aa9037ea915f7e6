package builtin

import (
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

func tokenReviews(w *wiring) (storages, error) {
	return storages{"": tokenreview.NewREST(w.Authenticator, w.APIAudiences)}, nil
}

func selfSubjectReviews(*wiring) (storages, error) {
	return storages{"": selfsubjectreview.NewREST()}, nil
}

func subjectAccessReviews(w *wiring) (storages, error) {
	return storages{"": subjectaccessreview.NewREST(w.Authorizer)}, nil
}

func selfSubjectAccessReviews(w *wiring) (storages, error) {
	return storages{"": selfsubjectaccessreview.NewREST(w.Authorizer)}, nil
}

func localSubjectAccessReviews(w *wiring) (storages, error) {
	return storages{"": localsubjectaccessreview.NewREST(w.Authorizer)}, nil
}

func selfSubjectRulesReviews(w *wiring) (storages, error) {
	return storages{"": selfsubjectrulesreview.NewREST(w.RuleResolver)}, nil
}

func certificateSigningRequests(w *wiring) (storages, error) {
	s, status, approval, err := certificatestore.NewREST(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status, "approval": approval}, nil
}

func podCertificateRequests(w *wiring) (storages, error) {
	s, status, err := podcertificaterequeststore.NewREST(w.RESTOptions, w.Authorizer, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status}, nil
}

// rbacStorages are the four that guard one another: who writes a role or a
// binding must hold what it grants, which takes all four to tell.
type rbacStorages struct {
	roles               *rolepolicy.Storage
	roleBindings        *rolebindingpolicy.Storage
	clusterRoles        *clusterrolepolicy.Storage
	clusterRoleBindings *clusterrolebindingpolicy.Storage
}

func (w *wiring) newRBAC() (rbacStorages, error) {
	roles, err := rolestore.NewREST(w.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	roleBindings, err := rolebindingstore.NewREST(w.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	clusterRoles, err := clusterrolestore.NewREST(w.RESTOptions)
	if err != nil {
		return rbacStorages{}, err
	}
	clusterRoleBindings, err := clusterrolebindingstore.NewREST(w.RESTOptions)
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
		roles:               rolepolicy.NewStorage(roles, w.Authorizer, rules),
		roleBindings:        rolebindingpolicy.NewStorage(roleBindings, w.Authorizer, rules),
		clusterRoles:        clusterrolepolicy.NewStorage(clusterRoles, w.Authorizer, rules),
		clusterRoleBindings: clusterrolebindingpolicy.NewStorage(clusterRoleBindings, w.Authorizer, rules),
	}, nil
}

func roles(w *wiring) (storages, error) {
	s, err := w.rbac()
	return storages{"": s.roles}, err
}

func roleBindings(w *wiring) (storages, error) {
	s, err := w.rbac()
	return storages{"": s.roleBindings}, err
}

func clusterRoles(w *wiring) (storages, error) {
	s, err := w.rbac()
	return storages{"": s.clusterRoles}, err
}

func clusterRoleBindings(w *wiring) (storages, error) {
	s, err := w.rbac()
	return storages{"": s.clusterRoleBindings}, err
}
