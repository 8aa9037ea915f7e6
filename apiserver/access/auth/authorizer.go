package auth

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	rbacinformers "k8s.io/client-go/informers/rbac"
	rbacv1informers "k8s.io/client-go/informers/rbac/v1"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/apiserver/access/auth/rbac"
	"byre/apiserver/storage/lookup"
)

// buildAuthorizer builds the chain of authorizers from ConfigFile or the flags.
func (a *Auth) buildAuthorizer(ctx context.Context, cfg Config) error {
	o := &cfg.Options.Authorization
	sources := cfg.Informers
	config := kubeauthorizer.Config{PolicyFile: o.PolicyFile, WebhookRetryBackoff: webhookBackoff()}
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
		sources = lookup.WithPods(sources, a.nodeAuthorizer.pods)
	}
	config.VersionedInformerFactory = authorizerInformers{sources, cfg.RBAC}
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
// RBAC listers read the store. All other informers are those of the embedded factory.
type authorizerInformers struct {
	informers.SharedInformerFactory
	rbac *rbac.Listers
}

func (s authorizerInformers) Rbac() rbacinformers.Interface {
	return rbacGroup{s.SharedInformerFactory.Rbac(), s.rbac}
}

type rbacGroup struct {
	rbacinformers.Interface
	listers *rbac.Listers
}

func (g rbacGroup) V1() rbacv1informers.Interface { return g.listers }
