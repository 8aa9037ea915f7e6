package storage

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// location says where one object is stored: its key in the store, and its path in etcd's
// form, which errors contain and with which encryption authenticates the value.
type location struct {
	sqlstore.Key
	path string
}

// locate parses a registry's key ("<prefix>/<namespace>/<name>", or without a
// namespace). It refuses keys that would leave the prefix, as upstream does.
func (s *Store) locate(key string) (location, error) {
	prepared, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return location{}, err
	}
	namespace, name := splitName(prepared[len(s.prefix):])
	if namespace == "" && name != noName && strings.Contains(name, "/") {
		// This key would have the same path as another one, and encryption
		// authenticates values with the path.
		return location{}, fmt.Errorf("invalid key: %q has a name of two parts and no namespace", key)
	}
	return s.at(namespace, name), nil
}

func (s *Store) at(namespace, name string) location {
	return location{
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

// span is the range of objects of a list or a watch.
type span struct {
	// path is the prepared key. The path of a recursive span ends in a slash, and
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
		// A path below a name matches no object, because a namespace contains no slash.
		sp.namespace = strings.Trim(rest, "/")
	} else {
		sp.namespace, sp.name = splitName(rest)
	}
	return sp, nil
}

// noName is stored in place of an empty name. The API has no objects without a name,
// but storage.Interface allows them and sqlstore does not.
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
