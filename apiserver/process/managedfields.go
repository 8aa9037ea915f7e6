package process

import "k8s.io/apimachinery/pkg/api/meta"

// StripManagedFields is an informer transform that removes the managed fields. No reader of
// an informer's cache in this process uses them, and they are often more than half of an
// object.
func StripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
