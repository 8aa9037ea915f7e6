package oracle

// atStart are reads of discovery, of the objects that a new server creates, and of what it
// reports about itself.
func atStart() []request {
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	var requests []request
	for _, path := range []string{
		"/api", "/api/v1", "/apis",
		"/apis/admissionregistration.k8s.io", "/apis/admissionregistration.k8s.io/v1",
		"/apis/apiregistration.k8s.io", "/apis/apiregistration.k8s.io/v1", "/apis/apiregistration.k8s.io/v1/apiservices",
		"/apis/apps", "/apis/apps/v1",
		"/apis/authentication.k8s.io", "/apis/authentication.k8s.io/v1",
		"/apis/authorization.k8s.io", "/apis/authorization.k8s.io/v1",
		"/apis/autoscaling", "/apis/autoscaling/v1", "/apis/autoscaling/v2",
		"/apis/batch", "/apis/batch/v1",
		"/apis/certificates.k8s.io", "/apis/certificates.k8s.io/v1",
		"/apis/coordination.k8s.io", "/apis/coordination.k8s.io/v1",
		"/apis/discovery.k8s.io", "/apis/discovery.k8s.io/v1",
		"/apis/events.k8s.io", "/apis/events.k8s.io/v1",
		"/apis/flowcontrol.apiserver.k8s.io", "/apis/flowcontrol.apiserver.k8s.io/v1",
		"/apis/networking.k8s.io", "/apis/networking.k8s.io/v1",
		"/apis/node.k8s.io", "/apis/node.k8s.io/v1",
		"/apis/policy", "/apis/policy/v1",
		"/apis/rbac.authorization.k8s.io", "/apis/rbac.authorization.k8s.io/v1",
		"/apis/resource.k8s.io", "/apis/resource.k8s.io/v1",
		"/apis/scheduling.k8s.io", "/apis/scheduling.k8s.io/v1",
		"/apis/storage.k8s.io", "/apis/storage.k8s.io/v1",
		"/version", "/version/", "/healthz", "/livez", "/readyz", "/healthz/ping", "/readyz/ping", "/livez/ping",
		"/readyz/nothing",
		"/.well-known/openid-configuration", "/", "/apis/", "/api/",
		"/api/v1/namespaces", "/api/v1/namespaces/default/services", "/api/v1/namespaces/default/endpoints",
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
		"/apis/scheduling.k8s.io/v1/priorityclasses",
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
		"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
		"/apis/networking.k8s.io/v1/servicecidrs", "/apis/networking.k8s.io/v1/ipaddresses",
		"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
		"/api/v1/namespaces/kube-system/configmaps",
	} {
		// Each server is ready a moment before its flow control has read its configuration,
		// which shows in a header of each answer.
		requests = append(requests, request{name: "at start " + path, path: path, settles: true})
	}
	return append(requests,
		request{name: "aggregated discovery of /api", path: "/api", accept: aggregated},
		request{name: "aggregated discovery of /apis", path: "/apis", accept: aggregated},
		request{name: "discovery in YAML", path: "/apis/apps/v1", accept: "application/yaml"},
		request{name: "discovery in protobuf", path: "/apis/apps/v1", accept: "application/vnd.kubernetes.protobuf"},
		request{name: "discovery without Accept", path: "/apis/apps", accept: "none"},
		request{name: "OpenAPI v3 of apps", path: "/openapi/v3/apis/apps/v1"},
		request{name: "OpenAPI v3 of core", path: "/openapi/v3/api/v1"},
		request{name: "OpenAPI v3 of nothing", path: "/openapi/v3/apis/nothing/v1"},
		request{name: "OpenAPI v2 that accepts HTML", path: "/openapi/v2", accept: "text/html"},
	)
}
