package history

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// relation is why an object bears on that of a Timeline.
type relation struct{ kind, why string }

// relate relates an object, and reports whether it was not yet. The first relation is what a row says.
func (r *timelineReader) relate(id objectID, kind, why string) bool {
	if _, isKnown := r.related[id]; isKnown {
		return false
	}
	r.related[id] = relation{kind, why}
	return true
}

// reference returns the reference to a related object.
func (r *timelineReader) reference(id objectID) ObjectReference {
	return ObjectReference{
		Group: id.group, Resource: id.resource, Kind: r.related[id].kind, Namespace: id.namespace, Name: id.name,
	}
}

// relateAll finds the related objects. Names and selectors count as they are, and as they were at the ends of the
// window: what broke the object may have cut the relation.
func (r *timelineReader) relateAll() error {
	target := idOf(&r.Object)
	r.relate(target, r.Object.Kind, "itself")
	workloads, err := r.relateOwners(target)
	if err != nil {
		return err
	}
	descendants, err := r.relateDescendants(target)
	if err != nil {
		return err
	}
	workloads = slices.Concat([]objectID{target}, workloads, descendants)
	var ofPods []labels.Set
	for _, id := range workloads {
		versions, err := r.versionsOf(id)
		if err != nil {
			return err
		}
		for _, v := range versions {
			if pod := podOf(v.content); pod != nil {
				ofPods = append(ofPods, pod.Labels)
				r.relateNamed(id, pod, v.isNow)
			}
		}
	}
	if err := r.relateByContent(workloads, ofPods); err != nil {
		return err
	}
	if err := r.relateIngresses(); err != nil {
		return err
	}
	r.relateByResource()
	return nil
}

// relateOwners relates the owners of an object, and theirs.
func (r *timelineReader) relateOwners(id objectID) (owners []objectID, err error) {
	versions, err := r.versionsOf(id)
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		for _, reference := range ownersOf(v.content) {
			resource, isNamespaced, err := r.resourceOf(reference.APIVersion, reference.Kind)
			if err != nil {
				return nil, err
			}
			owner := objectID{groupOf(reference.APIVersion), resource, id.namespace, reference.Name}
			if !isNamespaced {
				owner.namespace = ""
			}
			if resource == "" || !r.relate(owner, reference.Kind, "owns "+id.String()) {
				continue
			}
			if _, isRead := r.now[owner]; !isRead {
				if _, err := r.allowed(r.readObject(owner, reference.APIVersion), resource); err != nil {
					return nil, err
				}
			}
			further, err := r.relateOwners(owner)
			if err != nil {
				return nil, err
			}
			owners = append(append(owners, owner), further...)
		}
	}
	return owners, nil
}

func ownersOf(content map[string]any) (owners []metav1.OwnerReference) {
	for _, owner := range nested[[]any](content, "metadata", "ownerReferences") {
		fields, _ := owner.(map[string]any)
		text := func(name string) string { return nested[string](fields, name) }
		owners = append(owners, metav1.OwnerReference{APIVersion: text("apiVersion"), Kind: text("kind"), Name: text("name")})
	}
	return owners
}

// resourceOf returns the resource of a kind; nothing if it is not served.
func (r *timelineReader) resourceOf(apiVersion, kind string) (resource string, isNamespaced bool, err error) {
	for i := range asked {
		if a := &asked[i]; a.kind == kind && groupOf(a.apiVersion) == groupOf(apiVersion) {
			return a.resource, !a.isOfCluster, nil
		}
	}
	var served metav1.APIResourceList
	if _, err := r.allowed(r.get(strings.TrimSuffix(resourcePath(apiVersion, "", ""), "/"), nil, &served),
		"the kinds of "+apiVersion); err != nil {
		return "", false, err
	}
	for i := range served.APIResources {
		if s := &served.APIResources[i]; s.Kind == kind && !strings.Contains(s.Name, "/") {
			return s.Name, s.Namespaced, nil
		}
	}
	return "", false, nil
}

// mostOfName is how much of an owner's name the names of its objects have at least.
const mostOfName = 40

// relateDescendants relates the objects that an object owns, and those that these own. Of objects that are not listed,
// deleted ones too, it looks at those whose names have that of the object.
func (r *timelineReader) relateDescendants(target objectID) (descendants []objectID, err error) {
	type owner struct{ group, kind, name string }
	children := map[owner][]objectID{}
	for _, id := range r.objects() {
		versions := []version{{r.now[id], true}}
		if versions[0].content == nil {
			if !strings.Contains(id.name, target.name[:min(len(target.name), mostOfName)]) {
				continue
			}
			if versions, err = r.versionsOf(id); err != nil {
				return nil, err
			}
		}
		for _, v := range versions {
			for _, o := range ownersOf(v.content) {
				key := owner{groupOf(o.APIVersion), o.Kind, o.Name}
				children[key] = append(children[key], id)
			}
		}
	}
	for queue := []objectID{target}; len(queue) > 0; queue = queue[1:] {
		parent := queue[0]
		for _, id := range children[owner{parent.group, r.related[parent].kind, parent.name}] {
			if r.relate(id, r.kindOf(id), "owned by "+parent.String()) {
				queue, descendants = append(queue, id), append(descendants, id)
			}
		}
	}
	return descendants, nil
}

// objects returns the objects of the namespace that are listed or have changed, in a fixed order.
func (r *timelineReader) objects() (all []objectID) {
	known := map[objectID]bool{}
	for id := range r.now {
		known[id] = true
	}
	for id := range r.of {
		known[id] = true
	}
	maps.DeleteFunc(known, func(id objectID, _ bool) bool { return id.namespace == "" })
	return slices.SortedFunc(maps.Keys(known), func(a, b objectID) int { return strings.Compare(a.String(), b.String()) })
}

func (r *timelineReader) kindOf(id objectID) string {
	for i := range asked {
		if a := &asked[i]; a.resource == id.resource && groupOf(a.apiVersion) == id.group {
			return a.kind
		}
	}
	for _, c := range r.of[id] {
		if c.Object.Kind != "" {
			return c.Object.Kind
		}
	}
	return ""
}

// podOf returns the Pod that an object is, or that it has as a template; nil if there is none.
func podOf(content map[string]any) *corev1.Pod {
	for _, path := range [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}, {}} {
		template := content
		if len(path) > 0 {
			template = nested[map[string]any](content, path...)
		}
		pod := &corev1.Pod{}
		if nested[[]any](template, "spec", "containers") != nil &&
			runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod) == nil {
			return pod
		}
	}
	return nil
}

// relateNamed relates what a Pod or its template names. That need not exist.
func (r *timelineReader) relateNamed(id objectID, pod *corev1.Pod, isNow bool) {
	why := "named by "
	if !isNow {
		why = "was named by "
	}
	named := func(resource, kind string) podutil.Visitor {
		return func(name string) bool {
			r.relate(objectID{"", resource, r.Object.Namespace, name}, kind, why+id.String())
			return true
		}
	}
	podutil.VisitPodSecretNames(pod, named("secrets", "Secret"))
	podutil.VisitPodConfigmapNames(pod, named("configmaps", "ConfigMap"))
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			named("persistentvolumeclaims", "PersistentVolumeClaim")(claim.ClaimName)
		}
	}
	if pod.Spec.ServiceAccountName != "" {
		named("serviceaccounts", "ServiceAccount")(pod.Spec.ServiceAccountName)
	}
	if pod.Spec.NodeName != "" {
		r.relate(objectID{"", "nodes", "", pod.Spec.NodeName}, "Node", "node of "+id.String())
	}
}

// relateByContent relates the objects that select the Pods of the workloads, or scale a workload.
func (r *timelineReader) relateByContent(workloads []objectID, ofPods []labels.Set) error {
	for _, id := range r.objects() {
		var bears func(content map[string]any) bool
		now, before := "selects its Pods", "selected its Pods"
		switch id.resource {
		case "services", "poddisruptionbudgets", "networkpolicies":
			bears = func(content map[string]any) bool {
				selector := selectorOf(id.resource, content)
				return slices.ContainsFunc(ofPods, func(set labels.Set) bool { return selector.Matches(set) })
			}
		case "horizontalpodautoscalers":
			now, before = "scales it", "scaled it"
			bears = func(content map[string]any) bool {
				text := func(name string) string { return nested[string](content, "spec", "scaleTargetRef", name) }
				return slices.ContainsFunc(workloads, func(w objectID) bool {
					return w.name == text("name") && r.related[w].kind == text("kind") && w.group == groupOf(text("apiVersion"))
				})
			}
		default:
			continue
		}
		versions, err := r.versionsOf(id)
		if err != nil {
			return err
		}
		for _, v := range versions {
			if why := map[bool]string{true: now, false: before}[v.isNow]; bears(v.content) {
				r.relate(id, r.kindOf(id), why)
				break
			}
		}
	}
	return nil
}

// selectorOf returns the selector for Pods of an object.
func selectorOf(resource string, content map[string]any) labels.Selector {
	if resource == "services" {
		set := labels.Set{}
		for name, value := range nested[map[string]any](content, "spec", "selector") {
			set[name], _ = value.(string)
		}
		if len(set) == 0 {
			return labels.Nothing() // its endpoints are made by others
		}
		return set.AsSelector()
	}
	field := nested[map[string]any](content, "spec", "selector")
	if resource == "networkpolicies" {
		field = nested[map[string]any](content, "spec", "podSelector")
	}
	of := &metav1.LabelSelector{}
	if field == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(field, of) != nil {
		return labels.Nothing()
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// relateIngresses relates the Ingresses of the related Services, and the Secrets of their certificates.
func (r *timelineReader) relateIngresses() error {
	for _, id := range r.objects() {
		if id.resource != "ingresses" {
			continue
		}
		versions, err := r.versionsOf(id)
		if err != nil {
			return err
		}
		for _, v := range versions {
			ingress := &networkingv1.Ingress{}
			if runtime.DefaultUnstructuredConverter.FromUnstructured(v.content, ingress) != nil {
				continue
			}
			for _, service := range servicesOf(ingress) {
				to := objectID{"", "services", id.namespace, service}
				if _, isRelated := r.related[to]; !isRelated {
					continue
				}
				r.relate(id, "Ingress", "routes to "+to.String())
				for _, tls := range ingress.Spec.TLS {
					r.relate(objectID{"", "secrets", id.namespace, tls.SecretName}, "Secret", "certificate of "+id.String())
				}
			}
		}
	}
	return nil
}

func servicesOf(ingress *networkingv1.Ingress) (names []string) {
	add := func(backend *networkingv1.IngressBackend) {
		if backend != nil && backend.Service != nil {
			names = append(names, backend.Service.Name)
		}
	}
	add(ingress.Spec.DefaultBackend)
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP != nil {
			for i := range rule.HTTP.Paths {
				add(&rule.HTTP.Paths[i].Backend)
			}
		}
	}
	return names
}

// relateByResource relates the changed objects that bear on all objects of the namespace or of the cluster, and the
// definitions of related custom resources.
func (r *timelineReader) relateByResource() {
	defines := map[string]string{}
	for id := range r.related {
		defines[id.resource+"."+id.group] = id.String()
	}
	defines[r.Object.Resource+"."+r.Object.Group] = r.Object.FullName()
	for id := range r.of {
		var why string
		switch {
		case id.namespace == "" && id.group == groupOf(admissionVersion):
			why = "checks or changes requests"
		case id.namespace == "" && id.resource == "customresourcedefinitions" && defines[id.name] != "":
			why = "defines " + defines[id.name]
		case id.namespace == "" && id.group == "" && id.resource == "namespaces" && id.name == r.Object.Namespace:
			why = "its namespace"
		case id.namespace != "" && id.group == "" && (id.resource == "resourcequotas" || id.resource == "limitranges"):
			why = "limits its namespace"
		default:
			continue
		}
		r.relate(id, r.kindOf(id), why)
	}
}
