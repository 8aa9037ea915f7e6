package storage

import (
	"context"
	"strings"

	"byre/watch"
)

// newIndex makes the index of a selectable field; the index has the field's name. The
// field is a scalar at the same path in the object's JSON, so the index reads it from
// the stored bytes. It decodes an object only where the bytes do not have the value;
// otherwise a start would decode every object of the resource for this one field.
func (s *selector) newIndex(field string) *watch.Index {
	path := strings.Split(field, ".")
	return &watch.Index{
		Name: field,
		Value: func(e *watch.Entry) (string, bool) {
			if a := s.knownAttributes(e); a != nil && a.Fields != nil { // this process wrote it
				return fieldSetOf(a).Get(field), true
			}
			return s.serializer.Scalar(e, path)
		},
		Find: func(e *watch.Entry) (string, bool) {
			a, err := s.attributes(context.Background(), e)
			if err != nil {
				return "", false // whoever reads the object gets the error
			}
			return fieldSetOf(a).Get(field), true
		},
	}
}
