package oracle

import "net/http"

const (
	mergePatch = "application/merge-patch+json"
	strategic  = "application/strategic-merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
)

// writes are writes with and without preconditions, valid and invalid.
func writes() []request {
	post := func(name, path, body string) request {
		return request{name: name, method: http.MethodPost, path: path, body: body}
	}
	put := func(name, path, body string) request {
		return request{name: name, method: http.MethodPut, path: path, body: body}
	}
	patch := func(name, path, contentType, body string) request {
		return request{name: name, method: http.MethodPatch, path: path, contentType: contentType, body: body}
	}
	remove := func(name, path, body string) request {
		return request{name: name, method: http.MethodDelete, path: path, body: body}
	}
	return []request{
		post("create w", cms, configMap("w", `,"data":{"a":"1"}`)),
		post("create by generateName", cms, `{"metadata":{"generateName":"generated-"}}`),
		post("create without kind", cms, `{"metadata":{"name":"kindless"}}`),
		put("replace", cms+"/w", configMap("w", `,"data":{"a":"2"}`)),
		put("replace by the same", cms+"/w", configMap("w", `,"data":{"a":"2"}`)),
		put("replace under another name", cms+"/w", configMap("v", "")),
		put("replace without a name", cms+"/w", `{"data":{}}`),
		put("replace what is not", cms+"/nobody", configMap("nobody", "")),
		put("replace a stale one", cms+"/w", `{"metadata":{"name":"w","resourceVersion":"1"}}`),
		put("replace with a revision that is no number", cms+"/w", `{"metadata":{"name":"w","resourceVersion":"one"}}`),
		put("replace with a revision from the future", cms+"/w", `{"metadata":{"name":"w","resourceVersion":"99999999"}}`),
		put("replace another with its uid", cms+"/w",
			`{"metadata":{"name":"w","uid":"11111111-2222-3333-4444-555555555555"}}`),
		put("create by replacing", "/apis/coordination.k8s.io/v1/namespaces/t/leases/l",
			`{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`),
		patch("merge patch", cms+"/w", mergePatch, `{"data":{"b":"1"}}`),
		patch("merge patch of what is not", cms+"/nobody", mergePatch, `{}`),
		patch("merge patch of a stale one", cms+"/w", mergePatch, `{"metadata":{"resourceVersion":"1"}}`),
		patch("merge patch of its name", cms+"/w", mergePatch, `{"metadata":{"name":"v"}}`),
		patch("merge patch by a list", cms+"/w", mergePatch, `[]`),
		patch("merge patch of a wrong type", cms+"/w", mergePatch, `{"data":{"b":1}}`),
		patch("JSON patch", cms+"/w", jsonPatch, `[{"op":"add","path":"/data/c","value":"1"}]`),
		patch("JSON patch whose test fails", cms+"/w", jsonPatch, `[{"op":"test","path":"/data/c","value":"2"}]`),
		patch("JSON patch of a path that is not", cms+"/w", jsonPatch, `[{"op":"remove","path":"/data/zzz"}]`),
		patch("JSON patch by an object", cms+"/w", jsonPatch, `{}`),
		patch("JSON patch with an unknown operation", cms+"/w", jsonPatch, `[{"op":"widget","path":"/data/a"}]`),
		patch("strategic patch that is no JSON", cms+"/w", strategic, `{`),
		patch("strategic patch with a bad directive", cms+"/w", strategic, `{"$patch":"widget"}`),
		patch("apply without a manager", cms+"/w", apply, `{"apiVersion":"v1","kind":"ConfigMap"}`),
		patch("apply in conflict", cms+"/w?fieldManager=b", apply, `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9"}}`),
		patch("apply by force", cms+"/w?fieldManager=b&force=true", apply,
			`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9"}}`),
		patch("apply of another kind", cms+"/w?fieldManager=b", apply, `{"apiVersion":"v1","kind":"Secret"}`),
		patch("apply without a kind", cms+"/w?fieldManager=b", apply, `{}`),
		patch("apply of managed fields", cms+"/w?fieldManager=b", apply,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[{"manager":"x"}]}}`),
		patch("apply of unknown fields", cms+"/w?fieldManager=b", apply, `{"apiVersion":"v1","kind":"ConfigMap","widget":1}`),
		patch("force without apply", cms+"/w?force=true", mergePatch, `{}`),
		patch("patch of an unknown type", cms+"/w", "application/widget-patch", `{}`),
		patch("patch without a type", cms+"/w", "none", `{}`),
		post("create a Deployment", deploys, deployment),
		{name: "get its scale", path: deploys + "/web/scale"},
		put("replace its scale", deploys+"/web/scale",
			`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"t"},"spec":{"replicas":4}}`),
		put("replace its scale by less than nothing", deploys+"/web/scale",
			`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"t"},"spec":{"replicas":-4}}`),
		patch("patch its scale", deploys+"/web/scale", mergePatch, `{"spec":{"replicas":5}}`),
		patch("apply its scale", deploys+"/web/scale?fieldManager=b&force=true", apply,
			`{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":6}}`),
		patch("change what may not change", deploys+"/web", mergePatch, `{"spec":{"selector":{"matchLabels":{"a":"c"}}}}`),
		remove("delete with another uid", cms+"/w", `{"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}}`),
		remove("delete a stale one", cms+"/w", `{"preconditions":{"resourceVersion":"1"}}`),
		remove("delete with a wrong policy", cms+"/w?propagationPolicy=Widget", ""),
		remove("delete with two policies", cms+"/w", `{"orphanDependents":true,"propagationPolicy":"Orphan"}`),
		remove("delete with options that are none", cms+"/w", `{"kind":"Pod","apiVersion":"v1"}`),
		remove("delete with a negative grace", cms+"/w?gracePeriodSeconds=-5", ""),
		remove("delete a Deployment in the foreground", deploys+"/web?propagationPolicy=Foreground", ""),
		remove("delete", cms+"/w", ""),
		remove("delete what is not", cms+"/w", ""),
		remove("delete a collection", cms+"?labelSelector=parity%3Dp0", ""),
		remove("delete a collection dry", cms+"?dryRun=All", ""),
		remove("delete the default namespace", "/api/v1/namespaces/kube-system", ""),
		post("create a Pod to evict", ns+"/pods",
			`{"metadata":{"name":"p","labels":{"a":"p"}},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`),
		patch("let it be ready", ns+"/pods/p/status", mergePatch,
			`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`),
		post("create its budget", "/apis/policy/v1/namespaces/t/poddisruptionbudgets",
			`{"metadata":{"name":"p"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"p"}}}}`),
		post("evict it against its budget", ns+"/pods/p/eviction",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`),
		remove("delete its budget", "/apis/policy/v1/namespaces/t/poddisruptionbudgets/p", ""),
		post("evict it dry", ns+"/pods/p/eviction?dryRun=All",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`),
		post("evict another", ns+"/pods/p/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"q"}}`),
		post("evict it", ns+"/pods/p/eviction",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"},"deleteOptions":{"gracePeriodSeconds":0}}`),
		{name: "get what was evicted", path: ns + "/pods/p"},
		post("bind what is not", ns+"/pods/q/binding", `{"target":{"kind":"Node","name":"n"}}`),
		post("bind to nothing", ns+"/bindings", `{"metadata":{"name":"q"},"target":{"kind":"Widget"}}`),
		post("token of an account that is not", ns+"/serviceaccounts/nobody/token", `{"spec":{}}`),
		post("token review", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"alice-token"}}`),
		post("access review", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"spec":{"user":"alice","resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		post("own access review", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		post("local access review", "/apis/authorization.k8s.io/v1/namespaces/t/localsubjectaccessreviews",
			`{"spec":{"user":"alice","resourceAttributes":{"namespace":"t","verb":"get","resource":"pods"}}}`),
		post("own rules", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"t"}}`),
		post("own self", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`),
	}
}
