package auth

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	rbacinformers "k8s.io/client-go/informers/rbac"
	rbacv1informers "k8s.io/client-go/informers/rbac/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	rbacv1listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/apiserver/access/auth/rbac"
)

// buildAuthorizer builds the chain of authorizers from ConfigFile or the flags.
func (a *Auth) buildAuthorizer(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authorization
	sources := &authorizerInformers{SharedInformerFactory: cfg.Informers, rbac: cfg.RBAC}
	config := kubeauthorizer.Config{
		PolicyFile:               o.PolicyFile,
		WebhookRetryBackoff:      webhookBackoff(),
		VersionedInformerFactory: sources,
	}
	if cfg.Egress != nil {
		dial, err := cfg.Egress.Lookup(egressselector.ControlPlane.AsNetworkContext())
		if err != nil {
			return err
		}
		config.CustomDial = dial
	}
	if o.ConfigFile != "" {
		var err error
		config.ReloadFile = o.ConfigFile
		config.AuthorizationConfiguration, config.InitialAuthorizationConfigurationData, err =
			kubeauthorizer.LoadAndValidateFile(o.ConfigFile, authorizationcel.NewDefaultCompiler(), nil)
		if err != nil {
			return err
		}
	} else {
		config.AuthorizationConfiguration = o.buildConfiguration()
	}
	uses := func(mode string) bool {
		return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers,
			func(c apiserver.AuthorizerConfiguration) bool { return string(c.Type) == mode })
	}
	if uses(modes.ModeNode) {
		a.nodeAuthorizer = newLazyNodeAuthorizer(cfg.Client)
		sources.pods = a.nodeAuthorizer.pods
	}
	a.UsesRBAC = uses(modes.ModeRBAC)
	var err error
	if a.Authorizer, a.RuleResolver, err = config.New(ctx, cfg.ServerID); err != nil {
		return err
	}
	if a.nodeAuthorizer != nil {
		a.nodeAuthorizer.Authorizer = a.Authorizer
		a.Authorizer = a.nodeAuthorizer
	}
	return nil
}

// authorizerInformers is the informer factory that is given to upstream's builder. Its
// RBAC listers read the store, and its Pod informer is that of lazyNodeAuthorizer. All
// other informers are those of the embedded factory.
type authorizerInformers struct {
	informers.SharedInformerFactory
	rbac *rbac.Listers
	pods cache.SharedIndexInformer
}

func (s *authorizerInformers) Rbac() rbacinformers.Interface {
	return rbacGroup{s.SharedInformerFactory.Rbac(), s.rbac}
}

func (s *authorizerInformers) Core() coreinformers.Interface {
	return coreGroup{s.SharedInformerFactory.Core(), s.pods}
}

type rbacGroup struct {
	rbacinformers.Interface
	listers *rbac.Listers
}

func (g rbacGroup) V1() rbacv1informers.Interface { return rbacVersion{g.Interface.V1(), g.listers} }

type rbacVersion struct {
	rbacv1informers.Interface
	listers *rbac.Listers
}

func (v rbacVersion) Roles() rbacv1informers.TypedRoleInformer {
	return roles{v.Interface.Roles(), v.listers}
}

func (v rbacVersion) RoleBindings() rbacv1informers.TypedRoleBindingInformer {
	return roleBindings{v.Interface.RoleBindings(), v.listers}
}

func (v rbacVersion) ClusterRoles() rbacv1informers.TypedClusterRoleInformer {
	return clusterRoles{v.Interface.ClusterRoles(), v.listers}
}

func (v rbacVersion) ClusterRoleBindings() rbacv1informers.TypedClusterRoleBindingInformer {
	return clusterRoleBindings{v.Interface.ClusterRoleBindings(), v.listers}
}

type roles struct {
	rbacv1informers.TypedRoleInformer
	listers *rbac.Listers
}

func (r roles) Lister() rbacv1listers.RoleLister { return r.listers.Roles() }

type roleBindings struct {
	rbacv1informers.TypedRoleBindingInformer
	listers *rbac.Listers
}

func (r roleBindings) Lister() rbacv1listers.RoleBindingLister { return r.listers.RoleBindings() }

type clusterRoles struct {
	rbacv1informers.TypedClusterRoleInformer
	listers *rbac.Listers
}

func (r clusterRoles) Lister() rbacv1listers.ClusterRoleLister { return r.listers.ClusterRoles() }

type clusterRoleBindings struct {
	rbacv1informers.TypedClusterRoleBindingInformer
	listers *rbac.Listers
}

func (r clusterRoleBindings) Lister() rbacv1listers.ClusterRoleBindingLister {
	return r.listers.ClusterRoleBindings()
}

type coreGroup struct {
	coreinformers.Interface
	pods cache.SharedIndexInformer
}

func (g coreGroup) V1() corev1informers.Interface { return coreVersion{g.Interface.V1(), g.pods} }

type coreVersion struct {
	corev1informers.Interface
	pods cache.SharedIndexInformer
}

func (v coreVersion) Pods() corev1informers.TypedPodInformer {
	return corev1informers.ToTypedPodInformer(podInformer{v.pods})
}

type podInformer struct {
	informer cache.SharedIndexInformer
}

func (p podInformer) Informer() cache.SharedIndexInformer { return p.informer }
func (p podInformer) Lister() corev1listers.PodLister {
	return corev1listers.NewPodLister(p.informer.GetIndexer())
}
