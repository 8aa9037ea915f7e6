package loopback

import "k8s.io/apimachinery/pkg/api/meta"

// StripManagedFields leaves managed fields out of what informers keep: nothing in this process
// reads them there, and they are often the larger part of an object.
func StripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
