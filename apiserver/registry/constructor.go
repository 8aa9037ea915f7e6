package registry

import (
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
)

// storages holds the storage of a resource under the key "", and the storages of its
// subresources under their names.
type storages map[string]rest.Storage

// constructor builds the storages of one resource.
type constructor func(*storageProvider) (storages, error)

// withoutStatus adapts upstream's constructor of a resource that has no subresources.
func withoutStatus[S rest.Storage](build func(generic.RESTOptionsGetter) (S, error)) constructor {
	return func(p *storageProvider) (storages, error) {
		s, err := build(p.RESTOptions)
		if err != nil {
			return nil, err
		}
		return storages{"": s}, nil
	}
}

// withStatus adapts upstream's constructor of a resource whose only subresource is
// status.
func withStatus[S, T rest.Storage](build func(generic.RESTOptionsGetter) (S, T, error)) constructor {
	return func(p *storageProvider) (storages, error) {
		s, status, err := build(p.RESTOptions)
		if err != nil {
			return nil, err
		}
		return storages{"": s, "status": status}, nil
	}
}
