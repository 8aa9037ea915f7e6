package apiserver

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/tracing"

	"byre/apiserver/process/loopback"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/apiserver/storage/lookup"
)

// clients send requests to the delegation chain within the process, as the server itself.
type clients struct {
	transport *loopback.Transport
	loopback  *rest.Config
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	// reader reads built-in objects from their stores, without a request.
	reader *lookup.Reader
	// informers are started after every part of the server has registered its own.
	informers informers.SharedInformerFactory
}

// newClients makes clients over roundTripper. Their requests fail until roundTripper
// serves the chain. stores finds the store of a resource.
func newClients(roundTripper *loopback.Transport, tracer tracing.TracerProvider, stores func(schema.GroupResource) *storage.Store) (clients, error) {
	config := loopback.Config(roundTripper)
	if tracer != nil {
		config.Wrap(tracing.WrapperFor(tracer))
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("loopback client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("loopback client: %w", err)
	}
	// Upstream's name of kube-apiserver's informers in their metrics. A process has it once: the
	// informers of another server in it have no metrics.
	name, _ := cache.NewInformerName("kube-apiserver")
	return clients{
		transport: roundTripper,
		loopback:  config,
		kube:      kube,
		dynamic:   dynamicClient,
		reader:    lookup.NewReader(stores),
		informers: informers.NewSharedInformerFactoryWithOptions(kube, 0,
			informers.WithTransform(loopback.StripManagedFields), informers.WithCustomResyncConfig(registry.CustomResync()),
			informers.WithInformerName(name)),
	}, nil
}

// as returns the configuration of clients whose requests are those of another user. Their user
// agent is that of a Kubernetes component in upstream's form, from which its name gets into the
// managed fields.
func (c clients) as(component string, who user.Info) *rest.Config {
	config := loopback.As(c.loopback, c.transport, who)
	info := Version(effectiveVersion())
	version, _, _ := strings.Cut(info.GitVersion, "+")
	config.UserAgent = fmt.Sprintf("%s/%s (%s) kubernetes/%.7s", component, version, info.Platform, cmp.Or(info.GitCommit, "unknown"))
	return config
}
