package auth

import (
	"context"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	corev1informers "k8s.io/client-go/informers/core/v1"
	rbacinformers "k8s.io/client-go/informers/rbac"
	rbacv1informers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
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
		a.nodePods = &graphInformer{SharedIndexInformer: newPodInformer(cfg.Client)}
		sources = storage.CoreInformers{SharedInformerFactory: sources, Pods: a.nodePods}
	}
	config.VersionedInformerFactory = authorizerInformers{sources, cfg.RBAC}
	a.Authorizer, a.RuleResolver, err = config.New(ctx, cfg.ServerID)
	return err
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

// graphInformer is the Pod informer that upstream builds its graph from.
type graphInformer struct {
	cache.SharedIndexInformer
	graph cache.ResourceEventHandlerRegistration
}

// AddEventHandler implements cache.SharedInformer. Upstream's constructor calls it, once.
func (i *graphInformer) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	var err error
	i.graph, err = i.SharedIndexInformer.AddEventHandler(handler)
	return i.graph, err
}

// Informer and Lister implement corev1informers.PodInformer.
func (i *graphInformer) Informer() cache.SharedIndexInformer { return i }

// Lister returns the lister of the informer's Pods.
func (i *graphInformer) Lister() corev1listers.PodLister {
	return corev1listers.NewPodLister(i.GetIndexer())
}

// HasSynced implements cache.SharedInformer: the graph has the Pods that the informer has read. It is
// built in a goroutine of its own, after the informer has synced.
func (i *graphInformer) HasSynced() bool { return i.graph != nil && i.graph.HasSynced() }

// newPodInformer returns an informer of the Pods that are assigned to a node. It keeps
// of each Pod only what the Node authorizer's graph is built from: references to
// Secrets, ConfigMaps, claims and the service account. A whole Pod takes about ten
// times the memory.
func newPodInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := corev1informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		})
	// SetTransform fails only for an informer that has been started.
	_ = informer.SetTransform(trimPod)
	return informer
}

// trimPod returns a Pod with the fields that k8s.io/kubernetes/plugin/pkg/auth/
// authorizer/node reads (Graph.AddPod and the populator's comparison).
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       pod.Namespace,
			Name:            pod.Name,
			UID:             pod.UID,
			ResourceVersion: pod.ResourceVersion,
		},
		Spec: v1.PodSpec{
			NodeName:           pod.Spec.NodeName,
			ServiceAccountName: pod.Spec.ServiceAccountName,
			ImagePullSecrets:   pod.Spec.ImagePullSecrets,
			Volumes:            pod.Spec.Volumes,
			ResourceClaims:     pod.Spec.ResourceClaims,
			InitContainers:     trimContainers(pod.Spec.InitContainers),
			Containers:         trimContainers(pod.Spec.Containers),
		},
		Status: v1.PodStatus{
			ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}
	if value, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; ok {
		trimmed.Annotations = map[string]string{v1.MirrorPodAnnotationKey: value}
	}
	for _, container := range pod.Spec.EphemeralContainers {
		trimmed.Spec.EphemeralContainers = append(trimmed.Spec.EphemeralContainers, v1.EphemeralContainer{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Env: keepReferences(container.Env),
				EnvFrom: container.EnvFrom},
		})
	}
	return trimmed, nil
}

func trimContainers(containers []v1.Container) []v1.Container {
	var trimmed []v1.Container
	for _, container := range containers {
		env := keepReferences(container.Env)
		if len(env) > 0 || len(container.EnvFrom) > 0 {
			trimmed = append(trimmed, v1.Container{Env: env, EnvFrom: container.EnvFrom})
		}
	}
	return trimmed
}

// keepReferences returns the variables that refer to another object.
func keepReferences(env []v1.EnvVar) []v1.EnvVar {
	var refs []v1.EnvVar
	for _, e := range env {
		if e.ValueFrom != nil {
			refs = append(refs, e)
		}
	}
	return refs
}
