package history

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"byre/apiserver/storage/changes"
)

// recorded is a server in memory that records each change of its objects.
type recorded struct {
	*testing.T
	now     time.Time
	objects map[string]map[string]any // by their paths
	changes []Change
	events  []map[string]any
	// forbidden are the resources that the user may not list.
	forbidden []string
}

const (
	deploymentController = "system:serviceaccount:kube-system:deployment-controller"
	replicaController    = "system:serviceaccount:kube-system:replicaset-controller"
	podAutoscaler        = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
)

// newShop returns a server with the Deployment web, which runs since two hours.
func newShop(t *testing.T) *recorded {
	r := &recorded{T: t, now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), objects: map[string]map[string]any{}}
	r.write("ops", "create", "/api/v1/nodes/node1", `{kind: Node, spec: {podCIDR: 10.0.0.0/24},
		status: {conditions: [{type: Ready, status: "True"}]}}`)
	r.write("ops", "create", "/api/v1/namespaces/shop", `{kind: Namespace}`)
	r.write("ops", "create", shop("v1", "secrets/db"), `{kind: Secret, data: {password: YQ==}}`)
	r.write("ops", "create", shop("v1", "secrets/web-tls"), `{kind: Secret, data: {tls.crt: YQ==}}`)
	r.write("alice", "create", shop("apps/v1", "deployments/web"), `{kind: Deployment, spec: {replicas: 2, template: {
		metadata: {labels: {app: web}}, spec: {
			containers: [{name: c, image: "web:1", envFrom: [{secretRef: {name: db}}]}]}}}}`)
	r.replicaSet("web-1", "web:1", "web-1-a", "web-1-b")
	r.write("alice", "create", shop("v1", "services/web"), `{kind: Service, spec: {selector: {app: web}}}`)
	r.write("alice", "create", shop("v1", "services/other"), `{kind: Service, spec: {selector: {app: other}}}`)
	r.write("alice", "create", shop("networking.k8s.io/v1", "ingresses/web"), `{kind: Ingress, spec: {
		tls: [{secretName: web-tls}], defaultBackend: {service: {name: web}}}}`)
	r.write("alice", "create", shop("autoscaling/v2", "horizontalpodautoscalers/web"), `{kind: HorizontalPodAutoscaler,
		spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}`)
	r.now = time.Date(2026, 12, 1, 14, 0, 0, 0, time.UTC)
	return r
}

func shop(apiVersion, object string) string { return resourcePath(apiVersion, "shop", object) }

// replicaSet has the controllers make a ReplicaSet of web, and its Pods on node1.
func (r *recorded) replicaSet(name, image string, pods ...string) {
	r.write(deploymentController, "create", shop("apps/v1", "replicasets/"+name), `{kind: ReplicaSet, metadata: {
		ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web}]}, spec: {template: {
		metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: "`+image+`"}]}}}}`)
	for _, pod := range pods {
		r.write(replicaController, "create", shop("v1", "pods/"+pod), `{kind: Pod, metadata: {labels: {app: web},
			ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: `+name+`}]},
			spec: {containers: [{name: c, image: "`+image+`"}]}}`)
		r.write("system:kube-scheduler", "create/binding", shop("v1", "pods/"+pod), `{spec: {nodeName: node1}}`)
	}
}

// write makes an object, merges fields into it, or deletes it if there are none, a second after the last change.
func (r *recorded) write(who, verb, at, text string) {
	r.Helper()
	r.now = r.now.Add(time.Second)
	id := objectAt(at)
	before, after := r.objects[at], map[string]any(nil)
	if text != "" {
		merged := map[string]any{"metadata": map[string]any{"name": id.name}}
		if before != nil {
			r.copy(before, &merged)
		}
		var with map[string]any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "\t", " ")), &with); err != nil {
			r.Fatal(err)
		}
		merge(merged, with)
		r.copy(merged, &after)
	}
	verb, subresource, _ := strings.Cut(verb, "/")
	revision := int64(len(r.changes) + 1)
	c := Change{
		Revision: revision, Time: metav1.MicroTime{Time: r.now}, Who: who, Verb: verb, Subresource: subresource,
		Object: ObjectReference{Group: id.group, Resource: id.resource, Namespace: id.namespace, Name: id.name},
	}
	c.Name, c.Namespace = strconv.FormatInt(revision, 10), ShownIn(id.namespace)
	if before != nil {
		c.Before, c.Object.Kind = r.raw(before), nested[string](before, "kind")
	}
	if after != nil {
		c.After, c.Object.Kind = r.raw(after), nested[string](after, "kind")
	}
	if before != nil && after != nil {
		for d := range changes.CompareMasked(id.group, id.resource, c.Before.Raw, c.After.Raw, nil) {
			c.Changed = append(c.Changed, FieldChange(d.Field(mostText)))
		}
	}
	r.changes = append(r.changes, c)
	if r.objects[at] = after; after == nil {
		delete(r.objects, at)
	}
}

func merge(into, from map[string]any) {
	for name, value := range from {
		object, isObject := value.(map[string]any)
		old, hasObject := into[name].(map[string]any)
		switch {
		case value == nil:
			delete(into, name)
		case isObject && hasObject && name != "selector":
			merge(old, object)
		default:
			into[name] = value
		}
	}
}

func (r *recorded) raw(object any) *runtime.RawExtension {
	text, err := json.Marshal(object)
	if err != nil {
		r.Fatal(err)
	}
	return &runtime.RawExtension{Raw: text}
}

func (r *recorded) copy(from, to any) {
	if err := json.Unmarshal(r.raw(from).Raw, to); err != nil {
		r.Fatal(err)
	}
}

func (r *recorded) event(kind, name, reason, message string, count int) {
	r.now = r.now.Add(time.Second)
	namespace := "shop"
	if kind == "Node" {
		namespace = ""
	}
	r.events = append(r.events, map[string]any{
		"type": "Warning", "reason": reason, "message": message, "count": count,
		"source":         map[string]any{"component": "kubelet"},
		"involvedObject": map[string]any{"kind": kind, "namespace": namespace, "name": name},
		"lastTimestamp":  r.now.Format(time.RFC3339), "firstTimestamp": r.now.Add(-time.Minute).Format(time.RFC3339),
	})
}

// objectAt returns the object at a path.
func objectAt(at string) (id objectID) {
	parts := strings.Split(strings.Trim(at, "/"), "/")[1:]
	if strings.HasPrefix(at, "/apis/") {
		id.group, parts = parts[0], parts[1:]
	}
	parts = parts[1:]
	if len(parts) > 2 {
		id.namespace, parts = parts[1], parts[2:]
	}
	id.resource = parts[0]
	if len(parts) > 1 {
		id.name = parts[1]
	}
	return id
}

// get is a Get.
func (r *recorded) get(at string, query url.Values, into any) error {
	id := objectAt(at)
	of := schema.GroupResource{Group: id.group, Resource: id.resource}
	switch {
	case slices.Contains(r.forbidden, id.resource+"/"+id.namespace), slices.Contains(r.forbidden, id.resource):
		return apierrors.NewForbidden(of, id.name, nil)
	case id.group == GroupName && id.name != "":
		n, err := strconv.Atoi(id.name)
		if err != nil {
			return err
		}
		r.copy(r.changes[n-1], into)
	case id.group == GroupName:
		list := ChangeList{Items: []Change{}}
		selector, err := fields.ParseSelector(query.Get("fieldSelector"))
		if err != nil {
			return err
		}
		first, _ := strconv.Atoi(query.Get("continue"))
		for i, c := range slices.Backward(r.changes) {
			set := fields.Set{"object.group": c.Object.Group, "object.resource": c.Object.Resource, "object.name": c.Object.Name,
				"subresource": c.Subresource, "order": "newest"}
			for name, outside := range map[string]func(time.Time) bool{
				"since": func(t time.Time) bool { return !c.Time.After(t) }, "until": c.Time.Time.After,
			} {
				text, isBound := selector.RequiresExactMatch(name)
				if t, err := time.Parse(time.RFC3339, text); isBound && (err != nil || outside(t)) {
					continue
				}
				set[name] = text
			}
			if first > 0 && i >= first || !selector.Matches(set) || id.namespace != "" && c.Namespace != id.namespace ||
				slices.Contains(r.forbidden, c.Object.Resource) {
				continue
			}
			if len(list.Items) == 7 { // a page
				list.Continue = strconv.Itoa(i + 1)
				break
			}
			c.Before, c.After = nil, nil
			list.Items = append(list.Items, c)
		}
		r.copy(list, into)
	case id.resource == "events":
		items := slices.DeleteFunc(slices.Clone(r.events), func(event map[string]any) bool {
			return ShownIn(nested[string](event, "involvedObject", "namespace")) != id.namespace
		})
		r.copy(map[string]any{"items": items}, into)
	case id.name != "":
		object := r.objects[at]
		if object == nil {
			return apierrors.NewNotFound(of, id.name)
		}
		r.copy(object, into)
	default:
		items := []map[string]any{}
		for at, object := range r.objects {
			if strings.HasPrefix(at, strings.TrimSuffix(path.Dir(at+"/"), id.name)) && objectAt(at).resource == id.resource &&
				objectAt(at).namespace == id.namespace {
				items = append(items, object)
			}
		}
		r.copy(map[string]any{"items": items}, into)
	}
	return nil
}

// timeline returns the rows of a Timeline of an object in the last hour.
func (r *recorded) timeline(kind, at string, all bool) (rows []string, found *Incident) {
	r.Helper()
	id := objectAt(at)
	apiVersion := "v1"
	if parts := strings.Split(at, "/"); parts[1] == "apis" {
		apiVersion = parts[2] + "/" + parts[3]
	}
	t := &Timeline{Object: ObjectReference{Group: id.group, Resource: id.resource, Kind: kind, Namespace: id.namespace,
		Name: id.name}, APIVersion: apiVersion, Since: r.now.Add(-time.Hour), All: all}
	found, err := t.Read(r.get)
	if err != nil {
		r.Fatal(err)
	}
	for i := range found.Rows {
		row := &found.Rows[i]
		text := fmt.Sprintf("%s %s %s: %s [%s] %d", row.Who, row.Verb, row.Object.FullName(), row.What, row.Why, row.Count)
		if row.Folded > 0 {
			text += fmt.Sprintf(" +%d", row.Folded)
		}
		rows = append(rows, text)
	}
	return rows, found
}

const webAt = "/apis/apps/v1/namespaces/shop/deployments/web"

// The rows of an incident name its cause, who made it, and why it bears on the Deployment; what controllers have done
// about it is folded.
func TestTimeline_NamesTheCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage func(r *recorded)
		want  []string
	}{
		"image typo": {func(r *recorded) {
			r.write("ci", "apply", webAt, `{spec: {template: {spec: {
				containers: [{name: c, image: "wbe:2", envFrom: [{secretRef: {name: db}}]}]}}}}`)
			r.write("dave", "create", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/check",
				`{kind: ValidatingAdmissionPolicy}`)
			r.replicaSet("web-2", "wbe:2", "web-2-a", "web-2-b")
			r.write(deploymentController, "update/status", webAt, `{status: {unavailable: 1}}`)
			r.write("system:node:node1", "patch/status", shop("v1", "pods/web-2-a"),
				`{status: {conditions: [{type: Ready, status: "False", reason: ContainersNotReady}]}}`)
			r.event("Pod", "web-2-a", "Failed", "wbe:2: not found", 3)
			r.event("Pod", "web-2-b", "Failed", "wbe:2: not found", 1)
			r.event("Pod", "other-1", "Failed", "is not related", 1)
			r.write(deploymentController, "update/status", webAt, `{status: {conditions: [{type: Available, status: "False",
				reason: MinimumReplicasUnavailable}]}}`)
		}, []string{
			deploymentController + " condition deployments.apps/web: Available: False (MinimumReplicasUnavailable) [itself] 1",
			"kubelet event pods/web-2-b: Failed: wbe:2: not found [owned by replicasets.apps/web-2] 4",
			"dave create validatingadmissionpolicies.admissionregistration.k8s.io/check:  [checks or changes requests] 1",
			`ci apply deployments.apps/web: spec.template.spec.containers[name=c].image: "web:1" → "wbe:2" [itself] 1 +7`,
		}},
		"deleted Secret": {func(r *recorded) {
			r.write("bob", "delete", shop("v1", "secrets/db"), "")
			r.write(replicaController, "delete", shop("v1", "pods/web-1-a"), "")
		}, []string{"bob delete secrets/db:  [named by deployments.apps/web] 1 +1"}},
		"quota": {func(r *recorded) {
			r.write("carol", "create", shop("v1", "resourcequotas/small"), `{kind: ResourceQuota, spec: {hard: {pods: "2"}}}`)
			r.write(deploymentController, "update/status", webAt, `{status: {conditions: [{type: ReplicaFailure, status: "True",
				reason: FailedCreate}, {type: Progressing, status: "True"}, {type: Degraded, status: "False"}]}}`)
		}, []string{
			deploymentController + " condition deployments.apps/web: ReplicaFailure: True (FailedCreate) [itself] 1",
			"carol create resourcequotas/small:  [limits its namespace] 1",
		}},
		"wrong selector": {func(r *recorded) {
			r.write("bob", "patch", shop("v1", "services/web"), `{spec: {selector: {app: wbe}}}`)
			r.write("bob", "patch", shop("v1", "services/other"), `{spec: {selector: {app: another}}}`)
		}, []string{`bob patch services/web: spec.selector.app: "web" → "wbe" [selected its Pods] 1`}},
		"deleted Service": {func(r *recorded) { r.write("bob", "delete", shop("v1", "services/web"), "") },
			[]string{"bob delete services/web:  [selected its Pods] 1"}},
		"drained Node": {func(r *recorded) {
			r.write("ops", "patch", "/api/v1/nodes/node1", `{spec: {unschedulable: true}}`)
			for _, pod := range []string{"pods/web-1-a", "pods/web-1-b"} {
				r.write("ops", "create/eviction", shop("v1", pod), `{metadata: {deletionTimestamp: "2026-12-01T14:00:00Z"}}`)
				r.write("ops", "create/eviction", shop("v1", pod), "")
			}
			r.write("system:node:node1", "patch/status", "/api/v1/nodes/node1",
				`{status: {conditions: [{type: Ready, status: Unknown, reason: NodeStatusUnknown}]}}`)
		}, []string{
			"system:node:node1 condition nodes/node1: Ready: True → Unknown (NodeStatusUnknown) [node of pods/web-1-a] 1",
			"ops create/eviction pods/web-1-b:  [owned by replicasets.apps/web-1] 2",
			"ops patch nodes/node1: spec.unschedulable: <none> → true [node of pods/web-1-a] 1",
		}},
		"autoscaler against a pipeline": {func(r *recorded) {
			for range 4 {
				r.write("ci", "apply", webAt, `{spec: {replicas: 3}}`)
				r.write(deploymentController, "update/status", webAt, fmt.Sprintf(`{status: {seen: %d}}`, len(r.changes)))
				r.write(podAutoscaler, "update/scale", webAt, `{spec: {replicas: 8}}`)
			}
		}, []string{"ci ⇄ " + podAutoscaler + " fight deployments.apps/web: spec.replicas: 3 ⇄ 8 [itself] 8 +4"}},
		"two operators": {func(r *recorded) {
			for range 3 {
				for _, user := range []string{"a", "b"} {
					r.write("system:serviceaccount:operators:"+user, "update", webAt, `{metadata: {labels: {mode: `+user+`}}}`)
				}
			}
		}, []string{"system:serviceaccount:operators:a ⇄ system:serviceaccount:operators:b fight deployments.apps/web: " +
			`metadata.labels.mode: "a" ⇄ "b" [itself] 5`,
			"system:serviceaccount:operators:a update deployments.apps/web: metadata.labels: <none> → " +
				`{"mode":"a"} [itself] 1`}},
		"certificate": {func(r *recorded) {
			r.write("system:serviceaccount:certs:issuer", "update", shop("v1", "secrets/web-tls"), `{data: {tls.crt: Yg==}}`)
		}, []string{"system:serviceaccount:certs:issuer update secrets/web-tls: " +
			`data["tls.crt"]: "*** (before)" → "*** (after)" [certificate of ingresses.networking.k8s.io/web] 1`}},
		"webhook": {func(r *recorded) {
			r.write("dave", "create", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/inject",
				`{kind: MutatingWebhookConfiguration}`)
			r.event("ReplicaSet", "web-1", "FailedCreate", "failed calling webhook inject", 1)
		}, []string{
			"kubelet event replicasets.apps/web-1: FailedCreate: failed calling webhook inject [owned by deployments.apps/web] 1",
			"dave create mutatingwebhookconfigurations.admissionregistration.k8s.io/inject:  [checks or changes requests] 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newShop(t)
			c.stage(r)
			got, found := r.timeline("Deployment", webAt, false)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if len(found.NotAsked)+len(found.Incomplete) > 0 {
				t.Errorf("not asked %q, incomplete %q", found.NotAsked, found.Incomplete)
			}
			if all, _ := r.timeline("Deployment", webAt, true); len(all) < len(got) {
				t.Errorf("all rows are %q", all)
			}
		})
	}
}

// A custom resource has the changes of its definition, and of what its operator has made for it.
func TestTimeline_OfACustomResource(t *testing.T) {
	t.Parallel()
	r := newShop(t)
	at := shop("example.com/v1", "gadgets/g")
	r.write("alice", "create", at, `{kind: Gadget, spec: {}}`)
	r.write("operator", "create", shop("example.com/v1", "parts/g-part"), `{kind: Part, metadata: {
		ownerReferences: [{apiVersion: example.com/v1, kind: Gadget, name: g}]}}`)
	r.write("eve", "patch", resourcePath("apiextensions.k8s.io/v1", "", "customresourcedefinitions/gadgets.example.com"),
		`{kind: CustomResourceDefinition, spec: {group: example.com}}`)
	r.write("eve", "create", resourcePath("apiextensions.k8s.io/v1", "", "customresourcedefinitions/others.example.com"),
		`{kind: CustomResourceDefinition}`)
	got, _ := r.timeline("Gadget", at, false)
	if diff := cmp.Diff([]string{
		"eve patch customresourcedefinitions.apiextensions.k8s.io/gadgets.example.com:  [defines gadgets.example.com/g] 1",
		"operator create parts.example.com/g-part:  [owned by gadgets.example.com/g] 1",
		"alice create gadgets.example.com/g:  [itself] 1",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// What the user may not list is left out and named. A deleted object has the timeline of its last version.
func TestTimeline_NamesWhatItMayNotAsk(t *testing.T) {
	t.Parallel()
	r := newShop(t)
	r.write("bob", "delete", shop("v1", "secrets/db"), "")
	r.write("bob", "patch", "/api/v1/nodes/node1", `{spec: {unschedulable: true}}`)
	r.write("bob", "patch", shop("v1", "services/web"), `{spec: {selector: {app: wbe}}}`)
	r.write("bob", "delete", webAt, "")
	r.write("system:serviceaccount:kube-system:generic-garbage-collector", "delete", shop("v1", "pods/web-1-a"), "")
	r.forbidden = []string{"secrets", "services", "changes/"}
	got, found := r.timeline("Deployment", webAt, false)
	if diff := cmp.Diff([]string{"bob delete deployments.apps/web:  [itself] 1 +1"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"changes of cluster-scoped objects", "services", "secrets"}, found.NotAsked); diff != "" {
		t.Error(diff)
	}
	r.now = r.now.Add(2 * time.Hour)
	if got, _ := r.timeline("Deployment", webAt, false); len(got) > 0 {
		t.Errorf("hours later there are %q", got)
	}
	absent := &Timeline{Object: ObjectReference{Group: "apps", Resource: "deployments", Kind: "Deployment",
		Namespace: "shop", Name: "absent"}, APIVersion: "apps/v1", Since: r.now, Until: r.now}
	if _, err := absent.Read(r.get); err == nil || !strings.Contains(err.Error(), "deployments.apps/absent does not exist") {
		t.Errorf("of what never was: %v", err)
	}
}

// A Node has its own changes and Events, and not those of a namespace.
func TestTimeline_OfANode(t *testing.T) {
	t.Parallel()
	r := newShop(t)
	r.write("alice", "patch", webAt, `{spec: {replicas: 3}}`)
	r.write("ops", "patch", "/api/v1/nodes/node1", `{spec: {unschedulable: true}}`)
	r.event("Node", "node1", "Rebooted", "has been rebooted", 1)
	got, _ := r.timeline("Node", "/api/v1/nodes/node1", false)
	if diff := cmp.Diff([]string{
		"kubelet event nodes/node1: Rebooted: has been rebooted [itself] 1",
		"ops patch nodes/node1: spec.unschedulable: <none> → true [itself] 1",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// A Pod has the changes of its owners, of what selects it, and of its Node.
func TestTimeline_OfAPod(t *testing.T) {
	t.Parallel()
	r := newShop(t)
	r.write("ops", "patch", "/api/v1/nodes/node1", `{spec: {unschedulable: true}}`)
	r.event("Node", "node1", "Rebooted", "has been rebooted", 1)
	r.write("alice", "patch", webAt, `{spec: {replicas: 3}}`)
	r.write("alice", "patch", webAt, `{spec: {replicas: 4}}`)
	r.write("alice", "patch", shop("autoscaling/v2", "horizontalpodautoscalers/web"), `{spec: {maxReplicas: 3}}`)
	got, _ := r.timeline("Pod", shop("v1", "pods/web-1-a"), false)
	if diff := cmp.Diff([]string{
		"alice patch horizontalpodautoscalers.autoscaling/web: spec.maxReplicas: <none> → 3 [scales it] 1",
		"alice patch deployments.apps/web: spec.replicas: 2 → 4 [owns replicasets.apps/web-1] 2",
		"kubelet event nodes/node1: Rebooted: has been rebooted [node of pods/web-1-a] 1",
		"ops patch nodes/node1: spec.unschedulable: <none> → true [node of pods/web-1-a] 1",
	}, got); diff != "" {
		t.Error(diff)
	}
}
