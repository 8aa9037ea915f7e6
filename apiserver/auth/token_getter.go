package auth

import (
	"context"
	"errors"
	"time"

	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// serviceAccountTokenGetter implements serviceaccount.ServiceAccountTokenGetter: it reads
// the objects that a service account token is bound to. It reads from the watch cache
// first. If the cache has no such object, it reads from the database, because another
// replica may have created the object a moment ago.
type serviceAccountTokenGetter struct {
	client corev1.CoreV1Interface
}

// cachedRead makes a GET be answered from the watch cache.
var cachedRead = metav1.GetOptions{ResourceVersion: "0"}

func getCachedOrLive[T any](ctx context.Context, name string, get func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	object, err := get(ctx, name, cachedRead)
	if apierrors.IsNotFound(err) {
		return get(ctx, name, metav1.GetOptions{})
	}
	return object, err
}

func (g serviceAccountTokenGetter) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return getCachedOrLive(ctx, name, g.client.ServiceAccounts(namespace).Get)
}

func (g serviceAccountTokenGetter) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return getCachedOrLive(ctx, name, g.client.Pods(namespace).Get)
}

func (g serviceAccountTokenGetter) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return getCachedOrLive(ctx, name, g.client.Secrets(namespace).Get)
}

func (g serviceAccountTokenGetter) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return getCachedOrLive(ctx, name, g.client.Nodes().Get)
}

// secretTimeout bounds the read of a bootstrap token's Secret. The lister's interface
// passes no context.
const secretTimeout = 10 * time.Second

// secretNamespaceLister implements corev1listers.SecretNamespaceLister for the bootstrap
// token authenticator. Get reads the watch cache only: anyone can send a token that
// names a Secret, and such a request must not cause a database query. List is not
// supported; the authenticator does not call it. An informer would keep every Secret
// of kube-system decoded, for tokens that are few and seldom used.
type secretNamespaceLister struct {
	client corev1.SecretInterface
}

func (g secretNamespaceLister) Get(name string) (*v1.Secret, error) {
	ctx, cancel := context.WithTimeout(context.Background(), secretTimeout)
	defer cancel()
	return g.client.Get(ctx, name, cachedRead)
}

func (g secretNamespaceLister) List(labels.Selector) ([]*v1.Secret, error) {
	return nil, errors.ErrUnsupported
}
