package storage

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// keys are the keys of the objects of one resource.
type keys struct {
	groupResource schema.GroupResource
	owner         sqlstore.Owner
	// prefix is Config.ResourcePrefix with a slash at its end.
	prefix string
}

// resource identifies the resource to the feed.
func (k *keys) resource() sqlstore.Resource {
	return sqlstore.Resource{Group: k.groupResource.Group, Resource: k.groupResource.Resource, Owner: k.owner}
}

// pathOf is the path of a key of the resource.
func (k *keys) pathOf(key sqlstore.Key) string {
	return DefaultKeyPrefix + k.prefix + joinName(key.Namespace, key.Name)
}

// location says where one object is stored: its key in the store, and its path in etcd's
// form, which errors contain and with which encryption authenticates the value.
type location struct {
	sqlstore.Key
	path string
}

// locate parses a registry's key ("<prefix>/<namespace>/<name>", or without a
// namespace). It refuses keys that would leave the prefix, as upstream does.
func (k *keys) locate(key string) (location, error) {
	prepared, err := storage.PrepareKey(k.prefix, key, false)
	if err != nil {
		return location{}, err
	}
	namespace, name := splitName(prepared[len(k.prefix):])
	if namespace == "" && name != noName && strings.Contains(name, "/") {
		// This key would have the same path as another one, and encryption
		// authenticates values with the path.
		return location{}, fmt.Errorf("invalid key: %q has a name of two parts and no namespace", key)
	}
	return k.at(namespace, name), nil
}

func (k *keys) at(namespace, name string) location {
	key := sqlstore.Key{Group: k.groupResource.Group, Resource: k.groupResource.Resource, Owner: k.owner, Namespace: namespace, Name: name}
	return location{key, k.pathOf(key)}
}

// keyRange is the range of objects of a list or a watch.
type keyRange struct {
	// path is the prepared key. The path of a recursive range ends in a slash, and
	// continue tokens are relative to it.
	path      string
	recursive bool
	namespace string // empty: all
	name      string // empty: all, when recursive
}

func (k *keys) keyRange(key string, recursive bool) (keyRange, error) {
	prepared, err := storage.PrepareKey(k.prefix, key, recursive)
	if err != nil {
		return keyRange{}, err
	}
	r := keyRange{path: prepared, recursive: recursive}
	rest := prepared[len(k.prefix):]
	if recursive {
		// A path below a name matches no object, because a namespace contains no slash.
		r.namespace = strings.Trim(rest, "/")
	} else {
		r.namespace, r.name = splitName(rest)
	}
	return r, nil
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
