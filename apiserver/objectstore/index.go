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
			if m, ok := e.Memo().(*memo); ok && *m.view == s.cfg.View {
				if a := m.attrs.Load(); a != nil { // its writer was this process
					return a.fields.Get(field), true
				}
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
			a, err := s.attrsOf(context.Background(), e)
			if err != nil {
				return "", false // who reads it gets the error
			}
			return a.fields.Get(field), true
		},
	}
}
