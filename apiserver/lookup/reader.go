package lookup

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"byre/apiserver/objectstore"
)

// reader reads the objects of one resource. T is the Go type of its storage version.
type reader[T any] struct {
	stores    func(schema.GroupResource) *objectstore.Store
	resource  schema.GroupResource
	namespace string
}

func (r reader[T]) store() (*objectstore.Store, error) {
	if store := r.stores(r.resource); store != nil {
		return store, nil
	}
	return nil, apierrors.NewServiceUnavailable(r.resource.String() + " are not served yet")
}

func (r reader[T]) key() string {
	if r.namespace == "" {
		return "/"
	}
	return "/" + r.namespace + "/"
}

// get reads one object. With resourceVersion "0" it reads the watch cache and never the
// database. Otherwise the options have their usual meaning.
func (r reader[T]) get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	if opts.ResourceVersion == "0" {
		if err := store.Load(ctx); err != nil {
			return nil, err
		}
	}
	encoded, err := store.GetEncoded(ctx, store.Prefix()+r.key()+name, storage.GetOptions{ResourceVersion: opts.ResourceVersion}, store.Stored())
	switch {
	case storage.IsNotFound(err):
		return nil, apierrors.NewNotFound(r.resource, name)
	case err != nil:
		return nil, err
	}
	object := new(T)
	return object, r.decode(encoded, object)
}

func (r reader[T]) list(ctx context.Context, opts metav1.ListOptions) ([]T, error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	predicate := storage.Everything
	if predicate.Label, err = labels.Parse(opts.LabelSelector); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	list, err := store.ListEncoded(ctx, store.Prefix()+r.key(), storage.ListOptions{
		ResourceVersion: opts.ResourceVersion, Predicate: predicate, Recursive: true,
	}, store.Stored())
	if err != nil {
		return nil, err
	}
	var items []T
	for encoded, err := range list.Items {
		if err != nil {
			return nil, err
		}
		var object T
		if err := r.decode(encoded, &object); err != nil {
			return nil, err
		}
		items = append(items, object)
	}
	return items, nil
}

func (r reader[T]) decode(encoded objectstore.Encoded, into *T) error {
	if err := json.Unmarshal(encoded.AppendJSON(nil, true), into); err != nil {
		return fmt.Errorf("decode %s: %w", r.resource, err)
	}
	return nil
}
