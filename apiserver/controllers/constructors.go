package controllers

import (
	"context"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/informers/internalinterfaces"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	kubectrlmgrconfig "k8s.io/kubernetes/pkg/controller/apis/config"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"

	"byre/apiserver/storage"
)

// Numbers of workers and periods; kube-controller-manager's defaults.
const (
	namespaceWorkers    = 10
	namespaceSyncPeriod = 5 * time.Minute
	roleWorkers         = 5
)

// controllerContext holds what the controllers share while this server holds the lease,
// as kube-controller-manager's type of the same name.
type controllerContext struct {
	// clients are the controller's own.
	clients
	// root are the clients of the informers that controllers share.
	root clients
	// self is a client of this server itself.
	self   kubernetes.Interface
	rootCA []byte
	// newMetadataWatch is Config.NewMetadataWatch.
	newMetadataWatch func(schema.GroupResource) *storage.MetadataWatch
	// informers are what informersIn takes its informers from.
	informers internalinterfaces.SharedInformerFactory
	// settings are kube-controller-manager's defaults.
	settings kubectrlmgrconfig.KubeControllerManagerConfiguration
	files    Files
	hosts    Hosts
	// mapper reads discovery again every discoveryRefreshInterval; nil for essential
	// controllers.
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// rootCAMaps watches only the ConfigMaps that the root CA publisher writes.
	rootCAMaps informers.SharedInformerFactory
	// metadataInformers are the informers of the garbage collector, which starts them.
	metadataInformers metadatainformer.SharedInformerFactory
	// informersStarted is closed when the informers that the constructors have
	// requested are started.
	informersStarted chan struct{}
}

func newNamespace(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	// Upstream's constructor ends the process where discovery fails. The server's own client
	// is neither forbidden to read it, in whatever authorization mode, nor turned away.
	c := namespace.NewNamespaceController(ctx, cc.kube, cc.metadata,
		cc.self.Discovery().ServerPreferredNamespacedResources,
		informersIn(cc, coreinformers.New).Namespaces(), namespaceSyncPeriod, v1.FinalizerKubernetes)
	return withWorkers(c, namespaceWorkers, nil)
}

func newServiceAccount(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx),
		informersIn(cc, coreinformers.New).ServiceAccounts(), informersIn(cc, coreinformers.New).Namespaces(),
		cc.kube, serviceaccount.DefaultServiceAccountsControllerOptions())
	return withWorkers(c, 1, err)
}

func newRootCAPublisher(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := rootcacertpublisher.NewPublisher(cc.rootCAMaps.Core().V1().ConfigMaps(),
		informersIn(cc, coreinformers.New).Namespaces(), cc.kube, cc.rootCA)
	return withWorkers(c, 1, err)
}

func newRoleAggregation(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	c := clusterroleaggregation.NewClusterRoleAggregation(informersIn(cc, rbacinformers.New).ClusterRoles(), cc.kube.RbacV1())
	return withWorkers(c, roleWorkers, nil)
}
