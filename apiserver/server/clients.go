package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/tracing"

	"byre/apiserver/process"

	"byre/apiserver/registry"
	"byre/apiserver/storage"
)

// clients send requests as the server itself: to the delegation chain within the process, and to webhooks.
type clients struct {
	transport *process.LoopbackTransport
	loopback  *rest.Config
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	// reader reads built-in objects from their stores, without a request.
	reader *storage.LookupReader
	// informers are started after every part of the server has registered its own.
	informers informers.SharedInformerFactory
	// resolver finds the Services of webhooks, in the store. webhooks chooses the credentials
	// with which the server authenticates itself to a webhook.
	resolver webhook.ServiceResolver
	webhooks webhook.AuthenticationInfoResolverWrapper
}

// newClients makes the clients. Their requests within the process fail until their transport
// serves the chain. stores finds the store of a resource.
func newClients(o Completed, n network, stores func(schema.GroupResource) *storage.Store) (clients, error) {
	transport := new(process.LoopbackTransport)
	config, self, tracer := process.LoopbackConfig(transport), process.SelfConfig(transport), n.tracer
	if tracer != nil {
		config.Wrap(tracing.WrapperFor(tracer))
		self.Wrap(tracing.WrapperFor(tracer))
	} else {
		tracer = tracing.NewNoopTracerProvider()
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
	reader := storage.NewLookupReader(stores)
	return clients{
		transport: transport,
		loopback:  config,
		kube:      kube,
		dynamic:   dynamicClient,
		reader:    reader,
		informers: informers.NewSharedInformerFactoryWithOptions(kube, 0,
			informers.WithTransform(process.StripManagedFields), informers.WithCustomResyncConfig(registry.AllocatorResync()),
			informers.WithInformerName(name)),
		resolver: process.NewServiceResolver(reader, o.Cluster.RouteToEndpoints, n.self),
		webhooks: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, n.egress.selector, self, tracer),
	}, nil
}

// stop ends the requests within the process. Those that are left are watches of informers
// that nobody reads any more.
func (c clients) stop() {
	c.transport.Close()
	c.transport.Wait()
	c.informers.Shutdown()
}

// checkLive requests this server's /livez, through all filters. It excludes the check
// of the database: while the database is away, the server still answers reads from its
// watch cache, and a restart would end that.
func (c clients) checkLive(ctx context.Context) error {
	return c.kube.Discovery().RESTClient().Get().AbsPath("/livez").Param("exclude", "etcd").Do(ctx).Error()
}

// as returns the configuration of clients whose requests are those of another user. Their user
// agent is that of a Kubernetes component in upstream's form, from which its name gets into the
// managed fields.
func (c clients) as(component string, who user.Info) *rest.Config {
	config := process.LoopbackAs(c.loopback, c.transport, who)
	info := Version(effectiveVersion())
	version, _, _ := strings.Cut(info.GitVersion, "+")
	config.UserAgent = fmt.Sprintf("%s/%s (%s) kubernetes/%.7s", component, version, info.Platform, cmp.Or(info.GitCommit, "unknown"))
	return config
}
