package auth

import (
	"context"

	"k8s.io/client-go/informers"
	rbacinformers "k8s.io/client-go/informers/rbac"
	rbacv1informers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/apiserver/storage"
)

// buildAuthorizer builds the chain of authorizers.
func (a *Auth) buildAuthorizer(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authorization
	config, err := o.ToAuthorizationConfig(nil)
	if err != nil {
		return err
	}
	config.CustomDial = cfg.Dial
	sources := cfg.Informers
	if usesMode(config, modes.ModeNode) {
		a.nodeAuthorizer = newLazyNodeAuthorizer(cfg.Client)
		sources = storage.WithPods(sources, a.nodeAuthorizer.pods)
	}
	config.VersionedInformerFactory = authorizerInformers{sources, cfg.RBAC}
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
// RBAC listers read the store. All other informers are those of the embedded factory.
type authorizerInformers struct {
	informers.SharedInformerFactory
	rbac *RBACListers
}

func (s authorizerInformers) Rbac() rbacinformers.Interface {
	return rbacGroup{s.SharedInformerFactory.Rbac(), s.rbac}
}

type rbacGroup struct {
	rbacinformers.Interface
	listers *RBACListers
}

func (g rbacGroup) V1() rbacv1informers.Interface { return g.listers }
