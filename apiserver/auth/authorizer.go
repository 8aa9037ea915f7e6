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

	"byre/apiserver/auth/rbac"
)

// buildAuthorizer turns the flags, or the file, into the chain of authorizers.
func (a *Auth) buildAuthorizer(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authorization
	sources := &ruleSources{SharedInformerFactory: cfg.Informers, rbac: cfg.RBAC}
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
		config.AuthorizationConfiguration = o.chain()
	}
	uses := func(mode string) bool {
		return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers,
			func(c apiserver.AuthorizerConfiguration) bool { return string(c.Type) == mode })
	}
	if uses(modes.ModeNode) {
		a.nodes = newNodes(cfg.Client)
		sources.pods = a.nodes.pods
	}
	a.UsesRBAC = uses(modes.ModeRBAC)
	var err error
	if a.Authorizer, a.RuleResolver, err = config.New(ctx, cfg.ServerID); err != nil {
		return err
	}
	if a.nodes != nil {
		a.nodes.Authorizer = a.Authorizer
		a.Authorizer = a.nodes
	}
	return nil
}

// ruleSources is an informer factory in which the RBAC listers read the store
// itself, and the Pod informer is the slim one of the Node authorizer. Through
// it upstream's builder is used as it is.
type ruleSources struct {
	informers.SharedInformerFactory
	rbac *rbac.Tables
	pods cache.SharedIndexInformer
}

func (s *ruleSources) Rbac() rbacinformers.Interface {
	return rbacGroup{s.SharedInformerFactory.Rbac(), s.rbac}
}

func (s *ruleSources) Core() coreinformers.Interface {
	return coreGroup{s.SharedInformerFactory.Core(), s.pods}
}

type rbacGroup struct {
	rbacinformers.Interface
	tables *rbac.Tables
}

func (g rbacGroup) V1() rbacv1informers.Interface { return rbacVersion{g.Interface.V1(), g.tables} }

type rbacVersion struct {
	rbacv1informers.Interface
	tables *rbac.Tables
}

func (v rbacVersion) Roles() rbacv1informers.RoleInformer {
	return roles{v.Interface.Roles(), v.tables}
}

func (v rbacVersion) RoleBindings() rbacv1informers.RoleBindingInformer {
	return roleBindings{v.Interface.RoleBindings(), v.tables}
}

func (v rbacVersion) ClusterRoles() rbacv1informers.ClusterRoleInformer {
	return clusterRoles{v.Interface.ClusterRoles(), v.tables}
}

func (v rbacVersion) ClusterRoleBindings() rbacv1informers.ClusterRoleBindingInformer {
	return clusterRoleBindings{v.Interface.ClusterRoleBindings(), v.tables}
}

type roles struct {
	rbacv1informers.RoleInformer
	tables *rbac.Tables
}

func (r roles) Lister() rbacv1listers.RoleLister { return r.tables.Roles() }

type roleBindings struct {
	rbacv1informers.RoleBindingInformer
	tables *rbac.Tables
}

func (r roleBindings) Lister() rbacv1listers.RoleBindingLister { return r.tables.RoleBindings() }

type clusterRoles struct {
	rbacv1informers.ClusterRoleInformer
	tables *rbac.Tables
}

func (r clusterRoles) Lister() rbacv1listers.ClusterRoleLister { return r.tables.ClusterRoles() }

type clusterRoleBindings struct {
	rbacv1informers.ClusterRoleBindingInformer
	tables *rbac.Tables
}

func (r clusterRoleBindings) Lister() rbacv1listers.ClusterRoleBindingLister {
	return r.tables.ClusterRoleBindings()
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

func (v coreVersion) Pods() corev1informers.PodInformer { return podInformer{v.pods} }

type podInformer struct {
	informer cache.SharedIndexInformer
}

func (p podInformer) Informer() cache.SharedIndexInformer { return p.informer }
func (p podInformer) Lister() corev1listers.PodLister {
	return corev1listers.NewPodLister(p.informer.GetIndexer())
}
