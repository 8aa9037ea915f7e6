package server

import (
	"cmp"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/controllers"
	"byre/apiserver/process"

	"byre/apiserver/storage"
)

// newControllers makes the runner of the controllers.
func newControllers(o Completed, n network, s *storageBackend, certs *certificates, c clients, others *chain) (*controllers.Runner, error) {
	files := certs.files
	rootCA, err := os.ReadFile(cmp.Or(o.Serving.RootCAFile, files.CACert)) // the CA that clients verify the server by
	if err != nil {
		return nil, err
	}
	config := controllers.Config{
		Controllers:           o.EnabledControllers,
		ClientConfig:          c.as,
		Self:                  c.kube,
		RootCA:                rootCA,
		WithControllerManager: o.WithControllerManager,
		WithScheduler:         o.WithScheduler,
		Files: controllers.Files{
			CACert: files.CACert, CAKey: files.CAKey,
			ServiceAccountKey: o.Auth.Authentication.SigningKeyFile,
		},
		NewMetadataWatch: func(gr schema.GroupResource) *storage.MetadataWatch { return watchStored(s.getter, others.servers, gr) },
		ServerID:         n.id,
		Hosts:            certs.hosts,
		Shared:           s.database.Shared,
		EpochEnded:       s.Feed.EpochEnded,
	}
	if s.fork != nil {
		config.Controllers, config.WithControllerManager, config.WithScheduler = nil, false, false
	}
	return controllers.New(config)
}

// watchStored watches the metadata of a resource's objects in their stored bytes. It
// returns nil for a resource that no server of the chain stores.
func watchStored(getter *storage.RESTOptionsGetter, others []process.ChainServer, gr schema.GroupResource) *storage.MetadataWatch {
	stores := getter.Lookup(gr) != nil
	for _, server := range others {
		stores = stores || server.Stores(gr)
	}
	if !stores {
		return nil
	}
	return getter.WatchMetadata(gr)
}
