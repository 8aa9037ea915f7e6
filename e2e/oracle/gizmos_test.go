package oracle

import (
	"net/http"
	"strings"
)

// gizmos are all kinds of requests that a client can send for custom resources.
func gizmos() []request {
	create := func(name, spec string) request {
		return request{name: "gizmo: create " + name, method: http.MethodPost, path: gizmosPath, body: gizmo(name, spec)}
	}
	refused := func(name, spec string) request {
		return request{name: "gizmo: create with " + name, method: http.MethodPost, path: gizmosPath,
			body: gizmo("refused", spec), normalize: normalizeCauses}
	}
	get := func(name, query, accept string) request {
		return request{name: "gizmo: " + name, path: gizmosPath + query, accept: accept}
	}
	patch := func(name, path, contentType, body string) request {
		return request{name: "gizmo: " + name, method: http.MethodPatch, path: gizmosPath + path, contentType: contentType,
			body: body}
	}
	put := func(name, path, body string) request {
		return request{name: "gizmo: " + name, method: http.MethodPut, path: gizmosPath + path, body: body}
	}
	const parts = `"parts":[{"name":"a","weight":1},{"name":"a","kind":"nut"},{"name":"b"}]`
	return []request{
		create("a",
			`"color":"red","unknown":1,"note":null,"replicas":3,`+parts+
				`,"tags":["x","y"],"free":{"any":{"thing":[1,2]}},"place":{"x":1.5}`),
		create("green", `"color":"green","serial":"12","until":"2030-01-01T00:00:00Z","labels":{"a":"b"}`),
		create("blue",
			`"color":"blue","port":80,"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","creationTimestamp":null,"unknown":1},"spec":{"any":1}}`),
		create("minus",
			`"color":"red","free":{"zero":-0.0,"exponent":-0e0,"small":-0.0e-5,"whole":-0,"one":-1.0},"place":{"x":-0.0}`),
		refused("nothing", ``),
		refused("a wrong color", `"color":"pink"`),
		refused("wrong types", `"color":1,"replicas":"1","tags":{},"parts":"x","labels":[],"port":1.5`),
		refused("many mistakes",
			`"color":"pink","replicas":-1,"serial":"123456789012345678901","until":"tomorrow","labels":{"a":"too long","b":"","c":"","d":""},"tags":["x","x"],"parts":[{"name":"A"},{"weight":0}]`),
		refused("a key twice", `"color":"red","parts":[{"name":"a"},{"name":"a","kind":"bolt"}]`),
		refused("too many", `"color":"red","tags":["1","2","3","4","5","6"]`),
		refused("a broken rule", `"color":"red","replicas":11`),
		refused("a broken rule about all", `"color":"red","heights":[1,-2]`),
		refused("a rule that costs too much", `"color":"red","heights":[0`+strings.Repeat(",0", 999)+`]`),
		refused("a null", `"color":null`),
		refused("a template without a kind", `"color":"red","template":{"apiVersion":"v1"}`),
		refused("a template with bad metadata",
			`"color":"red","template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"A B","labels":{"a":1}}}`),
		{name: "gizmo: create strictly", method: http.MethodPost, path: gizmosPath + "?fieldValidation=Strict",
			body: gizmo("strict", `"color":"red","unknown":1,"color":"red","parts":[{"name":"a","widget":1}]`)},
		{name: "gizmo: create with warnings", method: http.MethodPost, path: gizmosPath + "?fieldValidation=Warn&dryRun=All",
			body: gizmo("warned", `"color":"red","unknown":1,"color":"red"`)},
		{name: "gizmo: create in YAML", method: http.MethodPost, path: gizmosPath + "?dryRun=All",
			contentType: "application/yaml",
			body:        "{apiVersion: shop.example.com/v1, kind: Gizmo, metadata: {name: yaml}, spec: {color: red}}"},
		{name: "gizmo: create with a generated name", method: http.MethodPost, path: gizmosPath + "?dryRun=All",
			body: `{"apiVersion":"shop.example.com/v1","kind":"Gizmo","metadata":{"generateName":"generated-"},"spec":{"color":"red"}}`},
		{name: "gizmo: create another kind", method: http.MethodPost, path: gizmosPath,
			body: `{"apiVersion":"shop.example.com/v1","kind":"Thing","metadata":{"name":"x"}}`},
		{name: "gizmo: create in another version", method: http.MethodPost, path: gizmosPath,
			body: `{"apiVersion":"shop.example.com/v7","kind":"Gizmo","metadata":{"name":"x"}}`},
		{name: "gizmo: create without a kind", method: http.MethodPost, path: gizmosPath, body: `{"metadata":{"name":"x"}}`},
		{name: "gizmo: create without a namespace", method: http.MethodPost, path: "/apis/shop.example.com/v1/gizmos",
			body: gizmo("x", `"color":"red"`)},
		get("get", "/a", ""), get("get in YAML", "/a", "application/yaml"), get("get in protobuf", "/a", protobuf),
		get("get as table", "/a", table), get("get metadata", "/a", metadata), get("get what is not", "/nobody", ""),
		get("list", "", ""), get("list as table", "", table), get("list metadata", "", metaList),
		get("list metadata in protobuf", "",
			"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
		get("list a page", "?limit=2", ""), get("list by label", "?labelSelector=name%3Dgreen", ""),
		get("list by color", "?fieldSelector=spec.color%3Dgreen", ""),
		get("list by two fields", "?fieldSelector=spec.color%3Dred,spec.replicas%3D3", ""),
		get("list by another color", "?fieldSelector=spec.color!%3Dgreen", ""),
		get("list by a field that is none", "?fieldSelector=spec.serial%3D12", ""),
		get("list by name", "?fieldSelector=metadata.name%3Da", ""),
		get("list by a bad selector", "?fieldSelector=widget", ""),
		{name: "gizmo: watch by color",
			path: gizmosPath + "?watch=1&resourceVersion=0&timeoutSeconds=60&fieldSelector=spec.color%3Dgreen", events: 1},
		{name: "gizmo: watch as table",
			path: gizmosPath + "?watch=1&resourceVersion=0&timeoutSeconds=60&fieldSelector=spec.color%3Dgreen", accept: table,
			events: 1},
		patch("change its serial number", "/green", mergePatch, `{"spec":{"serial":"13"}}`),
		patch("take its serial number away", "/green", mergePatch, `{"spec":{"serial":null}}`),
		patch("paint blue red", "/blue", mergePatch, `{"spec":{"color":"red"}}`),
		patch("strategic patch", "/a", strategic, `{}`),
		patch("merge patch", "/a", mergePatch, `{"spec":{"note":"x","unknown":2}}`),
		patch("merge patch strictly", "/a?fieldValidation=Strict", mergePatch, `{"spec":{"unknown":2}}`),
		patch("JSON patch", "/a", jsonPatch, `[{"op":"add","path":"/spec/tags/-","value":"z"}]`),
		patch("JSON patch that breaks", "/a", jsonPatch, `[{"op":"add","path":"/spec/tags/-","value":"z"}]`),
		patch("apply", "/a?fieldManager=one", apply,
			gizmo("a", `"color":"red","parts":[{"name":"a","weight":2},{"name":"c"}],"tags":["w"],"place":{"y":2}`)),
		patch("apply by force", "/a?fieldManager=one&force=true", apply,
			gizmo("a", `"color":"red","parts":[{"name":"a","weight":2},{"name":"c"}],"tags":["w"],"place":{"y":2}`)),
		patch("apply less", "/a?fieldManager=one", apply, gizmo("a", `"color":"red","parts":[{"name":"c"}]`)),
		patch("apply an unknown field", "/a?fieldManager=two", apply, gizmo("a", `"widget":1`)),
		patch("apply a new one", "/new?fieldManager=two", apply, gizmo("new", `"color":"red"`)),
		put("replace without a revision", "/a", gizmo("a", `"color":"red"`)),
		put("replace a stale one", "/a",
			`{"apiVersion":"shop.example.com/v1","kind":"Gizmo","metadata":{"name":"a","resourceVersion":"1"},"spec":{"color":"red"}}`),
		get("get the status", "/a/status", ""), get("get the scale", "/a/scale", ""),
		get("get the scale as table", "/a/scale", table),
		get("get another subresource", "/a/log", ""),
		put("replace the collection", "", gizmo("a", `"color":"red"`)),
		{name: "gizmo: post to an object", method: http.MethodPost, path: gizmosPath + "/a",
			body: gizmo("a", `"color":"red"`)},
		{name: "gizmo: post a status", method: http.MethodPost, path: gizmosPath + "/a/status",
			body: gizmo("a", `"color":"red"`)},
		{name: "gizmo: delete a scale", method: http.MethodDelete, path: gizmosPath + "/a/scale"},
		{name: "gizmo: unknown method", method: "PURGE", path: gizmosPath + "/a"},
		patch("patch the collection", "", mergePatch, `{}`),
		get("get as XML", "/a", "application/xml"), get("list as HTML", "", "text/html"),
		get("get the status as XML", "/a/status", "application/xml"),
		{name: "gizmo: create as XML", method: http.MethodPost, path: gizmosPath, contentType: "application/xml",
			body: "<gizmo/>"},
		{name: "gizmo: watch of one by the old path",
			path: "/apis/shop.example.com/v1/watch/namespaces/custom/gizmos/a?timeoutSeconds=60&resourceVersion=0", events: 1},
		patch("patch the status", "/a/status", mergePatch,
			`{"spec":{"color":"blue"},"status":{"replicas":2,"selector":"a=b","unknown":1,"conditions":[{"type":"Ready","status":"True"}]}}`),
		patch("patch the status wrong", "/a/status", mergePatch, `{"status":{"replicas":-2}}`),
		patch("apply the status", "/a/status?fieldManager=three", apply,
			`{"apiVersion":"shop.example.com/v1","kind":"Gizmo","status":{"conditions":[{"type":"Lost","status":"False"}]}}`),
		patch("patch the status by the main resource", "/a", mergePatch, `{"status":{"replicas":9}}`),
		patch("scale", "/a/scale", mergePatch, `{"spec":{"replicas":5}}`),
		patch("scale below nothing", "/a/scale", mergePatch, `{"spec":{"replicas":-5}}`),
		patch("scale too far", "/a/scale", mergePatch, `{"spec":{"replicas":50}}`),
		put("replace the scale", "/a/scale",
			`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a","namespace":"t"},"spec":{"replicas":6}}`),
		put("replace the scale by another kind", "/a/scale", gizmo("a", `"color":"red"`)),
		get("get as table after all", "/a", table),
		{name: "gizmo: delete a dry run", method: http.MethodDelete, path: gizmosPath + "/new?dryRun=All"},
		{name: "gizmo: delete", method: http.MethodDelete, path: gizmosPath + "/new"},
		{name: "gizmo: delete again", method: http.MethodDelete, path: gizmosPath + "/new"},
		{name: "gizmo: delete by color", method: http.MethodDelete, path: gizmosPath + "?fieldSelector=spec.color%3Dblue"},
	}
}

// oldGizmos are requests for the deprecated versions.
func oldGizmos() []request {
	const beta, alpha = "/apis/shop.example.com/v1beta1/namespaces/custom/gizmos",
		"/apis/shop.example.com/v1alpha1/namespaces/custom/gizmos"
	old := func(version, name, spec string) string {
		return `{"apiVersion":"shop.example.com/` + version + `","kind":"Gizmo","metadata":{"name":"` + name + `"},"spec":{` +
			spec + `}}`
	}
	return []request{
		{name: "old gizmo: list", path: beta},
		{name: "old gizmo: list as table", path: beta, accept: table},
		{name: "old gizmo: get", path: beta + "/a"},
		{name: "old gizmo: scale", path: beta + "/a/scale"},
		// A later request finds no status. kube-apiserver may serve it for a moment yet, and
		// count that; this request gives byre the count too.
		{name: "old gizmo: status", path: beta + "/a/status"},
		{name: "old gizmo: create", method: http.MethodPost, path: beta,
			body: old("v1beta1", "beta", `"color":"red","unknown":1`)},
		{name: "old gizmo: list by color", path: beta + "?fieldSelector=spec.color%3Dred"},
		{name: "older gizmo: list", path: alpha},
		{name: "older gizmo: create", method: http.MethodPost, path: alpha,
			body: old("v1alpha1", "alpha", `"color":"pink","unknown":1`)},
		{name: "older gizmo: get", path: alpha + "/alpha"},
		{name: "older gizmo: get in the new version", path: gizmosPath + "/alpha"},
		{name: "older gizmo: change in the new version", method: http.MethodPatch, path: gizmosPath + "/alpha",
			contentType: mergePatch, body: `{"metadata":{"labels":{"x":"y"}}}`},
		{name: "older gizmo: delete", method: http.MethodDelete, path: alpha + "/alpha"},
		{name: "old gizmo: apply", method: http.MethodPatch, path: beta + "/beta?fieldManager=one", contentType: apply,
			body: old("v1beta1", "beta", `"color":"red","replicas":2`)},
		{name: "old gizmo: apply in the new version", method: http.MethodPatch, path: gizmosPath + "/beta?fieldManager=one",
			contentType: apply, body: gizmo("beta", `"color":"red"`)},
	}
}
