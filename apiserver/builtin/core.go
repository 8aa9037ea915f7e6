package builtin

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	configmap "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	limitrange "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	persistentvolume "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	persistentvolumeclaim "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podtemplate "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	replicationcontroller "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	resourcequota "k8s.io/kubernetes/pkg/registry/core/resourcequota/storage"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
)

// coreTable is the core group's part of the table; the wiring is that of
// upstream's pkg/registry/core/rest.
func coreTable() []resource {
	v1 := []string{corev1.SchemeGroupVersion.Version}
	return []resource{
		{"events", v1, on, events},
		{"resourcequotas", v1, on, withStatus(resourcequota.NewREST)},
		{"namespaces", v1, on, namespaces},
		{"secrets", v1, on, secrets},
		{"serviceaccounts", v1, on, serviceAccounts},
		{"configmaps", v1, on, alone(configmap.NewREST)},
		{"pods", v1, on, pods},
		{"bindings", v1, on, bindings},
		{"podtemplates", v1, on, alone(podtemplate.NewREST)},
		{"replicationcontrollers", v1, on, replicationControllers},
		{"services", v1, on, services},
		{"endpoints", v1, on, endpointsResource},
		{"nodes", v1, on, nodes},
		{"limitranges", v1, on, alone(limitrange.NewREST)},
		{"persistentvolumes", v1, on, withStatus(persistentvolume.NewREST)},
		{"persistentvolumeclaims", v1, on, withStatus(persistentvolumeclaim.NewREST)},
		{"componentstatuses", v1, on, componentStatuses},
	}
}

// events serves both groups that have events: they are the same objects.
func events(w *wiring) (storages, error) {
	s, err := w.events()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func namespaces(w *wiring) (storages, error) {
	s, status, finalize, err := namespacestore.NewREST(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": shownNamespaces{s}, "status": status, "finalize": finalize}, nil
}

// shownNamespaces shows the registry that upstream's storage of namespaces, alone of
// all, keeps in a field of its own. What it reads is what that reads.
type shownNamespaces struct{ *namespacestore.REST }

func (n shownNamespaces) Registry() *genericregistry.Store {
	field := reflect.ValueOf(n.REST).Elem().FieldByName("store")
	return (*genericregistry.Store)(field.UnsafePointer())
}

func secrets(w *wiring) (storages, error) {
	s, err := w.secrets()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

// serviceAccounts needs pods, secrets and nodes to bind a token to one of them.
func serviceAccounts(w *wiring) (storages, error) {
	pods, err := w.pods()
	if err != nil {
		return nil, err
	}
	secrets, err := w.secrets()
	if err != nil {
		return nil, err
	}
	nodes, err := w.nodes()
	if err != nil {
		return nil, err
	}
	s, err := serviceaccountstore.NewREST(w.RESTOptions, w.Tokens.Issuer, w.APIAudiences, w.Tokens.MaxExpiration,
		pods.Pod.Store, secrets.Store, nodes.Node.Store, w.Tokens.ExtendExpiration, w.Tokens.MaxExtendedExpiration)
	if err != nil {
		return nil, err
	}
	all := storages{"": s}
	if s.Token != nil {
		all["token"] = s.Token
	}
	return all, nil
}

func pods(w *wiring) (storages, error) {
	s, err := w.pods()
	if err != nil {
		return nil, err
	}
	return storages{
		"":                    s.Pod,
		"attach":              s.Attach,
		"binding":             s.Binding,
		"ephemeralcontainers": s.EphemeralContainers,
		"eviction":            s.Eviction,
		"exec":                s.Exec,
		"log":                 s.Log,
		"portforward":         s.PortForward,
		"proxy":               s.Proxy,
		"resize":              s.Resize,
		"status":              s.Status,
	}, nil
}

// bindings is how pods were bound before they had the subresource.
func bindings(w *wiring) (storages, error) {
	s, err := w.pods()
	if err != nil {
		return nil, err
	}
	return storages{"": s.LegacyBinding}, nil
}

func replicationControllers(w *wiring) (storages, error) {
	s, err := replicationcontroller.NewStorage(w.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.Controller, "status": s.Status, "scale": s.Scale}, nil
}

func services(w *wiring) (storages, error) {
	endpoints, err := w.endpoints()
	if err != nil {
		return nil, err
	}
	pods, err := w.pods()
	if err != nil {
		return nil, err
	}
	s, status, proxy, err := servicestore.NewREST(w.RESTOptions, w.ips.Primary, w.ips.ByFamily, w.nodePorts.Allocator,
		endpoints, pods.Pod, w.ProxyTransport)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status, "proxy": proxy}, nil
}

func endpointsResource(w *wiring) (storages, error) {
	s, err := w.endpoints()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func nodes(w *wiring) (storages, error) {
	s, err := w.nodes()
	if err != nil {
		return nil, err
	}
	return storages{"": s.Node, "proxy": s.Proxy, "status": s.Status}, nil
}
