package builtin

import (
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
)

// storages are a resource's storage, under "", and those of its subresources
// under their names.
type storages map[string]rest.Storage

// constructor builds what serves one resource.
type constructor func(*wiring) (storages, error)

// alone adapts upstream's constructor of a resource without subresources.
func alone[S rest.Storage](build func(generic.RESTOptionsGetter) (S, error)) constructor {
	return func(w *wiring) (storages, error) {
		s, err := build(w.RESTOptions)
		if err != nil {
			return nil, err
		}
		return storages{"": s}, nil
	}
}

// withStatus adapts upstream's constructor of a resource with a status.
func withStatus[S, T rest.Storage](build func(generic.RESTOptionsGetter) (S, T, error)) constructor {
	return func(w *wiring) (storages, error) {
		s, status, err := build(w.RESTOptions)
		if err != nil {
			return nil, err
		}
		return storages{"": s, "status": status}, nil
	}
}
