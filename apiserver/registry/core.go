package registry

import (
	configmap "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	limitrange "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	persistentvolume "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	persistentvolumeclaim "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podtemplate "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	replicationcontroller "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	resourcequota "k8s.io/kubernetes/pkg/registry/core/resourcequota/storage"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
)

// coreResources returns the rows of the core group. They follow upstream's
// pkg/registry/core/rest.
func coreResources() []apiResource {
	return []apiResource{
		{"events", v1, ungated, events},
		{"resourcequotas", v1, ungated, withStatus(resourcequota.NewREST)},
		{"namespaces", v1, ungated, namespaces},
		{"secrets", v1, ungated, secrets},
		{"serviceaccounts", v1, ungated, serviceAccounts},
		{"configmaps", v1, ungated, withoutStatus(configmap.NewREST)},
		{"pods", v1, ungated, pods},
		{"bindings", v1, ungated, bindings},
		{"podtemplates", v1, ungated, withoutStatus(podtemplate.NewREST)},
		{"replicationcontrollers", v1, ungated, replicationControllers},
		{"services", v1, ungated, services},
		{"endpoints", v1, ungated, endpointsStorages},
		{"nodes", v1, ungated, nodes},
		{"limitranges", v1, ungated, withoutStatus(limitrange.NewREST)},
		{"persistentvolumes", v1, ungated, withStatus(persistentvolume.NewREST)},
		{"persistentvolumeclaims", v1, ungated, withStatus(persistentvolumeclaim.NewREST)},
		{"componentstatuses", v1, ungated, componentStatuses},
	}
}

// events serves the core group and events.k8s.io. Both serve the same objects.
func events(p *storageProvider) (storages, error) {
	s, err := p.events()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func secrets(p *storageProvider) (storages, error) {
	s, err := p.secrets()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

// serviceAccounts gives the token subresource the storages of pods, secrets and nodes: a
// token may be bound to an object of these.
func serviceAccounts(p *storageProvider) (storages, error) {
	pods, err := p.pods()
	if err != nil {
		return nil, err
	}
	secrets, err := p.secrets()
	if err != nil {
		return nil, err
	}
	nodes, err := p.nodes()
	if err != nil {
		return nil, err
	}
	s, err := serviceaccountstore.NewREST(p.RESTOptions, p.Tokens.Issuer, p.APIAudiences, p.Authorizer, p.Tokens.MaxExpiration,
		pods.Pod.Store, secrets.Store, nodes.Node.Store,
		p.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations(), p.Client.AdmissionregistrationV1().MutatingWebhookConfigurations(),
		p.Tokens.ExtendExpiration, p.Tokens.MaxExtendedExpiration)
	if err != nil {
		return nil, err
	}
	all := storages{"": s}
	if s.Token != nil {
		all["token"] = s.Token
	}
	return all, nil
}

func pods(p *storageProvider) (storages, error) {
	s, err := p.pods()
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

// bindings serves the resource with which pods were bound before the subresource
// pods/binding existed.
func bindings(p *storageProvider) (storages, error) {
	s, err := p.pods()
	if err != nil {
		return nil, err
	}
	return storages{"": s.LegacyBinding}, nil
}

func replicationControllers(p *storageProvider) (storages, error) {
	s, err := replicationcontroller.NewStorage(p.RESTOptions)
	if err != nil {
		return nil, err
	}
	return storages{"": s.Controller, "status": s.Status, "scale": s.Scale}, nil
}

func services(p *storageProvider) (storages, error) {
	pods, err := p.pods()
	if err != nil {
		return nil, err
	}
	s, status, proxy, err := servicestore.NewREST(p.RESTOptions, p.ips.Primary, p.ips.ByFamily, p.nodePorts.Allocator,
		p.EndpointSlices, pods.Pod, p.ProxyTransport)
	if err != nil {
		return nil, err
	}
	return storages{"": s, "status": status, "proxy": proxy}, nil
}

func endpointsStorages(p *storageProvider) (storages, error) {
	s, err := p.endpoints()
	if err != nil {
		return nil, err
	}
	return storages{"": s}, nil
}

func nodes(p *storageProvider) (storages, error) {
	s, err := p.nodes()
	if err != nil {
		return nil, err
	}
	return storages{"": s.Node, "proxy": s.Proxy, "status": s.Status}, nil
}
