package controllers

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
	token "k8s.io/kubernetes/pkg/serviceaccount"
)

// Numbers of workers and periods; kube-controller-manager's defaults.
const (
	namespaceWorkers    = 10
	namespaceSyncPeriod = 5 * time.Minute
)

// controllerContext holds what the controllers share while this server holds the lease,
// as kube-controller-manager's type of the same name.
type controllerContext struct {
	*Config
	// ControllerContext is for upstream's constructors. Its mapper, which the essential controllers
	// lack, reads discovery again every discoveryRefreshInterval.
	app.ControllerContext
	// clients are those of a controller that byre builds itself.
	clients
	// root are the clients of the informers that controllers share.
	root clients
	// rootCAMaps watches only the ConfigMaps that the root CA publisher writes.
	rootCAMaps informers.SharedInformerFactory
	// metadataInformers are the informers of the garbage collector, which starts them.
	metadataInformers metadatainformer.SharedInformerFactory
}

func newNamespace(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	// Upstream's constructor ends the process where discovery fails. The server's own client
	// is neither forbidden to read it, in whatever authorization mode, nor turned away.
	c := namespace.NewNamespaceController(ctx, cc.kube, cc.metadata,
		cc.Self.Discovery().ServerPreferredNamespacedResources,
		cc.InformerFactory.Core().V1().Namespaces(), namespaceSyncPeriod, v1.FinalizerKubernetes)
	return withWorkers(c, namespaceWorkers, nil)
}

func newRootCAPublisher(_ context.Context, cc *controllerContext) (func(context.Context), error) {
	c, err := rootcacertpublisher.NewPublisher(cc.rootCAMaps.Core().V1().ConfigMaps(),
		cc.InformerFactory.Core().V1().Namespaces(), cc.kube, cc.RootCA)
	return withWorkers(c, 1, err)
}

func newTaintEviction(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	objects := cc.InformerFactory.Core().V1()
	// In kube-controller-manager, which always runs both, the node lifecycle controller
	// adds the index that this one reads.
	if err := controller.AddPodNodeNameIndexer(objects.Pods().Informer()); err != nil {
		return nil, err
	}
	c, err := tainteviction.New(ctx, cc.kube, objects.Pods(), objects.Nodes(), names.TaintEvictionController)
	return runOf(c, err)
}

// newServiceAccountToken builds the controller that writes tokens to the Secrets that ask
// for one. It builds none without the key. Upstream's constructor needs a client builder that its
// descriptor lacks.
func newServiceAccountToken(ctx context.Context, cc *controllerContext) (func(context.Context), error) {
	key, err := keyutil.PrivateKeyFromFile(cc.Files.ServiceAccountKey)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	generator, err := token.JWTTokenGenerator(token.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}
	objects := cc.InformerFactory.Core().V1()
	c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), objects.ServiceAccounts(), objects.Secrets(), cc.kube,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: cc.RootCA})
	return withWorkers(c, cc.ComponentConfig.SAController.ConcurrentSATokenSyncs, err)
}
