package history

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"byre/apiserver/storage/moment"
)

// Timeline selects what may have changed an object's behaviour: the changes of the object and of those that bear on it,
// their Events, and the conditions of their status.
type Timeline struct {
	// Object is the object, with its Kind; it need not exist any more. APIVersion is one in which it is served.
	Object     ObjectReference
	APIVersion string
	// Since is the time after which the changes were made, and Until the one up to which; a zero one sets no bound.
	Since, Until time.Time
	// All has a row for each change and each Event. Else what controllers write is counted in the row of the change
	// before it that somebody else has made.
	All bool
}

// Incident is what a Timeline has found.
type Incident struct {
	// Rows have the newest first.
	Rows []Row `json:"rows"`
	// NotAsked are the resources that the user may not list, so that no row is of them.
	NotAsked []string `json:"notAsked,omitempty"`
	// Incomplete says why there may be more rows.
	Incomplete []string `json:"incomplete,omitempty"`
}

// Row is one change, or several that are alike.
type Row struct {
	Time time.Time `json:"time"`
	// First is the time of the first one, if there are several. Of an Event it may lack.
	First    *time.Time `json:"first,omitempty"`
	Revision int64      `json:"revision,omitempty"`
	// Who is the user; of a fight the users; of an Event its reporter.
	Who string `json:"who"`
	// Verb is that of the request, or event, condition, or fight: users who set fields to and fro.
	Verb    string          `json:"verb"`
	Object  ObjectReference `json:"object"`
	Changed []FieldChange   `json:"changed,omitempty"`
	// What says in words what has changed.
	What string `json:"what,omitempty"`
	// Why is the relation of the object of the row to that of the Timeline.
	Why string `json:"why"`
	// Count is how many changes or Events the row stands for, and Folded how many changes by controllers followed.
	Count  int `json:"count"`
	Folded int `json:"folded,omitempty"`
}

const (
	// mostOfTimeline bounds the changes that a Timeline reads of the namespace, and of cluster-scoped objects.
	mostOfTimeline = 10_000
	// mostWhole bounds the changes that are read one by one, with the object before and after.
	mostWhole = 300
)

// IsController reports whether a user is a part of the cluster: a controller, the scheduler, a node, or the server.
func IsController(user string) bool {
	return slices.ContainsFunc([]string{"system:serviceaccount:kube-system:", "system:kube-", "system:node:",
		"system:apiserver", "system:byre"}, func(prefix string) bool { return strings.HasPrefix(user, prefix) })
}

// Read reads the changes with the rights of get. What its user may not list is left out.
func (t *Timeline) Read(get Get) (*Incident, error) {
	r := &timelineReader{
		Timeline: t, get: get, incident: &Incident{Rows: []Row{}}, of: map[objectID][]*Change{},
		now: map[objectID]map[string]any{}, wholes: map[int64]*Change{}, versions: map[objectID][]version{},
		related: map[objectID]relation{},
	}
	for _, step := range []func() error{r.readChanges, r.readObjects, r.relateAll, r.readRows} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r.incident, nil
}

// objectID names an object, whatever versions and kinds serve it.
type objectID struct{ group, resource, namespace, name string }

func idOf(o *ObjectReference) objectID { return objectID{o.Group, o.Resource, o.Namespace, o.Name} }

func (id objectID) String() string {
	return (&ObjectReference{Group: id.group, Resource: id.resource, Name: id.name}).FullName()
}

// version is what an object is, or was in the window.
type version struct {
	content map[string]any
	isNow   bool
}

// timelineReader is one Read.
type timelineReader struct {
	*Timeline
	get      Get
	incident *Incident
	// changes are those of the window, the newest first, and of has them by object.
	changes []*Change
	of      map[objectID][]*Change
	// now has the objects that were listed or got; nil for one that does not exist.
	now      map[objectID]map[string]any
	wholes   map[int64]*Change
	versions map[objectID][]version
	related  map[objectID]relation
}

// ofCluster names changes that the user may not list.
const ofCluster = "changes of cluster-scoped objects"

// silent are the resources whose changes tell nothing that Events and conditions do not.
var silent = []string{"events", "leases", "endpoints", "endpointslices", "ipaddresses", "controllerrevisions"}

// readChanges reads the changes of the window.
func (r *timelineReader) readChanges() error {
	selectors := []fields.Selector{fields.OneTermNotEqualSelector("subresource", "-")} // those of the status too
	for _, name := range silent {
		selectors = append(selectors, fields.OneTermNotEqualSelector("object.resource", name))
	}
	search := Search{Selector: fields.AndSelectors(selectors...), Limit: mostOfTimeline,
		Since: moment.Moment{Time: r.Since}, Until: moment.Moment{Time: r.Until}}
	scopes := []string{r.Object.Namespace}
	if r.Object.Namespace != "" {
		scopes = append(scopes, "")
	}
	for _, namespace := range scopes {
		if namespace == "" { // the server shows these only to users who may list changes in all namespaces
			if ok, err := r.mayList(Path(""), ofCluster); err != nil {
				return err
			} else if !ok {
				continue
			}
		}
		search.Namespace = ShownIn(namespace)
		search.Keep = func(c *Change) bool { return c.Object.Namespace == namespace }
		found, more, missing, err := search.Newest(r.get)
		if err != nil {
			return err
		}
		if more {
			r.incomplete(fmt.Sprintf("only the newest %d changes of %s were read", mostOfTimeline,
				cmp.Or(namespace, "the cluster")))
		}
		if missing != nil {
			r.incomplete(missing.Error())
		}
		for i := range found {
			r.changes = append(r.changes, &found[i])
			id := idOf(&found[i].Object)
			r.of[id] = append(r.of[id], &found[i])
		}
	}
	slices.SortFunc(r.changes, func(a, b *Change) int { return cmp.Compare(b.Revision, a.Revision) })
	return nil
}

func (r *timelineReader) incomplete(why string) {
	if !slices.Contains(r.incident.Incomplete, why) {
		r.incident.Incomplete = append(r.incident.Incomplete, why)
	}
}

// mayList reports whether the user may list what is at a path. If not, it notes the name.
func (r *timelineReader) mayList(path, name string) (bool, error) {
	return r.allowed(r.get(path, url.Values{"limit": {"1"}}, new(struct{})), name)
}

// allowed turns the error of a request into whether there is something to read.
func (r *timelineReader) allowed(err error, name string) (bool, error) {
	switch {
	case apierrors.IsForbidden(err):
		if !slices.Contains(r.incident.NotAsked, name) {
			r.incident.NotAsked = append(r.incident.NotAsked, name)
		}
		return false, nil
	case apierrors.IsNotFound(err): // it is not served
		return false, nil
	}
	return err == nil, err
}

// asked are the resources of which rows can be. Those that isListed are read, because they relate others to the object;
// of the others the changes suffice.
var asked = []struct {
	apiVersion, kind, resource string
	isListed, isOfCluster      bool
}{
	{"v1", "Pod", "pods", true, false},
	{"v1", "Service", "services", true, false},
	{"apps/v1", "Deployment", "deployments", true, false},
	{"apps/v1", "ReplicaSet", "replicasets", true, false},
	{"apps/v1", "StatefulSet", "statefulsets", true, false},
	{"apps/v1", "DaemonSet", "daemonsets", true, false},
	{"batch/v1", "CronJob", "cronjobs", true, false},
	{"batch/v1", "Job", "jobs", true, false},
	{"networking.k8s.io/v1", "Ingress", "ingresses", true, false},
	{"networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", false, false},
	{"policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", false, false},
	{"autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", false, false},
	{"v1", "ConfigMap", "configmaps", false, false},
	{"v1", "Secret", "secrets", false, false},
	{"v1", "PersistentVolumeClaim", "persistentvolumeclaims", false, false},
	{"v1", "ServiceAccount", "serviceaccounts", false, false},
	{"v1", "ResourceQuota", "resourcequotas", false, false},
	{"v1", "LimitRange", "limitranges", false, false},
	{"v1", "Node", "nodes", false, true},
	{"v1", "Namespace", "namespaces", false, true},
	{"apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false, true},
	{admissionVersion, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false, true},
	{admissionVersion, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false, true},
	{admissionVersion, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false, true},
	{admissionVersion, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false, true},
}

const admissionVersion = "admissionregistration.k8s.io/v1"

// groupOf returns the group of an apiVersion.
func groupOf(apiVersion string) string { return schema.FromAPIVersionAndKind(apiVersion, "").Group }

// resourcePath is the path of the objects of a resource; an empty namespace means those of the cluster.
func resourcePath(apiVersion, namespace, resource string) string {
	path := "/apis/" + apiVersion
	if groupOf(apiVersion) == "" {
		path = "/api/" + apiVersion
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + resource
}

// readObjects reads the object, and those that may be related to it.
func (r *timelineReader) readObjects() error {
	target := idOf(&r.Object)
	if err := r.readObject(target, r.APIVersion); err != nil {
		return err
	}
	if r.now[target] == nil && len(r.of[target]) == 0 {
		last := Search{Namespace: ShownIn(r.Object.Namespace), Limit: 1, Selector: fields.Set{
			"object.group": target.group, "object.resource": target.resource, "object.name": target.name}.AsSelector()}
		found, _, _, err := last.Newest(r.get)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("%s does not exist, and the history has no version of it", target)
		}
		r.of[target] = []*Change{&found[0]}
	}
	for i := range asked {
		a := &asked[i]
		namespace := r.Object.Namespace
		if a.isOfCluster {
			namespace = ""
		} else if namespace == "" {
			continue
		}
		path, name := resourcePath(a.apiVersion, namespace, a.resource),
			schema.GroupResource{Group: groupOf(a.apiVersion), Resource: a.resource}.String()
		switch {
		case a.isOfCluster && slices.Contains(r.incident.NotAsked, ofCluster):
		case !a.isListed:
			if _, err := r.mayList(path, name); err != nil {
				return err
			}
		default:
			err := r.list(path, "", func(content map[string]any) {
				r.now[objectID{groupOf(a.apiVersion), a.resource, namespace, nested[string](content, "metadata", "name")}] = content
			})
			if _, err := r.allowed(err, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// readObject reads an object as it is.
func (r *timelineReader) readObject(id objectID, apiVersion string) error {
	var content rawObject
	err := r.get(resourcePath(apiVersion, id.namespace, id.resource)+"/"+id.name, nil, &content)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	r.now[id] = content.object
	return err
}

// rawObject decodes an object with integers as clients of Kubernetes have them.
type rawObject struct{ object map[string]any }

// UnmarshalJSON implements json.Unmarshaler.
func (o *rawObject) UnmarshalJSON(data []byte) error { return utiljson.Unmarshal(data, &o.object) }

// list calls f for each object at a path that a field selector selects.
func (r *timelineReader) list(path, selector string, f func(map[string]any)) error {
	for query := (url.Values{"limit": {strconv.Itoa(mostPerRequest)}, "fieldSelector": {selector}}); ; {
		var page struct {
			Metadata struct{ Continue string }
			Items    []rawObject
		}
		if err := r.get(path, query, &page); err != nil {
			return err
		}
		for i := range page.Items {
			f(page.Items[i].object)
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// ends returns the object before and after a change; neither if the change is gone, or if too many were read.
func (r *timelineReader) ends(c *Change) (before, after map[string]any, err error) {
	got, isRead := r.wholes[c.Revision]
	if !isRead {
		if len(r.wholes) == mostWhole {
			r.incomplete(fmt.Sprintf("only %d changes were read with their objects: some relations and conditions may lack", mostWhole))
			return nil, nil, nil
		}
		got = &Change{}
		err = r.get(Path(ShownIn(c.Object.Namespace))+"/"+strconv.FormatInt(c.Revision, 10), nil, got)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsResourceExpired(err) {
			return nil, nil, err
		}
		r.wholes[c.Revision] = got
	}
	if before, err = Decode(got.Before); err == nil {
		after, err = Decode(got.After)
	}
	return before, after, err
}

// versionsOf returns an object as it is, and as it was at both ends of its changes in the window, the newest first.
func (r *timelineReader) versionsOf(id objectID) ([]version, error) {
	if known, found := r.versions[id]; found {
		return known, nil
	}
	var found []version
	now, of := r.now[id], r.of[id]
	if now != nil {
		found = append(found, version{now, true})
	}
	if id.resource == "pods" && id != idOf(&r.Object) { // what they name, and where they run, does not change
		of = of[:min(len(of), 1)]
		if now != nil {
			of = nil
		}
	}
	for i, c := range of {
		if isNewest, isOldest := i == 0, i == len(of)-1; !isOldest && (!isNewest || now != nil) {
			continue
		}
		before, after, err := r.ends(c)
		if err != nil {
			return nil, err
		}
		if after != nil {
			found = append(found, version{after, now == nil && i == 0})
		}
		if before != nil {
			found = append(found, version{before, false})
		}
	}
	r.versions[id] = found
	return found, nil
}

// nested returns the value at a path of an object, or the zero one.
func nested[T any](content map[string]any, path ...string) (value T) {
	var at any = content
	for _, name := range path {
		object, _ := at.(map[string]any)
		at = object[name]
	}
	value, _ = at.(T)
	return value
}

// readEvents adds rows for the Events of related objects.
func (r *timelineReader) readEvents(add func(Row, string)) error {
	type name struct{ kind, namespace, name string }
	objects := map[name]objectID{}
	for id, relation := range r.related {
		objects[name{relation.kind, id.namespace, id.name}] = id
	}
	for i, scope := range []struct{ namespace, selector, name string }{
		{r.Object.Namespace, "", "events"}, {"", "involvedObject.kind=Node", "events of nodes"},
	} {
		if i > 0 && (r.Object.Namespace == "" || slices.Contains(r.incident.NotAsked, ofCluster)) {
			break // they were read, or no Node is shown
		}
		err := r.list(resourcePath("v1", ShownIn(scope.namespace), "events"), scope.selector, func(event map[string]any) {
			involved := func(field string) string { return nested[string](event, "involvedObject", field) }
			id, isRelated := objects[name{involved("kind"), involved("namespace"), involved("name")}]
			at := eventTime(event)
			if !isRelated || id.namespace != scope.namespace || !at.After(r.Since) || !r.Until.IsZero() && at.After(r.Until) ||
				!r.All && nested[string](event, "type") != corev1.EventTypeWarning {
				return
			}
			reason := nested[string](event, "reason")
			row := Row{
				Time: at, Verb: "event", Object: r.reference(id), Why: r.related[id].why,
				Who:   cmp.Or(nested[string](event, "source", "component"), nested[string](event, "reportingComponent")),
				What:  reason + ": " + nested[string](event, "message"),
				Count: max(1, int(nested[int64](event, "count")), int(nested[int64](event, "series", "count"))),
			}
			if first, err := time.Parse(time.RFC3339, nested[string](event, "firstTimestamp")); err == nil && row.Count > 1 {
				row.First = &first
			}
			add(row, "event "+id.resource+" "+reason)
		})
		if _, err := r.allowed(err, scope.name); err != nil {
			return err
		}
	}
	return nil
}

// eventTime is when an Event was last seen.
func eventTime(event map[string]any) (last time.Time) {
	for _, path := range [][]string{{"series", "lastObservedTime"}, {"lastTimestamp"}, {"eventTime"},
		{"metadata", "creationTimestamp"}} {
		if at, err := time.Parse(time.RFC3339Nano, nested[string](event, path...)); err == nil {
			return at
		}
	}
	return last
}
