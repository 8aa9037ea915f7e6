package oracle

import (
	"fmt"
	"net/http"
	"strings"
)

// managedFields are writes whose answers show who manages which fields, and reads of the
// objects that they leave, in each form.
func managedFields() []request {
	const (
		base  = "/api/v1/namespaces/fields"
		pods  = base + "/pods"
		apps  = "/apis/apps/v1/namespaces/fields/deployments"
		hpas  = "/apis/autoscaling/v%s/namespaces/fields/horizontalpodautoscalers"
		hpaV1 = "/apis/autoscaling/v1/namespaces/fields/horizontalpodautoscalers"
		hpaV2 = "/apis/autoscaling/v2/namespaces/fields/horizontalpodautoscalers"
		cms   = base + "/configmaps"
		pod   = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"p"},"finalizers":["example.com/f"]},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"1"}]}]}}`
	)
	var all []request
	add := func(r request) { all = append(all, r) }
	patch := func(name, path, contentType, body string) {
		add(request{name: "fields: " + name, method: http.MethodPatch, path: path, contentType: contentType, body: body})
	}
	put := func(name, path, body string) {
		add(request{name: "fields: " + name, method: http.MethodPut, path: path, body: body})
	}
	post := func(name, path, body string) {
		add(request{name: "fields: " + name, method: http.MethodPost, path: path, body: body})
	}
	by := func(path, manager string) string { return path + "?fieldManager=" + manager }
	post("namespace", "/api/v1/namespaces", `{"metadata":{"name":"fields"}}`)

	post("create a Pod", by(pods, "a"), pod)
	patch("status by merge", by(pods+"/p/status", "b"), mergePatch,
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"podIPs":[{"ip":"10.0.0.1"}]}}`)
	patch("status and labels by merge", by(pods+"/p/status", "b"), mergePatch,
		`{"metadata":{"labels":{"b":"status"}},"spec":{"nodeName":"n"},"status":{"message":"m"}}`)
	patch("status by strategic", by(pods+"/p/status", "c"), strategic,
		`{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"New","status":"True"}],"podIPs":[{"ip":"10.0.0.2"}]}}`)
	patch("ephemeral container", by(pods+"/p/ephemeralcontainers", "d"), strategic,
		`{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`)
	patch("resize", by(pods+"/p/resize", "e"), strategic,
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"10m"}}}]}}`)
	patch("spec by apply", by(pods+"/p", "f")+"&force=true", apply,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"q"}},"spec":{"containers":[{"name":"c","image":"j"}]}}`)
	patch("label of an applier", by(pods+"/p", "a"), mergePatch, `{"metadata":{"labels":{"a":"r"}}}`)
	// From here on "a" is younger than "b" to "e" on both servers: the oldest managers are joined below.
	all[len(all)-1].inNextSecond = true
	patch("label in conflict", by(pods+"/p", "f"), apply,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"q"}},"spec":{"containers":[{"name":"c","image":"j"}]}}`)
	patch("remove all labels", by(pods+"/p", "g"), mergePatch, `{"metadata":{"labels":null}}`)
	patch("set order of containers", by(pods+"/p", "g"), strategic,
		`{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"c","image":"k"}]}}`)
	patch("dry", by(pods+"/p", "g")+"&dryRun=All", mergePatch, `{"metadata":{"labels":{"dry":"run"}}}`)
	patch("unknown field with a warning", by(pods+"/p", "g")+"&fieldValidation=Warn", mergePatch,
		`{"spec":{"surprise":1},"metadata":{"labels":{"a":"s"}}}`)
	patch("unknown field refused", by(pods+"/p", "g")+"&fieldValidation=Strict", strategic,
		`{"spec":{"surprise":1},"metadata":{"labels":{"a":"t"}}}`)
	patch("immutable field", by(pods+"/p", "g"), mergePatch, `{"spec":{"dnsPolicy":"Default"}}`)
	patch("null managedFields", by(pods+"/p", "g"), mergePatch, `{"metadata":{"managedFields":null,"labels":{"a":"u"}}}`)
	patch("managers with odd names", by(pods+"/p", "%3Ca%26b%3E%E2%80%A8%22"), mergePatch,
		`{"metadata":{"labels":{"odd":"1"}}}`)
	all[len(all)-1].inNextSecond = true
	for i := range 12 {
		patch(fmt.Sprintf("manager %d", i), by(pods+"/p", fmt.Sprintf("m%02d", i)), mergePatch,
			fmt.Sprintf(`{"metadata":{"annotations":{"k%d":"v"}}}`, i))
		all[len(all)-1].inNextSecond = i == 0
	}
	patch("another after the oldest are joined", by(pods+"/p", "m01"), mergePatch,
		`{"metadata":{"annotations":{"k0":"w","k5":null}}}`)
	all[len(all)-1].inNextSecond = true
	patch("owners twice", by(pods+"/p", "o"), mergePatch,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"},{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}`)
	add(request{name: "fields: delete the Pod", method: http.MethodDelete, path: pods + "/p?gracePeriodSeconds=0"})
	patch("remove the finalizer dry", by(pods+"/p", "o")+"&dryRun=All", mergePatch, `{"metadata":{"finalizers":null}}`)
	patch("remove the finalizer", by(pods+"/p", "o"), mergePatch, `{"metadata":{"finalizers":null}}`)
	add(request{name: "fields: Pod is gone", path: pods + "/p"})

	// The managers of one object in two versions.
	hpa := `{"metadata":{"name":"h"},"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"maxReplicas":3,"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]}}`
	post("create in v2", by(hpaV2, "a"), hpa)
	patch("patch in v1", by(hpaV1+"/h", "b"), mergePatch, `{"spec":{"maxReplicas":4,"targetCPUUtilizationPercentage":10}}`)
	patch("patch in v2", by(hpaV2+"/h", "c"), mergePatch, `{"spec":{"maxReplicas":5}}`)
	patch("status in v1", by(hpaV1+"/h/status", "c"), mergePatch, `{"status":{"currentReplicas":1,"desiredReplicas":2}}`)
	patch("status in v2", by(hpaV2+"/h/status", "d"), mergePatch,
		`{"status":{"currentReplicas":1,"desiredReplicas":3,"conditions":[{"type":"AbleToScale","status":"True"}]}}`)
	patch("apply in v1", by(hpaV1+"/h", "e")+"&force=true", apply,
		`{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"h"},"spec":{"minReplicas":2}}`)
	patch("apply in v2", by(hpaV2+"/h", "e")+"&force=true", apply,
		`{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"h"},"spec":{"minReplicas":1}}`)
	post("create in v1", by(hpaV1, "a"),
		`{"metadata":{"name":"i","annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"type\":\"Resource\",\"resource\":{\"name\":\"memory\",\"targetAverageUtilization\":50}}]"}},"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"maxReplicas":3}}`)
	patch("behavior in v2", by(hpaV2+"/i", "b"), strategic,
		`{"spec":{"behavior":{"scaleDown":{"policies":[{"type":"Pods","value":1,"periodSeconds":5}]}}}}`)
	patch("annotation in v1", by(hpaV1+"/i", "c"), mergePatch, `{"metadata":{"annotations":{"x":"y"}}}`)
	for _, v := range []string{"1", "2"} {
		path := fmt.Sprintf(hpas, v)
		for _, form := range forms {
			add(request{name: fmt.Sprintf("fields: autoscalers in v%s as %s", v, form.name), path: path, accept: form.accept})
		}
	}

	// Deployments have annotations that are fields of the spec in memory.
	post("create a Deployment", by(apps, "a"),
		strings.Replace(deployment, `"name":"web"`,
			`"name":"web","annotations":{"deprecated.deployment.rollback.to":"1","x":"y"}`, 1))
	patch("scale it", by(apps+"/web/scale", "b"), mergePatch, `{"spec":{"replicas":3}}`)
	patch("scale it by apply", by(apps+"/web/scale", "c")+"&force=true", apply,
		`{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":4}}`)
	patch("status of a Deployment", by(apps+"/web/status", "d"), strategic,
		`{"status":{"replicas":1,"conditions":[{"type":"Available","status":"True"}]}}`)
	patch("containers of a Deployment", by(apps+"/web", "e"), strategic,
		`{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"i"}],"$setElementOrder/containers":[{"name":"d"},{"name":"c"}]}}}}`)
	patch("metadata replaced", by(apps+"/web", "e"), strategic,
		`{"metadata":{"$patch":"replace","name":"web","namespace":"fields","annotations":{"z":"z"}}}`)
	patch("replicas of a Deployment", by(apps+"/web", "b"), mergePatch, `{"spec":{"replicas":null}}`)
	for _, form := range forms {
		add(request{name: "fields: Deployments as " + form.name, path: apps, accept: form.accept})
	}

	// Updates.
	put("create by replacing", by("/apis/coordination.k8s.io/v1/namespaces/fields/leases/l", "a"),
		`{"metadata":{"name":"l","managedFields":[{"manager":"z","operation":"Update","apiVersion":"coordination.k8s.io/v1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:holderIdentity":{}}}}]},"spec":{"holderIdentity":"me"}}`)
	put("create by replacing dry", by("/apis/coordination.k8s.io/v1/namespaces/fields/leases/m", "a")+"&dryRun=All",
		`{"metadata":{"name":"m"},"spec":{"holderIdentity":"me"}}`)
	post("create what is replaced", by(cms, "a"), `{"metadata":{"name":"u","labels":{"a":"b"}},"data":{"who":"me"}}`)
	put("replace without managed fields", by(cms+"/u", "b"), `{"metadata":{"name":"u"},"data":{"who":"you"}}`)
	put("replace with null", by(cms+"/u", "c"), `{"metadata":{"name":"u","managedFields":null},"data":{"who":"she"}}`)
	put("replace and reset", by(cms+"/u", "d"), `{"metadata":{"name":"u","managedFields":[]},"data":{"who":"he"}}`)
	put("replace after a reset", by(cms+"/u", "e"), `{"metadata":{"name":"u"},"data":{"who":"it"}}`)
	put("bring fields", by(cms+"/u", "f"),
		`{"metadata":{"name":"u","managedFields":[{"manager":"z","operation":"Apply","apiVersion":"v2","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:who":{}}}}]},"data":{"who":"we"}}`)
	put("replace what a manager of no version has", by(cms+"/u", "g"), `{"metadata":{"name":"u"},"data":{"who":"all"}}`)
	put("bring fields that cannot be read", by(cms+"/u", "h"),
		`{"metadata":{"name":"u","managedFields":[{"manager":"z","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"x":{}}}]},"data":{"who":"one"}}`)
	add(request{name: "fields: replace in YAML", method: http.MethodPut, path: by(cms+"/u", "i"),
		contentType: "application/yaml", body: "metadata:\n  name: u\n  managedFields: []\ndata:\n  who: yaml\n"})
	put("replace with a precondition that fails", by("/apis/coordination.k8s.io/v1/namespaces/fields/leases/l", "j"),
		`{"metadata":{"name":"l","resourceVersion":"1"},"spec":{"holderIdentity":"you"}}`)

	// Objects with little and with much metadata.
	post("little", cms, `{"metadata":{"name":"little"}}`)
	put("nothing managed", cms+"/little", `{"metadata":{"name":"little","managedFields":[{}]}}`)
	post("unicode", by(cms, "a"),
		`{"metadata":{"name":"unicode","labels":{"e":""},"annotations":{"`+strings.Repeat("k", 60)+
			`":"\u2028\u0000<&>\ud83d\ude00\ud800","e":""},"finalizers":[]},"data":{},"binaryData":{}}`)
	post("odd data", by(cms, "a"),
		`{"metadata":{"name":"odd","annotations":{"a":"\u2028\u0000<&>\ud83d\ude00","e":""},"labels":{"e":""},"ownerReferences":[],"finalizers":[],"generateName":"x","selfLink":"/x","generation":7},"data":{"k":"\u0000\u001f"},"binaryData":{"b":""}}`)
	post("large", by(cms, "a"),
		fmt.Sprintf(`{"metadata":{"name":"large","annotations":{"a":%q}},"immutable":false,"data":{"k":%q}}`,
			strings.Repeat("x", 200_000), strings.Repeat("y", 900_000)))
	for _, form := range forms {
		add(request{name: "fields: ConfigMaps as " + form.name, path: cms, accept: form.accept})
		add(request{name: "fields: a ConfigMap as " + form.name, path: cms + "/odd",
			accept: strings.ReplaceAll(form.accept, "MetadataList", "Metadata")})
		add(request{name: "fields: ConfigMaps again as " + form.name, path: cms + "?limit=2", accept: form.accept})
		add(request{name: "fields: selected ConfigMaps as " + form.name, path: cms + "?labelSelector=e", accept: form.accept})
		add(request{name: "fields: no ConfigMaps as " + form.name, path: cms + "?labelSelector=nothing", accept: form.accept})
	}
	patch("patch with large parts", by(cms+"/large", "b"), mergePatch, `{"data":{"l":"1"}}`)
	patch("grow beyond what is stored", by(cms+"/large", "c"), mergePatch,
		fmt.Sprintf(`{"data":{"m":%q}}`, strings.Repeat("z", 900_000)))

	// Custom resources in two versions.
	post("define", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fieldsDefinition)
	custom := func(version string) string { return "/apis/fields.example.com/" + version + "/namespaces/fields/parts" }
	all = append(all, request{name: "fields: custom resources are served", path: custom("v1"), settles: true},
		request{name: "fields: so are those of v2", path: custom("v2"), settles: true})
	post("create a part", by(custom("v1"), "a"),
		`{"apiVersion":"fields.example.com/v1","kind":"Part","metadata":{"name":"p","labels":{"e":""},"annotations":{}},"spec":{"a":"1","list":[{"name":"x","value":1},{"name":"y"}],"pruned":1,"any":{"b":null,"c":[]}},"status":{"n":1}}`)
	patch("a part in v2", by(custom("v2")+"/p", "b"), mergePatch, `{"spec":{"a":"2"}}`)
	patch("its status in v1", by(custom("v1")+"/p/status", "c"), mergePatch, `{"spec":{"a":"9"},"status":{"n":2}}`)
	patch("its status in v2", by(custom("v2")+"/p/status", "c"), mergePatch,
		`{"status":{"n":3},"metadata":{"labels":{"by":"status"}}}`)
	patch("a part by apply in v2", by(custom("v2")+"/p", "d"), apply,
		`{"apiVersion":"fields.example.com/v2","kind":"Part","metadata":{"name":"p"},"spec":{"list":[{"name":"z","value":1}]}}`)
	patch("a part by apply in v1", by(custom("v1")+"/p", "d"), apply,
		`{"apiVersion":"fields.example.com/v1","kind":"Part","metadata":{"name":"p"},"spec":{"list":[{"name":"x","value":2}]}}`)
	patch("a part by force in v1", by(custom("v1")+"/p", "d")+"&force=true", apply,
		`{"apiVersion":"fields.example.com/v1","kind":"Part","metadata":{"name":"p"},"spec":{"list":[{"name":"x","value":2}]}}`)
	patch("the scale of a part", by(custom("v2")+"/p/scale", "e"), mergePatch, `{"spec":{"replicas":5}}`)
	put("replace a part", by(custom("v2")+"/p", "f"),
		`{"apiVersion":"fields.example.com/v2","kind":"Part","metadata":{"name":"p","managedFields":[{}]},"spec":{"a":"3"}}`)
	patch("null in a part", by(custom("v1")+"/p", "g")+"&fieldValidation=Warn", mergePatch,
		`{"spec":{"any":{"x":null},"unknown":1},"metadata":{"labels":null}}`)
	for _, v := range []string{"v1", "v2"} {
		for _, form := range forms {
			add(request{name: fmt.Sprintf("fields: parts of %s as %s", v, form.name), path: custom(v), accept: form.accept})
			add(request{name: fmt.Sprintf("fields: a part of %s as %s", v, form.name), path: custom(v) + "/p",
				accept: strings.ReplaceAll(form.accept, "MetadataList", "Metadata")})
		}
	}
	return all
}

const fieldsDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"parts.fields.example.com"},"spec":{
	"group":"fields.example.com","scope":"Namespaced","names":{"plural":"parts","kind":"Part"},"versions":[
	{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","properties":{"a":{"type":"string"},"replicas":{"type":"integer","default":1},
			"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"list":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"value":{"type":"integer"}}}}}},
		"status":{"type":"object","properties":{"n":{"type":"integer"}}}}}},
		"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.n"}}},
	{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
		"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":".spec.a"}],
		"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.n"}}}]}}`

// forms are the media types of lists.
var forms = []struct{ name, accept string }{
	{"JSON", "application/json"},
	{"metadata in protobuf", protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
	{"protobuf", protobuf},
	{"metadata in protobuf behind the whole", protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
	{"v1beta1 in protobuf", protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"},
	{"table", table},
	{"metadata", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
	{"metadata in v1beta1", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"},
}
