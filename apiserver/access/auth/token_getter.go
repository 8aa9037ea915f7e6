package auth

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/apiserver/storage"
)

// serviceAccountTokenGetter implements serviceaccount.ServiceAccountTokenGetter: it reads
// the objects that a service account token is bound to. It reads from the watch cache
// first. If the cache has no such object, it reads from the database, because another
// replica may have created the object a moment ago.
type serviceAccountTokenGetter struct {
	reader *storage.LookupReader
}

func getCachedOrLive[T any](ctx context.Context, resource storage.LookupResource[T], namespace, name string) (*T, error) {
	object, err := resource.GetCached(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return resource.Get(ctx, namespace, name)
	}
	return object, err
}

func (g serviceAccountTokenGetter) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return getCachedOrLive(ctx, g.reader.ServiceAccounts, namespace, name)
}

func (g serviceAccountTokenGetter) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return getCachedOrLive(ctx, g.reader.Pods, namespace, name)
}

func (g serviceAccountTokenGetter) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return getCachedOrLive(ctx, g.reader.Secrets, namespace, name)
}

func (g serviceAccountTokenGetter) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return getCachedOrLive(ctx, g.reader.Nodes, metav1.NamespaceNone, name)
}

func (g serviceAccountTokenGetter) GetValidatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return getCachedOrLive(ctx, g.reader.ValidatingWebhooks, metav1.NamespaceNone, name)
}

func (g serviceAccountTokenGetter) GetMutatingWebhookConfiguration(ctx context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return getCachedOrLive(ctx, g.reader.MutatingWebhooks, metav1.NamespaceNone, name)
}
