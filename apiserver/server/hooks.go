package server

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"

	"byre/apiserver/bootstrap"
	"byre/apiserver/process"
)

// hooks are the post-start hooks: what every server of a cluster does once it serves.
type hooks struct {
	informers    informers.SharedInformerFactory
	bootstrap    *bootstrap.Bootstrap
	keys         *keyRecorder
	controlplane *controllers.ControlPlane
}

func newHooks(o Completed, n network, s *storageBackend, certs *certificates, c clients, a *auth.Auth, trust *auth.TrustedKeys, ready *process.Signal) (*hooks, error) {
	objects, err := newBootstrap(o, n, s, c, a, ready)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return &hooks{
		informers: c.informers,
		bootstrap: objects,
		keys:      newKeyRecorder(trust, s, o.Store.Adopt, a.ClientCA),
		controlplane: controllers.NewControlPlane(controllers.ControlPlaneConfig{
			ServerID:                n.id,
			Hostname:                hostname,
			PeerAddress:             o.Peers.Address(o.AdvertiseAddress, n.port),
			Hosts:                   certs.hosts,
			Client:                  c.kube,
			Loopback:                c.loopback,
			Informers:               c.informers,
			APIResourceConfigSource: o.APIResources,
			FeatureGate:             utilfeature.DefaultFeatureGate,
			LeaderElection:          o.Election,
			Logger:                  klog.Background(),
		}),
	}, nil
}

// newBootstrap makes the component that writes the objects that every cluster has, such
// as the system namespaces and the Service "kubernetes".
func newBootstrap(o Completed, n network, s *storageBackend, c clients, a *auth.Auth, ready *process.Signal) (*bootstrap.Bootstrap, error) {
	port, err := strconv.Atoi(n.port)
	if err != nil {
		return nil, err
	}
	config := bootstrap.Config{
		Client:                  c.kube,
		Informers:               c.informers,
		APIResourceConfigSource: o.APIResources,
		ServiceCIDRs:            []net.IPNet{o.ServiceIPRange},
		Service: bootstrap.Service{
			ClusterIP:        o.ServiceIP,
			AdvertiseAddress: o.EndpointAddress(),
			AdvertisePort:    port,
			NodePort:         o.Cluster.ServiceNodePort,
		},
		Ready:                 ready.Signaled(),
		ClusterAuthentication: newClusterAuthentication(a, c.kube),
		EpochEnded:            s.Feed.EpochEnded,
		Logger:                klog.Background(),
	}
	if o.SecondaryServiceIPRange.IP != nil {
		config.ServiceCIDRs = append(config.ServiceCIDRs, o.SecondaryServiceIPRange)
	}
	if s.database.Shared {
		if config.Leases, err = bootstrap.NewStoredLeases(s.getter); err != nil {
			return nil, err
		}
	}
	return bootstrap.New(config)
}

// newClusterAuthentication makes the controller that writes what an aggregated API server needs to
// authenticate the requests that this server proxies to it into the ConfigMap
// extension-apiserver-authentication, and again when a CA file has been reloaded. The caller has not
// called a.Run: the CAs have no lock for their listeners.
func newClusterAuthentication(a *auth.Auth, client kubernetes.Interface) *clusterauthenticationtrust.Controller {
	info := clusterauthenticationtrust.ClusterAuthenticationInfo{ClientCA: a.ClientCA}
	if h := a.RequestHeader; h != nil {
		info.RequestHeaderCA = h.CAContentProvider
		info.RequestHeaderUsernameHeaders = h.UsernameHeaders
		info.RequestHeaderUIDHeaders = h.UIDHeaders
		info.RequestHeaderGroupHeaders = h.GroupHeaders
		info.RequestHeaderExtraHeaderPrefixes = h.ExtraHeaderPrefixes
		info.RequestHeaderAllowedNames = h.AllowedClientNames
	}
	controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(info, client)
	a.ClientCAs().AddListener(controller)
	return controller
}

// informersPatience bounds how long runBootstrap waits for the informers.
const informersPatience = time.Second

// runBootstrap creates the bootstrap objects. It waits for the informers first, since an
// admission plugin that a write finds without its objects looks for them only every 0.1 s.
func (h *hooks) runBootstrap(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, informersPatience)
	h.informers.WaitForCacheSyncWithContext(waiting)
	cancel()
	return h.bootstrap.Run(ctx)
}
