package oracle

import (
	"net/http"

	"byre/e2e/servers"
)

// badPaths are requests for paths that do not exist, or with a method that a path does not
// take.
func badPaths() []request {
	var requests []request
	for _, path := range []string{
		"/widget", "/api/v2", "/api/v1/widgets", "/api/v1/widgets/x", ns + "/widgets", ns + "/configmaps/c1/status",
		ns + "/configmaps/c1/scale", ns + "/configmaps/c1/widget/part",
		"/apis/widget", "/apis/widget/v1", "/apis/widget/v1/widgets", "/apis/apps/v9", "/apis/apps/v9/deployments",
		"/apis/apps/v1/widgets", "/apis/apps/v1beta1/deployments",
		"/api/v1/namespaces/t/nodes", "/api/v1/namespaces/t/nodes/x", "/api/v1/configmaps/c1", cms + "/", cms + "/c1/",
		"/api/v1/", "//api/v1", "/api//v1", "/api/v1/../v1",
		"/api/v1/namespaces/t", "/api/v1/namespaces/t/status", "/api/v1/namespaces/t/finalize", "/api/v1/namespaces/nowhere",
		"/API/v1", "/api/V1", "/healthz/widget", "/logs", "/debug", "/swagger.json", "/swaggerapi", "/openapi", "/openapi/v4",
		"/ui", "/metrics/widget",
		"/api/v1/proxy/nodes/x", "/api/v1/watch", "/api/v1/watch/widgets",
		"/apis/apps/v1/watch/namespaces/t/deployments/x/scale",
		ns + "/pods/x/log", ns + "/pods/x/exec?command=ls", ns + "/pods/x/binding", ns + "/pods/x/eviction", ns + "/bindings",
		ns + "/services/x/proxy/", "/api/v1/nodes/x/proxy/",
		ns + "/serviceaccounts/x/token", "/apis/authentication.k8s.io/v1/tokenreviews",
		"/apis/policy/v1/namespaces/t/evictions",
	} {
		requests = append(requests, request{name: "path " + path, path: path})
	}
	for _, r := range []struct{ method, path string }{
		{"POST", cms + "/c1"}, {"PUT", cms}, {"PATCH", cms}, {"DELETE", "/api/v1"}, {"POST", "/api"}, {"PUT", "/apis/apps"},
		{"DELETE", "/apis"},
		{"PURGE", cms}, {"PURGE", cms + "/c1"}, {"TRACE", cms}, {"POST", "/healthz"}, {"DELETE", "/version"},
		{"PUT", "/version"}, {"PUT", "/openapi/v2"},
		{"POST", "/api/v1/configmaps"}, {"DELETE", "/api/v1/configmaps"}, {"GET", ns + "/bindings"},
		{"DELETE", ns + "/pods/x/binding"}, {"PUT", ns + "/pods/x/eviction"},
		{"DELETE", "/api/v1/namespaces"}, {"PUT", "/apis/authorization.k8s.io/v1/subjectaccessreviews"},
		{"DELETE", deploys + "/web/scale"}, {"POST", deploys + "/web/status"},
		{"POST", "/widget"}, {"DELETE", "/apis/widget/v1"}, {"PATCH", "/api/v1/namespaces/t/finalize"},
	} {
		requests = append(requests,
			request{name: r.method + " " + r.path, method: r.method, path: r.path, body: bodyFor(r.method)})
	}
	for _, accept := range []string{
		"text/html", "application/xml", "widget", "application/json;as=Widget;v=v1;g=meta.k8s.io",
		"application/json;as=Table;v=v7;g=meta.k8s.io",
		"application/json;as=Table;v=v1;g=widget", "application/json;stream=watch",
		"application/json;q=0.1,application/yaml;q=0.9", "application/vnd.kubernetes.protobuf;stream=watch", ";",
	} {
		requests = append(requests,
			request{name: "list that accepts " + accept, path: cms, accept: accept},
			request{name: "get that accepts " + accept, path: cms + "/c1", accept: accept},
			request{name: "watch that accepts " + accept, path: cms + "?watch=true&timeoutSeconds=60&resourceVersion=0",
				accept: accept, events: 1},
			request{name: "create that accepts " + accept, method: http.MethodPost, path: cms + "?dryRun=All", accept: accept,
				body: configMap("accept", "")},
			request{name: "an error that accepts " + accept, path: cms + "/nobody", accept: accept},
			request{name: "discovery that accepts " + accept, path: "/apis/apps/v1", accept: accept},
		)
	}
	return requests
}

func bodyFor(method string) string {
	if method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		return `{}`
	}
	return ""
}

// access are requests of users who lack the rights for them.
func access() []request {
	var requests []request
	for _, token := range []string{"none", "wrong", servers.AliceToken} {
		for _, r := range []struct{ method, path string }{
			{"GET", "/"}, {"GET", "/api"}, {"GET", "/version"}, {"GET", "/healthz"}, {"GET", "/readyz"}, {"GET", "/metrics"},
			{"GET", "/openapi/v2"}, {"GET", "/debug/pprof/"},
			{"GET", cms}, {"GET", cms + "/c1"}, {"GET", "/api/v1/nodes"}, {"GET", cms + "?watch=true"}, {"POST", cms},
			{"PUT", cms + "/c1"}, {"PATCH", cms + "/c1"}, {"DELETE", cms + "/c1"}, {"DELETE", cms},
			{"GET", "/apis/widget/v1/widgets"}, {"GET", "/widget"}, {"GET", ns + "/pods/x/log"},
			{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"},
			{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"},
			{"PURGE", "/api/v1/nodes"},
		} {
			requests = append(requests,
				request{name: r.method + " " + r.path + " as " + token, method: r.method, path: r.path, token: token,
					body: bodyFor(r.method)})
		}
	}
	as := func(name, path string, header http.Header) {
		requests = append(requests, request{name: name, path: path, header: header})
	}
	as("impersonate alice", cms, http.Header{"Impersonate-User": {"alice"}})
	as("impersonate a group without a user", cms, http.Header{"Impersonate-Group": {"system:masters"}})
	as("impersonate an admin", "/api/v1/nodes",
		http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"system:masters"}})
	as("impersonate a service account", "/apis/authentication.k8s.io/v1",
		http.Header{"Impersonate-User": {"system:serviceaccount:t:x"}})
	requests = append(requests,
		request{name: "impersonate as alice", path: cms, token: servers.AliceToken,
			header: http.Header{"Impersonate-User": {"bob"}}})
	as("a basic password", cms, http.Header{"Authorization": {"Basic YTpi"}})
	as("a bearer of nothing", cms, http.Header{"Authorization": {"Bearer "}})
	as("a request from another site", cms, http.Header{"Origin": {"https://widget.example.com"}})
	return requests
}
