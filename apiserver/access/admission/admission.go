package admission

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
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
	"k8s.io/apiserver/pkg/util/webhook"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/restmapper"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"sigs.k8s.io/yaml"

	"byre/apiserver/storage"
)

// Config holds the dependencies of the plugins. Every field is required.
type Config struct {
	Options  *Options
	ServerID string
	// Client, DynamicClient and Informers reach this server over the loopback
	// transport as a privileged user. No plugin calls the clients before the
	// caller starts the informers.
	Client        kubernetes.Interface
	DynamicClient dynamic.Interface
	Informers     informers.SharedInformerFactory
	// Reader reads Pods for the plugins.
	Reader *storage.LookupReader

	Authorizer  authorizer.Authorizer
	FeatureGate featuregate.FeatureGate
	// APIResourceConfigSource says which group versions are served. Resource
	// quota counts only the resources of these.
	APIResourceConfigSource serverstorage.APIResourceConfigSource

	// EffectiveVersion is the version that the server emulates.
	EffectiveVersion basecompatibility.EffectiveVersion
	// ServiceResolver resolves a webhook's Service to a URL.
	ServiceResolver webhook.ServiceResolver
	// AuthenticationInfoResolverWrapper adds the server's own credentials to calls
	// of webhooks.
	AuthenticationInfoResolverWrapper webhook.AuthenticationInfoResolverWrapper
}

// Admission is the chain of admission plugins and the REST mapper that they share.
type Admission struct {
	// Plugins is the chain. It implements admission.MutationInterface and
	// admission.ValidationInterface.
	Plugins admission.Interface

	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// discoveryRefreshInterval is how old the plugins' knowledge of resources may become, as
// in kube-apiserver.
const discoveryRefreshInterval = 30 * time.Second

// New builds the chain. The goroutines that upstream's policy plugins start in their
// constructors end with ctx. The caller passes the same context to Run.
func New(ctx context.Context, cfg Config) (*Admission, error) {
	generic := cfg.Options.GenericAdmission
	settings, err := cfg.Options.readConfiguration()
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file %s: %w", generic.ConfigFile, err)
	}
	initializers, mapper, err := cfg.initializers(ctx)
	if err != nil {
		return nil, err
	}
	chain, err := generic.Plugins.NewFromPlugins(cfg.Options.EnabledPluginNames(), settings, initializers,
		append(cfg.decorators(generic.ConfigFile != ""), generic.Decorators...))
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Admission{Plugins: admissionmetrics.WithStepMetrics(chain), mapper: mapper}, nil
}

// decorators are what each plugin is wrapped in.
func (cfg *Config) decorators(hasFile bool) admission.Decorators {
	return admission.Decorators{
		idleUnlessConfigured(cfg.Informers, cfg.FeatureGate, hasFile), serializeQuota(cfg.Informers),
	}
}

// Run resets the REST mapper every discoveryRefreshInterval until ctx ends, so that
// the plugins see new custom resources.
func (a *Admission) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { a.mapper.Reset() }, discoveryRefreshInterval)
	return nil
}

// initializers returns the plugin initializers in upstream's order, and the REST
// mapper that they hand to the plugins.
func (cfg *Config) initializers(
	ctx context.Context,
) (admission.PluginInitializers, *restmapper.DeferredDiscoveryRESTMapper, error) {
	pods := podLister{cfg.Reader.Pods.Lister(metav1.NamespaceAll), cfg.Reader.Pods}
	factory := storage.CoreInformers{SharedInformerFactory: cfg.Informers,
		Pods: storage.Informer[corev1listers.PodLister]{Of: pods}}
	quotas, err := quotainstall.NewQuotaConfigurationForAdmission(factory, cfg.APIResourceConfigSource)
	if err != nil {
		return nil, nil, fmt.Errorf("quota configuration: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(cfg.Client.Discovery()))
	policies := cfg.Informers.Admissionregistration().V1().MutatingAdmissionPolicies()
	client := openAPIClientset{cfg.Client, func() bool { return policies.Informer().HasSynced() }, ctx.Done()}
	return admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(cfg.ServerID),
		initializer.New(client, cfg.DynamicClient, factory, cfg.Authorizer,
			cfg.FeatureGate, cfg.EffectiveVersion, ctx.Done(), mapper),
		webhookinit.NewPluginInitializer(cfg.AuthenticationInfoResolverWrapper, cfg.ServiceResolver),
		controlplaneadmission.NewPluginInitializer(quotas, exclusion.Excluded()),
		kubeadmission.NewPluginInitializer(),
	}, mapper, nil
}

// configurationScheme returns a scheme with the kinds that
// --admission-control-config-file may contain.
func configurationScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiserverapi.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // upstream's packages register one kind twice
		}
	}
	return scheme
}

// Options are kube-apiserver's flags of admission.
type Options struct {
	kubeoptions.AdmissionOptions
	// NodeAuthorizer says that authorization uses the Node authorizer. The Node
	// authorizer allows a kubelet to create Pods and to change Nodes, and relies on
	// the NodeRestriction plugin to limit the kubelet to its own Node. With
	// NodeAuthorizer that plugin is on unless DisablePlugins names it.
	NodeAuthorizer bool
}

// NewOptions returns options with which the plugins that are on by default are on.
func NewOptions() *Options { return &Options{AdmissionOptions: *kubeoptions.NewAdmissionOptions()} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.AdmissionOptions.AddFlags(fs)
	fs.Lookup("enable-admission-plugins").Usage += " NodeRestriction is on too where the Node authorizer is configured."
}

// CheckConfiguration reads ConfigFile and the files that it names for plugins that are on. Upstream ends the
// process where one of these is missing.
func (o *Options) CheckConfiguration() error {
	if _, err := o.readConfiguration(); err != nil {
		return err
	}
	var config apiserverv1.AdmissionConfiguration
	data, err := os.ReadFile(o.GenericAdmission.ConfigFile)
	if err == nil {
		err = yaml.Unmarshal(data, &config)
	}
	for _, plugin := range config.Plugins {
		path := plugin.Path
		if path == "" || plugin.Configuration != nil || !slices.Contains(o.EnabledPluginNames(), plugin.Name) {
			continue // upstream reads no file
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(o.GenericAdmission.ConfigFile), path)
		}
		if _, err := os.ReadFile(path); err != nil {
			return fmt.Errorf("plugin %s: %w", plugin.Name, err)
		}
	}
	return err
}

func (o *Options) readConfiguration() (admission.ConfigProvider, error) {
	return admission.ReadAdmissionConfiguration(o.EnabledPluginNames(), o.GenericAdmission.ConfigFile,
		configurationScheme())
}

// EnabledPluginNames returns the plugins that are on, in the order of the chain. The
// caller calls Validate first, which refuses a plugin that is both enabled and disabled.
func (o *Options) EnabledPluginNames() []string {
	generic := o.GenericAdmission
	chosen := sets.New(o.PluginNames...)
	if chosen.Len() == 0 {
		chosen = sets.New(generic.RecommendedPluginOrder...).Difference(generic.DefaultOffPlugins).Insert(
			generic.EnablePlugins...)
	}
	if o.NodeAuthorizer {
		chosen.Insert(noderestriction.PluginName)
	}
	chosen.Delete(generic.DisablePlugins...)
	return slices.DeleteFunc(slices.Clone(generic.RecommendedPluginOrder), func(name string) bool {
		return !chosen.Has(name)
	})
}
