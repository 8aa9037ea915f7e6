package server

import (
	"errors"
	"net/http"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/process"
	"byre/apiserver/process/pki"
	"byre/apiserver/storage"
	"byre/apiserver/storage/changes"
)

// optionalParts returns the optional parts of every server, with the defaults of their flags. o are the
// options that they become a part of. Nothing else in this package names them.
func optionalParts(o *Options) []Feature {
	return []Feature{
		newHistoryFeature(),
		newSQLFeature(),
		newConsoleFeature(),
		newReplicationFeature(&o.Store),
		newBackupFeature(),
		newControllersFeature(),
	}
}

// Feature is an optional part of the server.
type Feature struct {
	// AddFlags, unless nil, adds its flags to the sections that it chooses.
	AddFlags func(section func(name string) *pflag.FlagSet)
	// Validate, unless nil, returns one error for each invalid flag. o are the other options.
	Validate func(o *Options) []error
	// New makes what a server gets, which is zero if the flags turn the feature off. It starts nothing.
	New func(b *Base) (Part, error)
}

// Base is a server as its features find it: it has storage and access, and no API yet. A feature that is
// called later may call the functions only while the server runs.
type Base struct {
	Options Completed
	// ID names this server among the servers of a cluster.
	ID       string
	Storage  storage.Backend
	Database Database
	// IsFork says that the objects describe another cluster, on which the server must not act.
	IsFork bool
	// Changes has the changes of all resources, and asks the authorizer who may list them.
	Changes   *changes.Log
	Admission admission.Interface
	// Files are the certificates and keys that the server issues itself.
	Files pki.Files
	// Client and Loopback send requests as the server itself, and As returns the configuration of clients
	// that send them as another user, with the user agent of a Kubernetes component.
	Client   kubernetes.Interface
	Loopback *rest.Config
	As       func(component string, who user.Info) *rest.Config
	// Hosts returns the names and addresses under which clients find the server now. HasName reports whether a
	// certificate that it serves with has a name.
	Hosts   func() ([]string, error)
	HasName func(host string) bool
	// WatchMetadata watches the metadata of the objects of a resource. It returns nil for a resource that no
	// server of the chain stores.
	WatchMetadata func(schema.GroupResource) *storage.MetadataWatch
}

// Part is what a feature adds to a server. Fields that are nil add nothing.
type Part struct {
	// Groups are API groups, with the models of their types in Definitions.
	Groups      []handlers.Group
	Definitions openapicommon.GetOpenAPIDefinitions
	// Complete is called once all servers of the chain have been made.
	Complete func(Chain) error
	// Handle adds paths. api serves the groups.
	Handle func(paths *mux.PathRecorderMux, api http.Handler)
	// Wrap returns a handler that gets the requests of a listener before next, whose filters authenticate
	// them. Loopback requests don't pass it.
	Wrap func(next http.Handler) (http.Handler, error)
	// Expensive are resources to create an object of which takes as many seats of priority and fairness as the
	// largest list.
	Expensive []schema.GroupResource
	// Checks have paths of their own below /readyz, which does not run them.
	Checks []process.HealthChecker
	// ComponentStatuses are the component statuses, controller-manager and scheduler, whose work the feature does.
	ComponentStatuses []string
	// Handling are components that the handling of requests relies on. Work runs once the server is ready.
	Handling, Work []process.Component
	// Member runs once the server is ready too. Where other servers use the database, a shutdown stops it before
	// requests are refused, so that another server can take its place.
	Member []process.Component
}

// Chain is the delegation chain.
type Chain struct {
	// Kubernetes are the groups of Kubernetes, Lookup finds the stores of their resources, and Schemas makes the
	// schemas of their types.
	Kubernetes []handlers.Group
	Lookup     func(schema.GroupResource) *storage.Store
	Schemas    func() (map[string]*spec.Schema, error)
	// Servers are those other than the built-in API, the last delegate first.
	Servers []process.ChainServer
}

// newParts makes the parts of all features, and joins them.
func newParts(b *Base) (Part, error) {
	all := Part{
		Definitions: generated.GetOpenAPIDefinitions,
		Complete:    func(Chain) error { return nil },
		Handle:      func(*mux.PathRecorderMux, http.Handler) {},
		Wrap:        func(next http.Handler) (http.Handler, error) { return next, nil },
	}
	for _, f := range b.Options.features {
		part, err := f.New(b)
		if err != nil {
			return Part{}, err
		}
		all.add(part)
	}
	return all, nil
}

// add adds a part to those that were added before, which have all functions.
func (all *Part) add(p Part) {
	all.Groups = append(all.Groups, p.Groups...)
	all.Expensive = append(all.Expensive, p.Expensive...)
	all.Checks = append(all.Checks, p.Checks...)
	all.ComponentStatuses = append(all.ComponentStatuses, p.ComponentStatuses...)
	all.Handling = append(all.Handling, p.Handling...)
	all.Work = append(all.Work, p.Work...)
	all.Member = append(all.Member, p.Member...)
	if p.Definitions != nil {
		all.Definitions = documents.Join(all.Definitions, p.Definitions)
	}
	before := *all
	if p.Complete != nil {
		all.Complete = func(c Chain) error { return errors.Join(before.Complete(c), p.Complete(c)) }
	}
	if p.Handle != nil {
		all.Handle = func(paths *mux.PathRecorderMux, api http.Handler) {
			before.Handle(paths, api)
			p.Handle(paths, api)
		}
	}
	if p.Wrap != nil {
		all.Wrap = func(next http.Handler) (http.Handler, error) {
			next, err := before.Wrap(next)
			if err != nil {
				return nil, err
			}
			return p.Wrap(next)
		}
	}
}
