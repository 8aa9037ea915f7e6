package oracle

import (
	"fmt"
	"net/http"
)

const (
	ns      = "/api/v1/namespaces/t"
	cms     = ns + "/configmaps"
	deploys = "/apis/apps/v1/namespaces/t/deployments"
)

func configMap(name, rest string) string {
	return fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q}%s}`, name, rest)
}

// reads are lists, pages and watches over a few objects.
func reads() []request {
	requests := []request{
		{name: "namespace t", method: http.MethodPost, path: "/api/v1/namespaces", body: `{"metadata":{"name":"t"}}`},
		{name: "empty list", path: cms},
		{name: "empty table", path: cms, accept: table},
		{name: "empty list in protobuf", path: cms, accept: protobuf},
		{name: "list of a namespace that is not", path: "/api/v1/namespaces/nowhere/configmaps"},
		{name: "get in a namespace that is not", path: "/api/v1/namespaces/nowhere/configmaps/x"},
	}
	for i := range 5 {
		requests = append(requests, request{
			name: fmt.Sprintf("create c%d", i), method: http.MethodPost, path: cms,
			body: fmt.Sprintf(
				`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c%d","labels":{"parity":"p%d"}},"data":{"i":"%d"}}`, i,
				i%2, i),
		})
	}
	query := func(name, query string, events int) {
		requests = append(requests, request{name: name, path: cms + "?" + query, events: events})
	}
	query("limit", "limit=2", 0)
	query("limit of all", "limit=5", 0)
	query("limit over all", "limit=500", 0)
	query("limit with a selector", "limit=1&labelSelector=parity%3Dp1", 0)
	query("selector", "labelSelector=parity%3Dp0", 0)
	query("set selector", "labelSelector=parity+in+(p0,p9),!nothing", 0)
	query("selector of nothing", "labelSelector=parity%3Dp7", 0)
	query("field selector", "fieldSelector=metadata.name%3Dc3", 0)
	query("field selector not", "fieldSelector=metadata.name!%3Dc3", 0)
	query("field selector of another namespace", "fieldSelector=metadata.namespace%3Dother", 0)
	query("resourceVersion 0", "resourceVersion=0", 0)
	query("limit at resourceVersion 0", "limit=2&resourceVersion=0", 0)
	query("limit not older than 0", "limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan", 0)
	query("limit not older than 1", "limit=2&resourceVersion=1&resourceVersionMatch=NotOlderThan", 0)
	query("resourceVersion 1", "resourceVersion=1", 0)
	query("not older than", "resourceVersion=1&resourceVersionMatch=NotOlderThan", 0)
	query("pretty", "pretty=true", 0)
	query("watch from now", "watch=true&timeoutSeconds=60", 5)
	query("watch from 0", "watch=true&timeoutSeconds=60&resourceVersion=0", 5)
	query("watch with a selector", "watch=true&timeoutSeconds=60&labelSelector=parity%3Dp1", 2)
	query("streaming list",
		"watch=true&timeoutSeconds=60&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", 6)
	query("streaming list without bookmarks",
		"watch=true&timeoutSeconds=60&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 5)
	query("no initial events", "watch=true&timeoutSeconds=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", 1)
	query("watch until its time-out", "watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dnobody", 1)
	const classes = "/apis/storage.k8s.io/v1/storageclasses"
	for _, name := range []string{"slow", "fast", "other"} {
		isDefault := name != "other"
		requests = append(requests, request{
			name: "storage class " + name, method: http.MethodPost, path: classes, inNextSecond: true,
			body: fmt.Sprintf(
				`{"kind":"StorageClass","apiVersion":"storage.k8s.io/v1","metadata":{"name":%q,"annotations":{"storageclass.kubernetes.io/is-default-class":"%t"}},"provisioner":"example.com/disk"}`, name, isDefault),
		})
	}
	return append(requests,
		request{name: "storage classes as table", path: classes, accept: table},
		request{name: "page of storage classes as table", path: classes + "?limit=2", accept: table},
		request{name: "storage class as table", path: classes + "/fast", accept: table},
		request{name: "watch of storage classes as table", path: classes + "?watch=true&timeoutSeconds=60&resourceVersion=0",
			accept: table, events: 3},
		request{name: "across namespaces", path: "/api/v1/configmaps?labelSelector=parity%3Dp0"},
		request{name: "old watch path", path: "/api/v1/watch/namespaces/t/configmaps?timeoutSeconds=60", events: 5},
		request{name: "old watch path of one", path: "/api/v1/watch/namespaces/t/configmaps/c1?timeoutSeconds=60", events: 1},
		request{name: "watch in YAML", path: cms + "?watch=true&timeoutSeconds=60", accept: "application/yaml"},
		request{name: "watch as metadata", path: cms + "?watch=true&timeoutSeconds=60", accept: metadata, events: 5},
		request{name: "get with resourceVersion", path: cms + "/c1?resourceVersion=0"},
		request{name: "table with objects", path: cms + "?includeObject=Object", accept: table},
		request{name: "table with metadata", path: cms + "?includeObject=Metadata", accept: table},
		request{name: "table in YAML", path: cms, accept: "application/yaml;as=Table;v=v1;g=meta.k8s.io"},
		request{name: "table in protobuf", path: cms,
			accept: "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json"},
		request{name: "old table", path: cms, accept: "application/json;as=Table;v=v1beta1;g=meta.k8s.io"},
		request{name: "list in CBOR", path: cms, accept: "application/cbor"},
		request{name: "list in anything", path: cms, accept: "*/*"},
		request{name: "list in whatever a browser takes", path: cms,
			accept: "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"},
		request{name: "list without Accept", path: cms, accept: "none"},
		request{name: "list, zipped", path: "/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=1",
			header: http.Header{"Accept-Encoding": {"gzip"}}},
		request{name: "HEAD", method: http.MethodHead, path: cms},
		request{name: "HEAD of one", method: http.MethodHead, path: cms + "/c1"},
		request{name: "OPTIONS", method: http.MethodOptions, path: cms},
		request{name: "scale that is not", path: deploys + "/nobody/scale"},
	)
}
