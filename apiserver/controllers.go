package apiserver

import (
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"byre/apiserver/controllers"
	"byre/apiserver/controllers/controlplane"
	"byre/apiserver/process/pki"
	"byre/apiserver/storage"
)

// newControllers makes the runner of the controllers.
func (s *Server) newControllers(files pki.Files) (*controllers.Runner, error) {
	rootCA, err := os.ReadFile(s.rootCA(files))
	if err != nil {
		return nil, err
	}
	o := s.config.Options
	config := controllers.Config{
		Controllers:           o.EnabledControllers,
		ClientConfig:          s.clients.as,
		Self:                  s.clients.kube,
		RootCA:                rootCA,
		WithControllerManager: o.WithControllerManager,
		WithScheduler:         o.WithScheduler,
		Files: controllers.Files{
			CACert: files.CACert, CAKey: files.CAKey,
			ServiceAccountKey: o.Auth.Authentication.ServiceAccounts.SigningKeyFile,
		},
		NewMetadataWatch: s.watchStored,
		ServerID:         s.id,
		Shared:           s.core.database.Shared,
	}
	if s.core.fork != nil {
		config.Controllers, config.WithControllerManager, config.WithScheduler = nil, false, false
	}
	return controllers.New(config)
}

// watchStored watches the metadata of a resource's objects in their stored bytes. It
// returns nil for a resource that no server of the chain stores.
func (s *Server) watchStored(gr schema.GroupResource) *storage.MetadataWatch {
	stores := s.getter.Lookup(gr) != nil
	for _, server := range s.chain {
		stores = stores || server.Stores(gr)
	}
	if !stores {
		return nil
	}
	return s.getter.WatchMetadata(gr)
}

// newControlPlane makes the components that every server of a cluster runs, such as its
// identity Lease.
func (s *Server) newControlPlane() (*controlplane.ControlPlane, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return controlplane.New(controlplane.Config{
		ServerID:                s.id,
		Hostname:                hostname,
		PeerAddress:             s.config.Options.Peers.Address(s.config.Options.AdvertiseAddress, s.port),
		Client:                  s.clients.kube,
		Loopback:                s.clients.loopback,
		Informers:               s.clients.informers,
		APIResourceConfigSource: s.config.Options.APIResources,
		FeatureGate:             utilfeature.DefaultFeatureGate,
		LeaderElection:          s.config.Options.Election,
		Logger:                  klog.Background(),
	}), nil
}
