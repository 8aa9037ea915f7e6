package apiserver

import (
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/controllers"
	"byre/apiserver/pki"
	"byre/apiserver/storage"
)

// newControllers makes the controllers; servers on a shared database take turns.
func (s *Server) newControllers(files pki.Files) (*controllers.Runner, error) {
	rootCA, err := os.ReadFile(files.CACert)
	if err != nil {
		return nil, err
	}
	config := controllers.Config{
		Controllers: s.config.controllers,
		Client:      s.Loopback,
		RootCA:      rootCA,
		Stored:      s.watchStored,
	}
	if s.core.database.Shared {
		config.Lease = &controllers.Lease{Name: "byre-controllers", Identity: s.id}
	}
	return controllers.New(config)
}

// watchStored watches the objects of a resource by their stored bytes, if it is
// one that a server of this program serves; else it returns nil.
func (s *Server) watchStored(gr schema.GroupResource) *storage.MetadataWatch {
	stores := s.getter.Lookup(gr) != nil
	for _, n := range s.neighbours {
		stores = stores || n.Stores != nil && n.Stores(gr)
	}
	if !stores {
		return nil
	}
	return s.getter.WatchMetadata(gr)
}
