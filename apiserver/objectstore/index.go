package objectstore

import (
	"context"
	"strings"

	"byre/watch"
)

// newIndex makes the index of a selectable field, under the field's name. After
// a start every object would be decoded for this one field, which is a scalar at
// the same path in its JSON: only what that does not tell is decoded.
func (s *Store) newIndex(field string) *watch.Index {
	path := strings.Split(field, ".")
	return &watch.Index{
		Name: field,
		Value: func(e *watch.Entry) (string, bool) {
			if a := s.knownAttributes(e); a != nil && a.Fields != nil { // its writer was this process
				return fieldSetOf(a).Get(field), true
			}
			if !s.sealer.plain {
				return "", false
			}
			value, there, ok := scalarAt(e.Value, path)
			// What is not there may be there by default, if another program or
			// another schema has written it.
			return value, ok && (there || e.Form == s.cfg.Form)
		},
		Find: func(e *watch.Entry) (string, bool) {
			a, err := s.attributes(context.Background(), e)
			if err != nil {
				return "", false // who reads it gets the error
			}
			return fieldSetOf(a).Get(field), true
		},
	}
}
