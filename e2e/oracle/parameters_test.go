package oracle

import (
	"net/http"
	"net/url"
	"strings"
)

// badReadParameters are lists and watches with invalid parameters. A watch that is accepted
// and has no events lasts until its time-out.
func badReadParameters() []request {
	var requests []request
	list := func(query string) {
		requests = append(requests, request{name: "list with " + query, path: cms + "?" + query})
		requests = append(requests,
			request{name: "watch with " + query, path: cms + "?watch=true&timeoutSeconds=5&" + query, events: 1})
	}
	for _, selector := range []string{"a b", "a in", "a in (", "=", "a=b=c", "a=-", "a/b/c=d", "a in ()", "!", ",",
		"a>widget"} {
		list("labelSelector=" + url.QueryEscape(selector))
	}
	for _, selector := range []string{"widget=1", "metadata.name", "metadata.name>1", "=", "metadata.name=a=b",
		"metadata.name=A_B", `metadata.name=\q`, ","} {
		list("fieldSelector=" + url.QueryEscape(selector))
	}
	for _, query := range []string{
		"limit=widget", "limit=-1", "limit=99999999999999999999", "continue=widget", "continue=e30",
		"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MX0",
		"continue=widget&resourceVersion=5", "resourceVersion=widget", "resourceVersion=-1",
		"resourceVersion=1&resourceVersionMatch=Widget",
		"resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true", "sendInitialEvents=widget",
		"sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
		"allowWatchBookmarks=widget", "timeoutSeconds=widget", "widget=1", "shardSelector=widget", "a;b=c", "%zz=1",
		"limit=1&limit=2",
	} {
		list(query)
	}
	return append(requests,
		request{name: "list at a revision from the future", path: cms + "?resourceVersion=99999999"},
		request{name: "get at a revision from the future", path: cms + "/c1?resourceVersion=99999999"},
		request{name: "get at no revision", path: cms + "/c1?resourceVersion=widget"},
		request{name: "list exactly at a revision from the future",
			path: cms + "?resourceVersion=99999999&resourceVersionMatch=Exact"},
		request{name: "watch from a revision from the future",
			path: cms + "?watch=true&timeoutSeconds=5&resourceVersion=99999999", events: 1},
		request{name: "table with a wrong includeObject", path: cms + "?includeObject=Widget", accept: table},
		request{name: "a header that is long", path: cms, header: http.Header{"X-Widget": {strings.Repeat("a", 100<<10)}}},
	)
}

// badWriteParameters are writes with invalid parameters.
func badWriteParameters() []request {
	var requests []request
	for _, query := range []string{"dryRun=Widget", "dryRun=", "dryRun=All&dryRun=All", "fieldManager=%00",
		"fieldManager=" + strings.Repeat("a", 129), "pretty=widget"} {
		requests = append(requests,
			request{name: "create with " + query[:min(len(query), 40)], method: http.MethodPost, path: cms + "?" + query,
				body: `{"metadata":{"generateName":"generated-"}}`},
			request{name: "patch with " + query[:min(len(query), 40)], method: http.MethodPatch, path: cms + "/c1?" + query,
				contentType: mergePatch, body: `{}`},
		)
	}
	return append(requests,
		request{name: "delete a collection by a bad selector", method: http.MethodDelete, path: cms + "?labelSelector=a+b"},
		request{name: "delete a collection by a field that is not", method: http.MethodDelete,
			path: cms + "?fieldSelector=widget%3D1"},
	)
}
