package objectstore

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// object is the place of one object: its key, and the path that errors and
// encryption know it by.
type object struct {
	sqlstore.Key
	path string
}

// place turns a registry's key ("<prefix>/<namespace>/<name>", or without a
// namespace) into a place. Keys that could leave the prefix are refused as
// upstream refuses them.
func (s *Store) place(key string) (object, error) {
	prepared, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return object{}, err
	}
	namespace, name := splitName(prepared[len(s.prefix):])
	if namespace == "" && name != noName && strings.Contains(name, "/") {
		// It would share its path with another key, and encryption authenticates values
		// with the path.
		return object{}, fmt.Errorf("invalid key: %q has a name of two parts and no namespace", key)
	}
	return s.at(namespace, name), nil
}

func (s *Store) at(namespace, name string) object {
	return object{
		Key: sqlstore.Key{
			Group:     s.cfg.GroupResource.Group,
			Resource:  s.cfg.GroupResource.Resource,
			Owner:     s.cfg.Owner,
			Namespace: namespace,
			Name:      name,
		},
		path: s.cfg.KeyPrefix + s.prefix + joinName(namespace, name),
	}
}

// span is what a list or a watch covers.
type span struct {
	// path is the prepared key; for a recursive span it ends in a slash, and
	// continue tokens are relative to it.
	path      string
	recursive bool
	namespace string // empty: all
	name      string // empty: all, when recursive
}

func (s *Store) span(key string, recursive bool) (span, error) {
	prepared, err := storage.PrepareKey(s.prefix, key, recursive)
	if err != nil {
		return span{}, err
	}
	sp := span{path: prepared, recursive: recursive}
	rest := prepared[len(s.prefix):]
	if recursive {
		// A path below a name matches no object, because no namespace has a slash.
		sp.namespace = strings.Trim(rest, "/")
	} else {
		sp.namespace, sp.name = splitName(rest)
	}
	return sp, nil
}

// noName stands for an empty name in rows. No API has objects without a name,
// but the interface allows them, and the store does not.
const noName = "/"

func splitName(rest string) (namespace, name string) {
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		namespace, name = "", rest
	}
	if name == "" {
		name = noName
	}
	return namespace, name
}

func joinName(namespace, name string) string {
	if name == noName {
		name = ""
	}
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
