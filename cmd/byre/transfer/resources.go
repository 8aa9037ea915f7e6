package transfer

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationinstall "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"

	"byre/apiserver/handlers"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
)

// DefaultPrefix is kube-apiserver's default of --etcd-prefix.
const DefaultPrefix = "/registry"

// resource is a resource whose types a scheme knows.
type resource struct {
	schema.GroupResource
	resources *storage.SchemeResources
	// mediaType is the media type in which a stock server stores the objects.
	mediaType string
	// codec is made with the first object, because it depends on the object's kind.
	codec *codec
}

// table finds the resource of a key.
type table struct {
	prefix   string // with a slash at its end
	byPrefix map[string]*resource
	byName   map[schema.GroupResource]*resource
}

// newTable makes the table of the version of this program, which will read the imported objects.
func newTable(prefix string) (*table, error) {
	effective := compatibility.DefaultBuildEffectiveVersion()
	t := &table{
		prefix:   "/" + strings.Trim(prefix, "/") + "/",
		byPrefix: map[string]*resource{},
		byName:   map[schema.GroupResource]*resource{},
	}
	for _, gr := range registry.Resources() {
		if err := t.add(gr, storage.BuiltinResources(effective), runtime.ContentTypeProtobuf); err != nil {
			return nil, err
		}
	}
	// A stock server's codecs of these groups have no protobuf either.
	for gr, install := range map[schema.GroupResource]func(*runtime.Scheme){
		apiextensions.Resource("customresourcedefinitions"): apiextensionsinstall.Install,
		apiregistration.Resource("apiservices"):             apiregistrationinstall.Install,
	} {
		scheme := handlers.NewScheme(install)
		resources := storage.GroupResources(scheme, handlers.NewCodecs(scheme), effective, gr)
		if err := t.add(gr, resources, runtime.ContentTypeJSON); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *table) add(gr schema.GroupResource, resources *storage.SchemeResources, mediaType string) error {
	stored := resources.StoredAs(gr)
	prefix := resources.ResourcePrefix(stored)
	if other := t.byPrefix[prefix]; other != nil && other.GroupResource != stored {
		return fmt.Errorf("%s and %s are both kept under %q", other.GroupResource, stored, prefix)
	}
	r := &resource{GroupResource: stored, resources: resources, mediaType: mediaType}
	t.byPrefix[prefix], t.byName[stored] = r, r
	return nil
}

// objectKey identifies an object in etcd and in the database.
type objectKey struct {
	sqlstore.Key
	// resource is nil for a custom resource.
	resource *resource
}

// The reasons for which keys are left out.
const (
	outsidePrefix  = "not below the prefix"
	serverAddress  = "address of a server that ran"
	allocatorRange = "range of an allocator, rebuilt at the start"
	kineHealth     = "kine's health"
	ownRecord      = "record of byre's own"
)

// leftOut returns the reason why a key below the prefix is left out; "" if it is not.
func leftOut(rest string) string {
	first, _, _ := strings.Cut(rest, "/")
	switch first {
	case "masterleases", "peerserverleases":
		return serverAddress
	case "ranges":
		return allocatorRange
	case "health":
		return kineHealth
	}
	return ""
}

// prefixOf returns what a key of etcd has before its built-in resource: the --etcd-prefix of the
// server that wrote it. For a key without one it returns the first part.
func (t *table) prefixOf(key string) string {
	parts := strings.Split(key, "/")
	for i := 1; i < len(parts); i++ {
		for n := 1; n <= 2 && i+n < len(parts); n++ {
			if t.byPrefix[strings.Join(parts[i:i+n], "/")] != nil {
				return strings.Join(parts[:i], "/")
			}
		}
	}
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// find returns the objectKey of a key of etcd, or the reason why the key is left out. If
// the key has neither, it returns an UnknownKeyError.
func (t *table) find(key string) (objectKey, string, error) {
	rest, below := strings.CutPrefix(key, t.prefix)
	if !below {
		return objectKey{}, outsidePrefix, nil
	}
	if reason := leftOut(rest); reason != "" {
		return objectKey{}, reason, nil
	}
	parts := strings.Split(rest, "/")
	for n := 1; n <= 2 && n < len(parts); n++ {
		if r := t.byPrefix[strings.Join(parts[:n], "/")]; r != nil {
			p := objectKey{Key: sqlstore.Key{Group: r.Group, Resource: r.Resource, Owner: sqlstore.BuiltIn}, resource: r}
			return p.named(key, parts[n:])
		}
	}
	// The group of a definition contains a dot, and no prefix of a built-in resource
	// does.
	if len(parts) < 3 || !strings.Contains(parts[0], ".") {
		return objectKey{}, "", &UnknownKeyError{key}
	}
	p := objectKey{Key: sqlstore.Key{Group: parts[0], Resource: parts[1], Owner: sqlstore.Custom}}
	return p.named(key, parts[2:])
}

func (p objectKey) named(key string, parts []string) (objectKey, string, error) {
	switch len(parts) {
	case 1:
		p.Name = parts[0]
	case 2:
		p.Namespace, p.Name = parts[0], parts[1]
	}
	if p.Name == "" || len(parts) == 2 && p.Namespace == "" {
		return objectKey{}, "", &UnknownKeyError{key}
	}
	return p, "", nil
}

// UnknownKeyError is a key of etcd that belongs to no resource of this version.
type UnknownKeyError struct{ Key string }

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%s belongs to no resource that this version knows", e.Key)
}

// key returns the key of etcd for a row, or the reason why the row is left out.
func (t *table) key(k sqlstore.Key) (key string, r *resource, reason string, err error) {
	name := nameIn(k)
	gr := schema.GroupResource{Group: k.Group, Resource: k.Resource}
	if k.Owner == sqlstore.Custom {
		return t.prefix + k.Group + "/" + k.Resource + "/" + name, nil, "", nil
	}
	switch {
	case k.Group == "byre":
		return "", nil, ownRecord, nil
	case k.Group == "" && k.Resource == "servicenodeportallocations":
		return "", nil, allocatorRange, nil
	case k.Group == "" && k.Resource == "apiserveripinfo":
		return "", nil, serverAddress, nil
	}
	if r = t.byName[gr]; r == nil {
		return "", nil, "", fmt.Errorf("%s is no resource that this version knows", gr)
	}
	return t.prefix + r.resources.ResourcePrefix(r.GroupResource) + "/" + name, r, "", nil
}

// nameIn is the part of a key of etcd that follows the resource: NAME or
// NAMESPACE/NAME.
func nameIn(k sqlstore.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}
