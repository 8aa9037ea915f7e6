package auth

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// objectGetter fetches the objects that a service account token is bound to,
// first as this replica's memory has them and, if that has none, as the
// database does: a token may be used the moment after its Pod was created on
// another replica.
type objectGetter struct {
	client corev1.CoreV1Interface
}

// anyVersion asks for an object as it is in memory.
var anyVersion = metav1.GetOptions{ResourceVersion: "0"}

func fetch[T any](ctx context.Context, name string, get func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	object, err := get(ctx, name, anyVersion)
	if apierrors.IsNotFound(err) {
		return get(ctx, name, metav1.GetOptions{})
	}
	return object, err
}

func (g objectGetter) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return fetch(ctx, name, g.client.ServiceAccounts(namespace).Get)
}

func (g objectGetter) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return fetch(ctx, name, g.client.Pods(namespace).Get)
}

func (g objectGetter) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return fetch(ctx, name, g.client.Secrets(namespace).Get)
}

func (g objectGetter) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return fetch(ctx, name, g.client.Nodes().Get)
}

// secretTimeout bounds the look-up of a bootstrap token, whose interface has
// no context of the request.
const secretTimeout = 10 * time.Second

// secretGetter looks up bootstrap tokens, of which there are few, seldom used:
// not worth keeping every Secret of kube-system decoded. It is a
// SecretNamespaceLister that does not list. It reads memory alone, as upstream's
// informer does: anyone can send a token that names a Secret, and must not cause
// a question to the database by it.
type secretGetter struct {
	client corev1.SecretInterface
}

func (g secretGetter) Get(name string) (*v1.Secret, error) {
	ctx, cancel := context.WithTimeout(context.Background(), secretTimeout)
	defer cancel()
	return g.client.Get(ctx, name, anyVersion)
}

func (g secretGetter) List(labels.Selector) ([]*v1.Secret, error) {
	return nil, errors.ErrUnsupported
}
