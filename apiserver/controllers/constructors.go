package controllers

import (
	"context"
	"time"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"

	"byre/apiserver/loopback"
	"byre/apiserver/objectstore"
)

// Numbers of workers and periods are kube-controller-manager's defaults.
const (
	namespaceWorkers    = 10
	namespaceSyncPeriod = 5 * time.Minute
	roleWorkers         = 5
)

// constructor makes a controller; what it returns runs until its context ends.
type constructor func(context.Context, *controllerContext) (func(context.Context), error)

func constructors() map[string]constructor {
	return map[string]constructor{
		names.NamespaceController:                       newNamespace,
		names.GarbageCollectorController:                newGarbageCollector,
		names.ServiceAccountController:                  newServiceAccount,
		names.RootCACertificatePublisherController:      newRootCAPublisher,
		names.ClusterRoleAggregationController:          newRoleAggregation,
		names.ResourceQuotaController:                   newResourceQuota,
		names.ValidatingAdmissionPolicyStatusController: newPolicyStatus,
	}
}

// clients are the ways to reach the server that the controllers share.
type clients struct {
	config   *rest.Config
	kube     kubernetes.Interface
	metadata metadata.Interface
}

func newClients(config *rest.Config) (clients, error) {
	kube, err := kubeClient(config, "controllers")
	if err != nil {
		return clients{}, err
	}
	meta, err := metadata.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config), "controllers"))
	if err != nil {
		return clients{}, err
	}
	return clients{config: config, kube: kube, metadata: meta}, nil
}

// controllerContext is what the controllers of one term share.
type controllerContext struct {
	clients
	rootCA []byte
	// newMetadataWatch is Config.Stored.
	newMetadataWatch func(schema.GroupResource) *objectstore.MetadataWatch
	informers        informers.SharedInformerFactory
	// rootCAMaps watches nothing but the ConfigMaps that the root CA publisher
	// writes; nil without it.
	rootCAMaps informers.SharedInformerFactory
	// metadataInformers are the garbage collector's, which starts them; nil
	// without it.
	metadataInformers metadatainformer.SharedInformerFactory
	// informersStarted is closed when the informers asked for at first are running.
	informersStarted chan struct{}
}

// factories are those of whole objects.
func (t *controllerContext) factories() []informers.SharedInformerFactory {
	all := []informers.SharedInformerFactory{t.informers}
	if t.rootCAMaps != nil {
		all = append(all, t.rootCAMaps)
	}
	return all
}

func newNamespace(ctx context.Context, t *controllerContext) (func(context.Context), error) {
	c := namespace.NewNamespaceController(ctx, t.kube, t.metadata,
		t.kube.Discovery().ServerPreferredNamespacedResources,
		t.informers.Core().V1().Namespaces(), namespaceSyncPeriod, v1.FinalizerKubernetes)
	return func(ctx context.Context) { c.Run(ctx, namespaceWorkers) }, nil
}

func newServiceAccount(ctx context.Context, t *controllerContext) (func(context.Context), error) {
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx),
		t.informers.Core().V1().ServiceAccounts(), t.informers.Core().V1().Namespaces(),
		t.kube, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

func newRootCAPublisher(_ context.Context, t *controllerContext) (func(context.Context), error) {
	// The publisher looks at one name only; all other ConfigMaps of the
	// cluster stay out of memory.
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName)
	t.rootCAMaps = informers.NewSharedInformerFactoryWithOptions(t.kube, 0,
		informers.WithTransform(loopback.StripManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = only.String() }))
	c, err := rootcacertpublisher.NewPublisher(t.rootCAMaps.Core().V1().ConfigMaps(),
		t.informers.Core().V1().Namespaces(), t.kube, t.rootCA)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

func newRoleAggregation(_ context.Context, t *controllerContext) (func(context.Context), error) {
	c := clusterroleaggregation.NewClusterRoleAggregation(t.informers.Rbac().V1().ClusterRoles(), t.kube.RbacV1())
	return func(ctx context.Context) { c.Run(ctx, roleWorkers) }, nil
}
