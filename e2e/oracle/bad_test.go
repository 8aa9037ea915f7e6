package oracle

import (
	"fmt"
	"net/http"
	"strings"
)

// badBodies are bodies that cannot be decoded, or are not of the kind that the path takes.
func badBodies() []request {
	requests := []request{}
	post := func(name, contentType, body string) {
		requests = append(requests,
			request{name: name, method: http.MethodPost, path: cms, contentType: contentType, body: body})
	}
	post("half of JSON", "", `{"metadata":`)
	post("JSON of a list", "", `[]`)
	post("JSON of a string", "", `"widget"`)
	post("JSON null", "", `null`)
	post("JSON and more", "", configMap("more", "")+"{}")
	post("JSON with a wrong type", "", `{"metadata":{"name":"x"},"data":{"a":1}}`)
	post("JSON with a name that is a number", "", `{"metadata":{"name":7}}`)
	post("JSON that is deep", "",
		`{"metadata":{"name":"deep","annotations":{"a":`+strings.Repeat("[", 10001)+strings.Repeat("]", 10001)+`}}}`)
	post("JSON that is not UTF-8", "", configMap("utf8", `,"data":{"a":"`+"\xff\xfe"+`"}`))
	post("half of YAML", "application/yaml", "metadata: {name: x")
	post("YAML with tabs", "application/yaml", "metadata:\n\tname: x")
	post("YAML with an alias", "application/yaml",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: &m {name: alias}\ndata: {a: *n}")
	post("YAML", "application/yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata: {on: \"yes\"}\n")
	post("protobuf that is none", protobuf, "widget")
	post("protobuf that is cut off", protobuf, "k8s\x00\x0a\xff\xff")
	post("protobuf without an object", protobuf, "k8s\x00")
	post("CBOR", "application/cbor", "\xd9\xd9\xf7\xa0")
	post("plain text", "text/plain", "widget")
	post("JSON that calls itself a form", "application/x-www-form-urlencoded", configMap("form", ""))
	post("a content type that cannot be read", ";;;", configMap("type", ""))
	post("JSON with a charset", "application/json; charset=utf-8", configMap("charset", ""))
	post("another kind", "", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`)
	post("a kind that is not", "", `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"x"}}`)
	post("another group", "", `{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"x"}}`)
	post("another version", "", `{"apiVersion":"v9","kind":"ConfigMap","metadata":{"name":"x"}}`)
	post("a version that cannot be read", "", `{"apiVersion":"a/b/c","kind":"ConfigMap","metadata":{"name":"x"}}`)
	post("another namespace", "", `{"metadata":{"name":"x","namespace":"default"}}`)
	post("its own namespace", "", `{"metadata":{"name":"own","namespace":"t"}}`)
	post("a list", "", `{"apiVersion":"v1","kind":"ConfigMapList","items":[]}`)
	post("a body that is too large", "", configMap("large", `,"data":{"a":"`+strings.Repeat("x", 3<<20)+`"}`))
	post("an object that is too large", "", configMap("large", `,"data":{"a":"`+strings.Repeat("x", 2<<20)+`"}`))
	post("annotations that are too large", "",
		`{"metadata":{"name":"x","annotations":{"a":"`+strings.Repeat("x", 300<<10)+`"}}}`)
	post("a resourceVersion on create", "", `{"metadata":{"name":"x","resourceVersion":"5"}}`)
	post("a uid on create", "", `{"metadata":{"name":"with-uid","uid":"11111111-2222-3333-4444-555555555555"}}`)
	requests = append(requests,
		request{name: "no body", method: http.MethodPost, path: cms, contentType: "application/json"},
		request{name: "JSON patch that is long", method: http.MethodPatch, path: cms + "/c1", contentType: jsonPatch,
			body: "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10000) +
				`{"op":"test","path":"/kind","value":"ConfigMap"}]`},
		request{name: "cluster-scoped in a namespace", method: http.MethodPost, path: "/api/v1/namespaces",
			body: `{"metadata":{"name":"x","namespace":"y"}}`},
		request{name: "create in a namespace that is not", method: http.MethodPost,
			path: "/api/v1/namespaces/nowhere/configmaps", body: configMap("x", "")},
		request{name: "create a Pod of nothing", method: http.MethodPost, path: ns + "/pods",
			body: `{"metadata":{"name":"x"},"spec":{"containers":[]}}`},
		request{name: "create a Pod with many mistakes", method: http.MethodPost, path: ns + "/pods",
			body: `{"metadata":{"name":"X_","labels":{"-":"-"}},"spec":{"restartPolicy":"Widget","containers":[{"name":"UP","image":"","ports":[{"containerPort":0}],"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}]}}`},
		request{name: "create a Deployment that does not select itself", method: http.MethodPost, path: deploys,
			body: strings.Replace(deployment, `"labels":{"a":"b"}`, `"labels":{"a":"c"}`, 1)},
		request{name: "create a Service on a wrong port", method: http.MethodPost, path: ns + "/services",
			body: `{"metadata":{"name":"s"},"spec":{"ports":[{"port":70000}]}}`},
		request{name: "create a Service on a taken address", method: http.MethodPost, path: ns + "/services",
			body: `{"metadata":{"name":"s"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`},
		request{name: "create a Service on a wrong node port", method: http.MethodPost, path: ns + "/services",
			body: `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":80}]}}`},
		request{name: "create a CronJob at no time", method: http.MethodPost, path: "/apis/batch/v1/namespaces/t/cronjobs",
			body: `{"metadata":{"name":"x"},"spec":{"schedule":"widget","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`},
		request{name: "create a quantity that is none", method: http.MethodPost, path: "/api/v1/namespaces/t/resourcequotas",
			body: `{"metadata":{"name":"x"},"spec":{"hard":{"pods":"widget"}}}`},
		request{name: "create a ClusterRoleBinding to nothing", method: http.MethodPost,
			path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
			body: `{"metadata":{"name":"x"},"roleRef":{"kind":"Widget","name":"x"}}`},
	)
	return append(requests, fieldValidation()...)
}

// fieldValidation sends unknown and duplicate fields, under each way to treat them.
func fieldValidation() []request {
	var requests []request
	for _, mode := range []string{"", "Ignore", "Warn", "Strict", "Widget"} {
		add := func(name, method, path, contentType, body string) {
			requests = append(requests, request{
				name: name + " under fieldValidation=" + mode, method: method,
				path: path + "?dryRun=All&fieldManager=v&fieldValidation=" + mode, contentType: contentType, body: body,
			})
		}
		add("an unknown field", http.MethodPost, deploys, "",
			strings.Replace(deployment, `"spec":{"selector"`, `"spec":{"widget":1,"selector"`, 1))
		add("two unknown fields", http.MethodPost, deploys, "",
			strings.Replace(strings.Replace(deployment, `"spec":{"selector"`, `"spec":{"widget":1,"selector"`, 1), `"name":"c"`,
				`"name":"c","gadget":2`, 1))
		add("a duplicate field", http.MethodPost, deploys, "",
			strings.Replace(deployment, `"image":"i"`, `"image":"i","image":"j"`, 1))
		add("an unknown field in YAML", http.MethodPost, cms, "application/yaml", "metadata: {name: x}\nwidget: 1\n")
		add("a duplicate field in YAML", http.MethodPost, cms, "application/yaml",
			"metadata: {name: x}\ndata: {a: x, a: y}\n")
		add("a field in the wrong case", http.MethodPost, cms, "", `{"metadata":{"name":"x"},"Data":{"a":"b"}}`)
		add("an unknown field by PUT", http.MethodPut, cms+"/c1", "", `{"metadata":{"name":"c1"},"widget":1}`)
		add("an unknown field by merge patch", http.MethodPatch, cms+"/c1", mergePatch, `{"widget":1}`)
		add("a duplicate field by merge patch", http.MethodPatch, cms+"/c1", mergePatch,
			`{"data":{"a":"1"},"data":{"a":"2"}}`)
		add("an unknown field by strategic patch", http.MethodPatch, cms+"/c1", strategic, `{"widget":1}`)
		add("an unknown field by JSON patch", http.MethodPatch, cms+"/c1", jsonPatch,
			`[{"op":"add","path":"/widget","value":1}]`)
		add("a duplicate key in a JSON patch", http.MethodPatch, cms+"/c1", jsonPatch,
			`[{"op":"add","op":"add","path":"/data","value":{}}]`)
		add("an unknown field by apply", http.MethodPatch, cms+"/c1", apply,
			`{"apiVersion":"v1","kind":"ConfigMap","widget":1}`)
		add("a duplicate field by apply", http.MethodPatch, cms+"/c1", apply,
			"apiVersion: v1\nkind: ConfigMap\ndata: {z: x, z: y}\n")
	}
	return requests
}

// badNames are names that no object may have, in bodies and in paths.
func badNames() []request {
	var requests []request
	for _, name := range []string{"", "Widget", "-widget", "widget-", "a/b", "a%b", ".", "..", "a..b", "a'b", `a\"b`,
		"a b", "a\\u0000b", "ä", strings.Repeat("a", 253), strings.Repeat("a", 254), "a;DROP TABLE objects"} {
		short := name[:min(len(name), 20)]
		requests = append(requests,
			request{name: fmt.Sprintf("create %q (%d)", short, len(name)), method: http.MethodPost, path: cms + "?dryRun=All",
				body: `{"metadata":{"name":"` + name + `"}}`},
			request{name: fmt.Sprintf("create a namespace %q (%d)", short, len(name)), method: http.MethodPost,
				path: "/api/v1/namespaces?dryRun=All", body: `{"metadata":{"name":"` + name + `"}}`},
			request{name: fmt.Sprintf("create a role %q (%d)", short, len(name)), method: http.MethodPost,
				path: "/apis/rbac.authorization.k8s.io/v1/namespaces/t/roles?dryRun=All",
				body: `{"metadata":{"name":"` + name + `"}}`},
		)
	}
	for _, escaped := range []string{"a%2Fb", "a%25b", "a%252Fb", ".", "..", "%2e%2e", "a..b", "a'b", "a%27b", "a%22b",
		"a%00b", "%00", "%ff%fe", "a%20b", "a+b", "a%3Bb", "a%0Ab", "%C3%A4", strings.Repeat("a", 2000)} {
		short := escaped[:min(len(escaped), 20)]
		requests = append(requests,
			request{name: "get " + short, path: cms + "/" + escaped},
			request{name: "delete " + short, method: http.MethodDelete, path: cms + "/" + escaped + "?dryRun=All"},
			request{name: "replace " + short, method: http.MethodPut, path: cms + "/" + escaped + "?dryRun=All",
				body: configMap("x", "")},
			request{name: "apply " + short, method: http.MethodPatch, path: cms + "/" + escaped + "?dryRun=All&fieldManager=x",
				contentType: apply, body: `{"apiVersion":"v1","kind":"ConfigMap"}`},
			request{name: "list in namespace " + short, path: "/api/v1/namespaces/" + escaped + "/configmaps"},
			request{name: "create in namespace " + short, method: http.MethodPost,
				path: "/api/v1/namespaces/" + escaped + "/configmaps?dryRun=All", body: configMap("x", "")},
		)
	}
	return requests
}
