package controllers

import (
	"context"

	"k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// The components whose work this server does. Their names are those of the Leases, too.
const (
	controllerManager = "kube-controller-manager"
	kubeScheduler     = "kube-scheduler"
)

// clients are the API clients of one user.
type clients struct {
	config   *rest.Config
	kube     kubernetes.Interface
	metadata metadata.Interface
}

// newClients makes clients of a component's part, whose name is the end of the user agent.
func (c *Config) newClients(component, part string, who user.Info) (clients, error) {
	config := c.ClientConfig(component, who)
	config.UserAgent += "/" + part
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	return clients{config: config, kube: kube, metadata: meta}, nil
}

// newComponentClients makes clients of a component itself, which has a user of its own.
func (c *Config) newComponentClients(component, part string) (clients, error) {
	return c.newClients(component, part,
		&user.DefaultInfo{Name: "system:" + component, Groups: []string{user.AllAuthenticated}})
}

// newControllerClients makes the clients of a controller that is a service account in
// kube-system, or kube-controller-manager itself if the name is "". It does what upstream's
// DynamicControllerClientBuilder does, without tokens.
func (c *Config) newControllerClients(ctx context.Context, root clients, name string) (clients, error) {
	if name == "" {
		return c.newComponentClients(controllerManager, names.ServiceAccountTokenController)
	}
	account, err := ensureServiceAccount(ctx, root.kube, name)
	if err != nil {
		// Neither RBAC nor admission looks at the object, and the controller may be
		// needed to repair what failed.
		if ctx.Err() == nil { // the server does not stop
			klog.FromContext(ctx).Info("Could not create the service account of a controller; it runs without", "serviceAccount",
				name, "err", err)
		}
		account = new(v1.ServiceAccount)
	}
	info := serviceaccount.ServiceAccountInfo{Namespace: metav1.NamespaceSystem, Name: name, UID: string(account.UID)}
	who := info.UserInfo()
	return c.newClients(controllerManager, who.GetName(), &user.DefaultInfo{
		Name: who.GetName(), UID: who.GetUID(), Groups: append(who.GetGroups(), user.AllAuthenticated),
	})
}

// clientBuilder makes the clients that the constructors of upstream's controllers ask for by the
// name of a service account. The methods that no constructor calls panic, because the embedded
// interface is nil.
type clientBuilder struct {
	clientbuilder.ControllerClientBuilder
	newClients func(account string) (clients, error)
}

// Config implements clientbuilder.ControllerClientBuilder.
func (b clientBuilder) Config(account string) (*rest.Config, error) {
	own, err := b.newClients(account)
	return own.config, err
}

// Client implements clientbuilder.ControllerClientBuilder.
func (b clientBuilder) Client(account string) (kubernetes.Interface, error) {
	own, err := b.newClients(account)
	return own.kube, err
}

// DiscoveryClient implements clientbuilder.ControllerClientBuilder.
func (b clientBuilder) DiscoveryClient(account string) (discovery.DiscoveryInterface, error) {
	own, err := b.newClients(account)
	if err != nil {
		return nil, err
	}
	return own.kube.Discovery(), nil
}

// ClientOrDie implements clientbuilder.ControllerClientBuilder. It fails only with a configuration
// with which the clients of the shared informers fail, too.
func (b clientBuilder) ClientOrDie(account string) kubernetes.Interface {
	client, err := b.Client(account)
	utilruntime.Must(err)
	return client
}

// ensureServiceAccount returns the service account in kube-system of that name, and creates
// it if there is none.
func ensureServiceAccount(ctx context.Context, client kubernetes.Interface, name string) (*v1.ServiceAccount, error) {
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	account, err := accounts.Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return account, err
	}
	account, err = accounts.Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return accounts.Get(ctx, name, metav1.GetOptions{})
	}
	return account, err
}
