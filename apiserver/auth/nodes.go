package auth

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

// nodes is an authorizer that has the Node authorizer's graph of Pods filled from
// the first question about a node on. A server without kubelets never fills it:
// to follow Pods costs a decode for each of their changes, and memory for each.
type nodes struct {
	authorizer.Authorizer
	identify nodeidentifier.NodeIdentifier
	pods     cache.SharedIndexInformer
	// wanted is closed, once, when a node has been asked about.
	wanted chan struct{}
	once   sync.Once
}

func newNodes(client kubernetes.Interface) *nodes {
	return &nodes{
		identify: nodeidentifier.NewDefaultNodeIdentifier(),
		pods:     newPodInformer(client),
		wanted:   make(chan struct{}),
	}
}

// fillTimeout is how long the first questions about nodes wait for the graph.
const fillTimeout = 10 * time.Second

// Authorize implements authorizer.Authorizer.
func (n *nodes) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if who := a.GetUser(); who != nil {
		if _, isNode := n.identify.NodeIdentity(who); isNode && !n.pods.HasSynced() {
			n.once.Do(func() { close(n.wanted) })
			ctx, cancel := context.WithTimeout(ctx, fillTimeout)
			defer cancel()
			// If it takes longer, the node is told no, and asks again.
			cache.WaitForCacheSync(ctx.Done(), n.pods.HasSynced)
		}
	}
	return n.Authorizer.Authorize(ctx, a)
}

// run fills the graph once it is wanted, and keeps it until ctx ends.
func (n *nodes) run(ctx context.Context) error {
	select {
	case <-n.wanted:
		n.pods.RunWithContext(ctx)
	case <-ctx.Done():
	}
	return nil
}

// newPodInformer follows the Pods that have a node, and keeps of each only what
// the Node authorizer's graph is made of: a Pod's secrets, config maps, claims
// and service account. A whole Pod is about ten times that.
func newPodInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := corev1informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		})
	// The only error is for an informer that has been started.
	_ = informer.SetTransform(slimPod)
	return informer
}

// slimPod returns a Pod with the fields that k8s.io/kubernetes/plugin/pkg/auth/
// authorizer/node reads (Graph.AddPod and the populator's comparison).
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	slim := &v1.Pod{
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
			InitContainers:     slimContainers(pod.Spec.InitContainers),
			Containers:         slimContainers(pod.Spec.Containers),
		},
		Status: v1.PodStatus{
			ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		},
	}
	if value, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; ok {
		slim.Annotations = map[string]string{v1.MirrorPodAnnotationKey: value}
	}
	for _, container := range pod.Spec.EphemeralContainers {
		slim.Spec.EphemeralContainers = append(slim.Spec.EphemeralContainers, v1.EphemeralContainer{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{Env: references(container.Env), EnvFrom: container.EnvFrom},
		})
	}
	return slim, nil
}

func slimContainers(containers []v1.Container) []v1.Container {
	var slim []v1.Container
	for _, container := range containers {
		env := references(container.Env)
		if len(env) > 0 || len(container.EnvFrom) > 0 {
			slim = append(slim, v1.Container{Env: env, EnvFrom: container.EnvFrom})
		}
	}
	return slim
}

// references drops the variables that are plain text.
func references(env []v1.EnvVar) []v1.EnvVar {
	var refs []v1.EnvVar
	for _, e := range env {
		if e.ValueFrom != nil {
			refs = append(refs, e)
		}
	}
	return refs
}
