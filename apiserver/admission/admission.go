package admission

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/webhook"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"byre/apiserver/routing"
)

// Config is what the plugins work with. All but the optional fields are required.
type Config struct {
	Options  *Options
	ServerID string
	// Client, Dynamic and Informers reach this very server as its own
	// privileged user. The clients are not called before the informers run.
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	Informers informers.SharedInformerFactory

	Authorizer  authorizer.Authorizer
	FeatureGate featuregate.FeatureGate
	// Resources tells which group versions are served, and so have quota.
	Resources serverstorage.APIResourceConfigSource

	// Version is the version that the server behaves as; nil: that of the
	// libraries it is built from.
	Version basecompatibility.EffectiveVersion
	// Services finds where a webhook's Service is; nil: at its cluster IP.
	Services webhook.ServiceResolver
	// Webhooks says by what the server shows itself to webhooks; nil: by
	// nothing but what --admission-control-config-file names.
	Webhooks webhook.AuthenticationInfoResolverWrapper
}

// Admission is the chain of plugins.
type Admission struct {
	// Plugins is what handlers ask. It is a MutationInterface and a
	// ValidationInterface.
	Plugins admission.Interface

	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// remapInterval is how old the plugins' knowledge of resources may become, as
// in kube-apiserver.
const remapInterval = 30 * time.Second

// New builds the chain. ctx bounds the life of what upstream's policy plugins
// start with construction; it should be the one that Run gets.
func New(ctx context.Context, cfg Config) (*Admission, error) {
	chosen := cfg.Options.Enabled()
	settings, err := admission.ReadAdmissionConfiguration(chosen, cfg.Options.ConfigFile, settingsScheme())
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file: %w", err)
	}
	initializers, mapper, err := cfg.initializers(ctx)
	if err != nil {
		return nil, err
	}
	registry := admission.NewPlugins()
	for _, p := range plugins() {
		p.register(registry)
	}
	chain, err := registry.NewFromPlugins(chosen, settings, initializers,
		admission.Decorators{admission.DecoratorFunc(admissionmetrics.WithControllerMetrics)})
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Admission{Plugins: admissionmetrics.WithStepMetrics(chain), mapper: mapper}, nil
}

// Run keeps the plugins' knowledge of resources fresh until ctx ends.
func (a *Admission) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { a.mapper.Reset() }, remapInterval)
	return nil
}

// initializers give each plugin what it asks for, in upstream's order.
func (cfg *Config) initializers(ctx context.Context) (admission.PluginInitializers, *restmapper.DeferredDiscoveryRESTMapper, error) {
	version := cfg.Version
	if version == nil {
		version = compatibility.DefaultBuildEffectiveVersion()
	}
	services := cfg.Services
	if services == nil {
		services = routing.NewResolver(cfg.Client, false, nil)
	}
	webhooks := cfg.Webhooks
	if webhooks == nil {
		webhooks = func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r }
	}
	followed := livePods{cfg.Informers, cfg.Client.CoreV1()}
	quotas, err := quotainstall.NewQuotaConfigurationForAdmission(followed, cfg.Resources)
	if err != nil {
		return nil, nil, fmt.Errorf("quota configuration: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(cfg.Client.Discovery()))
	client := newLazyOpenAPI(cfg.Client, cfg.Informers, ctx.Done())
	return admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(cfg.ServerID),
		initializer.New(client, cfg.Dynamic, followed, cfg.Authorizer,
			cfg.FeatureGate, version, ctx.Done(), mapper),
		webhookinit.NewPluginInitializer(webhooks, services),
		controlplaneadmission.NewPluginInitializer(quotas, exclusion.Excluded()),
		kubeadmission.NewPluginInitializer(),
	}, mapper, nil
}

// settingsScheme knows the kinds of --admission-control-config-file.
func settingsScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiserverapi.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // two kinds of one name within upstream's packages
		}
	}
	return scheme
}
