package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"byre/apiserver/history"
	"byre/apiserver/storage/moment"
)

// Plan brings objects of a namespace back to what they were.
type Plan struct {
	// Steps are in the order in which they are to be made.
	Steps []*Step
	// LeftOut is what is not brought back, with the reason.
	LeftOut []string

	// owners has the UIDs of the objects by those that they had. An object that is to be created has
	// the one that it had until it is created, and is in pending.
	owners  map[types.UID]types.UID
	pending map[types.UID]bool
}

// Step is a request for one object of a plan.
type Step struct {
	Undelete
	// Verb is create, update, patch or delete.
	Verb string
	// Patch is what an update changes, or the patch, of the object or of its subresource status.
	Patch       []Operation
	subresource string
	// uid is that of the object as it is; of one that is to be created, the one that it had.
	uid             types.UID
	resourceVersion string
}

// Do makes the request of a step. It fails with ErrExists if the step has been left out. p is the plan of a step that
// creates or updates. dryRun has the server check the request and store nothing.
func (c *Client) Do(ctx context.Context, p *Plan, s *Step, dryRun bool) error {
	dry := dryRunOption(dryRun)
	switch s.Verb {
	case "delete":
		err := c.client(s.Object).Delete(ctx, s.Object.Name, metav1.DeleteOptions{
			DryRun: dry, Preconditions: &metav1.Preconditions{UID: &s.uid, ResourceVersion: &s.resourceVersion},
			// as kubectl: the default of some resources leaves what they own
			PropagationPolicy: new(metav1.DeletePropagationBackground),
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	case "patch":
		patch, err := json.Marshal(s.Patch)
		if err != nil {
			return err
		}
		var subresources []string
		if s.subresource == "status" {
			subresources = []string{"status"}
		}
		_, err = c.client(s.Object).Patch(ctx, s.Object.Name, types.JSONPatchType, patch,
			metav1.PatchOptions{DryRun: dry, FieldManager: manager}, subresources...)
		return err
	}
	owners := s.Content.GetOwnerReferences()
	for i := range owners {
		if p.pending[owners[i].UID] {
			return fmt.Errorf("its owner %s/%s does not exist", owners[i].Kind, owners[i].Name)
		}
		if uid, known := p.owners[owners[i].UID]; known {
			owners[i].UID = uid
		}
	}
	s.Content.SetOwnerReferences(owners)
	if s.Verb == "update" {
		_, err := c.client(s.Object).Update(ctx, s.Content, metav1.UpdateOptions{DryRun: dry, FieldManager: manager})
		return err
	}
	uid, err := c.Create(ctx, &s.Undelete, dryRun)
	if apierrors.IsAlreadyExists(err) { // as controllers do in a new namespace
		uid, err = c.replace(ctx, s, dry)
	}
	if err == nil {
		p.owners[s.uid] = uid
		delete(p.pending, s.uid)
	}
	return err
}

// ErrExists is the error for an object that is not created, because somebody else has done that.
var ErrExists = errors.New("somebody has created it meanwhile")

// replace makes the ServiceAccount default what a step would create, and returns its UID. Any other object it leaves
// out.
func (c *Client) replace(ctx context.Context, s *Step, dryRun []string) (types.UID, error) {
	now, err := c.client(s.Object).Get(ctx, s.Object.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !isMade(s.Object, now) {
		s.leaveOut("all of it", ErrExists.Error())
		return "", ErrExists
	}
	content := merge(s.Object.Resource.GroupResource(), s.Content, now)
	content.SetUID(now.GetUID())
	content.SetResourceVersion(now.GetResourceVersion())
	_, err = c.client(s.Object).Update(ctx, content, metav1.UpdateOptions{DryRun: dryRun, FieldManager: manager})
	return now.GetUID(), err
}

// sort puts owners before what they own, and what is referred to before what refers to it.
func (p *Plan) sort() {
	slices.SortStableFunc(p.Steps, func(a, b *Step) int {
		order := cmp.Compare(rank(a.Object.Resource.GroupResource()), rank(b.Object.Resource.GroupResource()))
		if a.Verb == "delete" {
			order = -order
		}
		return cmp.Or(slices.Index(verbs, a.Verb)-slices.Index(verbs, b.Verb), order,
			cmp.Compare(a.Object.String(), b.Object.String()))
	})
	created := map[types.UID]*Step{}
	for _, s := range p.Steps {
		if s.Verb == "create" {
			created[s.uid] = s
		}
	}
	var sorted []*Step
	visited := map[*Step]bool{}
	var visit func(*Step)
	visit = func(s *Step) {
		if visited[s] {
			return
		}
		visited[s] = true
		if s.Verb == "create" {
			for _, owner := range s.Content.GetOwnerReferences() {
				if owner := created[owner.UID]; owner != nil {
					visit(owner)
				}
			}
		}
		sorted = append(sorted, s)
	}
	for _, s := range p.Steps {
		visit(s)
	}
	p.Steps = sorted
}

var (
	verbs = []string{"create", "update", "delete"}
	// first is created before other resources, and last after them.
	first = []schema.GroupResource{
		{Resource: "namespaces"}, {Resource: "serviceaccounts"}, {Resource: "configmaps"}, {Resource: "secrets"},
		{Resource: "persistentvolumeclaims"}, {Group: "rbac.authorization.k8s.io", Resource: "roles"},
		{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
		{Group: "networking.k8s.io", Resource: "networkpolicies"},
		{Resource: "services"},
	}
	last = []schema.GroupResource{
		{Group: "apps", Resource: "daemonsets"}, {Group: "apps", Resource: "deployments"},
		{Group: "apps", Resource: "replicasets"},
		{Group: "apps", Resource: "statefulsets"}, {Resource: "replicationcontrollers"},
		{Group: "batch", Resource: "cronjobs"},
		{Group: "batch", Resource: "jobs"}, {Resource: "pods"}, {Resource: "limitranges"}, {Resource: "resourcequotas"},
	}
)

// rank is the place of a resource in the order of creation.
func rank(resource schema.GroupResource) int {
	if i := slices.Index(first, resource); i >= 0 {
		return i
	}
	return len(first) + 1 + slices.Index(last, resource)
}

// PlanRollback returns how the objects of the namespace that a selector selects, as they are or as they
// were, become again what they were at a moment. Prune deletes what was created since.
func (c *Client) PlanRollback(
	ctx context.Context, at moment.Moment, selector labels.Selector, prune bool,
) (*Plan, error) {
	r := newRecovery(c, at.Selector())
	if err := r.mayList(ctx, changesResource, c.namespace); err != nil {
		return nil, err
	}
	resources, err := r.resources()
	if err != nil {
		return nil, err
	}
	var expired []error
	for _, resource := range resources {
		if err := r.mayList(ctx, resource, c.namespace); apierrors.IsForbidden(err) {
			r.leaveOut(resource.GroupResource().String(), "you may not list them")
			continue
		} else if err != nil {
			return nil, err
		}
		err := r.read(ctx, resource)
		switch {
		case apierrors.IsResourceExpired(err) && resource == corev1.SchemeGroupVersion.WithResource("pods"):
			r.leaveOut("pods", err.Error())
		case apierrors.IsResourceExpired(err):
			expired = append(expired, err)
		case err != nil:
			return nil, err
		}
	}
	if err := errors.Join(expired...); err != nil {
		return nil, err
	}
	if err := r.leaveOutUndefined(ctx, resources); err != nil {
		return nil, err
	}
	matches := func(object *unstructured.Unstructured) bool {
		return object != nil && selector.Matches(labels.Set(object.GetLabels()))
	}
	return r.plan(ctx, func(o *changed) (*Step, error) {
		switch {
		case !matches(o.then) && !matches(o.now):
		case o.now == nil:
			return r.create(ctx, o)
		case o.then != nil:
			return r.update(ctx, o)
		case o.String() == "serviceaccounts/default": // every namespace has it
		case !prune:
			r.leaveOut(o.String(), "created since; --prune deletes it")
		default:
			return &Step{Verb: "delete", Undelete: Undelete{Object: o.Object}, uid: o.now.GetUID(),
				resourceVersion: o.now.GetResourceVersion()}, nil
		}
		return nil, nil //nolint:nilnil // nil is nothing to do
	})
}

// changed is an object that has changed since a moment: what it was then, and what it is; nil if it did
// not exist, or does not.
type changed struct {
	Object
	then, now *unstructured.Unstructured
}

// recovery makes a plan for the namespace of the Client. One goroutine uses it.
type recovery struct {
	*Client
	result *Plan
	// since and until are moments, as field selectors have them.
	since, until string
	objects      []*changed
	// names are those of the objects of a resource that have changed since, while it is read.
	names map[string]bool
	// present has of them those that exist, as they are, by name.
	present map[schema.GroupVersionResource]map[string]*unstructured.Unstructured
}

func newRecovery(c *Client, since string) *recovery {
	return &recovery{
		Client: c, since: since,
		result:  &Plan{owners: map[types.UID]types.UID{}, pending: map[types.UID]bool{}},
		names:   map[string]bool{},
		present: map[schema.GroupVersionResource]map[string]*unstructured.Unstructured{},
	}
}

func (r *recovery) leaveOut(what, why string) {
	r.result.LeftOut = append(r.result.LeftOut, what+" ("+why+")")
}

// resources returns the resources whose objects people write, in a namespace.
func (r *recovery) resources() (all []schema.GroupVersionResource, err error) {
	lists, err := discovery.ServerPreferredNamespacedResources(r.Client.resources)
	if discovery.IsGroupDiscoveryFailedError(err) {
		r.leaveOut("API groups", err.Error())
	} else if err != nil {
		return nil, err
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"create", "list", "update",
		"delete"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for i := range list.APIResources {
			resource := version.WithResource(list.APIResources[i].Name)
			if !slices.Contains(transient, resource.GroupResource()) {
				all = append(all, resource)
			}
		}
	}
	return all, nil
}

// transient are resources that controllers and nodes write.
var transient = []schema.GroupResource{
	{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}, {Group: "coordination.k8s.io", Resource: "leases"},
	{Resource: "endpoints"}, {Group: "discovery.k8s.io", Resource: "endpointslices"},
}

// leaveOutUndefined leaves out the custom resources that have changed, and whose definition was deleted since.
func (r *recovery) leaveOutUndefined(ctx context.Context, served []schema.GroupVersionResource) error {
	seen := map[schema.GroupResource]bool{}
	for i := range served {
		seen[served[i].GroupResource()] = true
	}
	var undefined []schema.GroupResource
	for definition, err := range r.Changes(ctx, Query{Namespace: metav1.NamespaceDefault, Fields: fields.Set{
		"object.group": "apiextensions.k8s.io", "object.resource": "customresourcedefinitions", "since": r.since,
	}}) {
		if apierrors.IsResourceExpired(err) || apierrors.IsForbidden(err) {
			return nil // the history does not tell, or not this user
		}
		if err != nil {
			return err
		}
		if resource := schema.ParseGroupResource(definition.Object.Name); !seen[resource] {
			seen[resource] = true
			undefined = append(undefined, resource)
		}
	}
	for _, resource := range undefined {
		first, err := r.firstChanges(ctx, resource)
		if err != nil && !apierrors.IsResourceExpired(err) {
			return err
		}
		if slices.ContainsFunc(first, func(c firstChange) bool { return c.replaces > 0 }) {
			r.leaveOut(resource.String(), "its definition does not exist any more: create it, and run this again")
		}
	}
	return nil
}

// firstChange is the first change of an object since the moment of a recovery.
type firstChange struct {
	name               string
	revision, replaces int64
}

// firstChanges returns the first change since of each object of a resource. It holds no more than that of the changes,
// which may be many for each object.
func (r *recovery) firstChanges(ctx context.Context, resource schema.GroupResource) (first []firstChange, err error) {
	seen := map[string]bool{}
	for change, err := range r.Changes(ctx, r.query(resource)) {
		if err != nil {
			return first, err
		}
		if name := change.Object.Name; !seen[name] {
			seen[name] = true
			first = append(first, firstChange{name, change.Revision, change.Replaces})
		}
	}
	return first, nil
}

// mayList fails if the user may not list a resource in a namespace, or in all if it is empty. Changes
// whose objects the user may not list are not in a list of changes.
func (r *recovery) mayList(ctx context.Context, resource schema.GroupVersionResource, namespace string) error {
	_, err := r.Client.objects.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) && resource == changesResource {
		return errNoChanges
	}
	return err
}

var changesResource = schema.GroupVersionResource{Group: history.GroupName, Version: "v1", Resource: "changes"}

// query selects the changes of a resource since.
func (r *recovery) query(resource schema.GroupResource) Query {
	q := Query{Namespace: r.namespace,
		Fields: fields.Set{"object.group": resource.Group, "object.resource": resource.Resource, "since": r.since}}
	if r.until != "" {
		q.Fields["until"] = r.until
	}
	return q
}

// read adds the objects of a resource that have changed since.
func (r *recovery) read(ctx context.Context, resource schema.GroupVersionResource) error {
	first, err := r.firstChanges(ctx, resource.GroupResource())
	if err != nil {
		return err
	}
	for _, change := range first {
		r.names[change.name] = true
	}
	defer clear(r.names)
	for _, change := range first {
		o := &changed{Object: Object{resource, r.namespace, change.name}}
		if o.then, err = r.before(ctx, change); errors.Is(err, errUnreadable) {
			r.leaveOut(o.String(), err.Error())
			continue
		} else if err != nil {
			return err
		}
		if o.then != nil { // a change has the version in which the object was stored
			o.Resource.Version = o.then.GroupVersionKind().Version
		}
		if o.now, err = r.get(ctx, o.Object); apierrors.IsNotFound(err) {
			r.leaveOut(o.String(),
				fmt.Sprintf("it was stored in the version %s, which is not served any more", o.Resource.Version))
			continue
		} else if err != nil {
			return err
		}
		if o.then != nil || o.now != nil {
			r.objects = append(r.objects, o)
		}
	}
	return nil
}

// before returns what an object was before a change; nil if it did not exist, or was being deleted.
func (r *recovery) before(ctx context.Context, first firstChange) (*unstructured.Unstructured, error) {
	if first.replaces == 0 {
		return nil, nil //nolint:nilnil // it did not exist
	}
	change, err := r.Change(ctx, r.namespace, first.revision)
	if err != nil {
		return nil, err
	}
	v, err := version(change.Replaces, change, change.Before)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{Object: v.Content}
	if v.Content == nil || object.GetDeletionTimestamp() != nil {
		return nil, nil //nolint:nilnil // as above
	}
	return object, nil
}

// get returns an object as it is; nil if it does not exist.
func (r *recovery) get(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	if all, read := r.present[o.Resource]; read {
		return all[o.Name], nil
	}
	all := map[string]*unstructured.Unstructured{}
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		list, err := r.client(o).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if object := list.Items[i]; r.names[object.GetName()] {
				all[object.GetName()] = &object // not of the page, which is forgotten
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	r.present[o.Resource] = all
	return all[o.Name], nil
}

// plan returns the steps of the objects that people write.
func (r *recovery) plan(ctx context.Context, stepOf func(*changed) (*Step, error)) (*Plan, error) {
	controlled := 0
	r.objects = slices.DeleteFunc(r.objects, func(o *changed) bool {
		isControlled := false
		for _, object := range []*unstructured.Unstructured{o.then, o.now} {
			if object == nil {
				continue
			}
			isControlled = isControlled || metav1.GetControllerOfNoCopy(object) != nil
			if isAutomatic(o.Object, object) {
				return true
			}
		}
		if isControlled {
			controlled++
			return true
		}
		if o.now != nil && o.now.GetDeletionTimestamp() != nil {
			r.leaveOut(o.String(), "it is being deleted")
			return true
		}
		return false
	})
	if controlled > 0 {
		r.leaveOut(fmt.Sprintf("%d objects that controllers own", controlled),
			"their controllers create, update and delete them")
	}
	for _, o := range r.objects {
		switch {
		case o.then == nil:
		case o.now != nil:
			r.result.owners[o.then.GetUID()] = o.now.GetUID()
		default:
			r.result.owners[o.then.GetUID()] = o.then.GetUID()
			r.result.pending[o.then.GetUID()] = true
		}
	}
	for _, o := range r.objects {
		step, err := stepOf(o)
		if err != nil {
			return nil, err
		}
		if step != nil {
			r.result.Steps = append(r.result.Steps, step)
		}
	}
	r.result.sort()
	slices.Sort(r.result.LeftOut) // discovery has no order
	return r.result, ctx.Err()
}

// isAutomatic reports whether the control plane makes an object for each namespace or ServiceAccount.
func isAutomatic(o Object, object *unstructured.Unstructured) bool {
	if o.String() == "secrets/"+o.Name {
		kind, _, _ := unstructured.NestedString(object.Object, "type")
		return kind == string(corev1.SecretTypeServiceAccountToken)
	}
	return o.String() == "configmaps/kube-root-ca.crt"
}

// create returns the step that creates an object again.
func (r *recovery) create(ctx context.Context, o *changed) (*Step, error) {
	s := &Step{Verb: "create", Undelete: Undelete{Object: o.Object, Content: o.then}, uid: o.then.GetUID()}
	return s, r.prepare(ctx, &s.Undelete, r.result.owners)
}

// isMade reports whether an object is a ServiceAccount default as the controller makes it in each namespace.
func isMade(o Object, object *unstructured.Unstructured) bool {
	return o.Resource.GroupResource() == schema.GroupResource{Resource: "serviceaccounts"} && o.Name == "default" &&
		len(object.Object) == 3 /* apiVersion, kind and metadata */ &&
		len(object.GetLabels())+len(object.GetAnnotations()) == 0
}

// update returns the step that makes an object what it was; nil if it is that.
func (r *recovery) update(ctx context.Context, o *changed) (*Step, error) {
	now := o.now.DeepCopy()
	now.SetManagedFields(nil)
	s := &Step{Verb: "update",
		Undelete: Undelete{Object: o.Object, Content: merge(o.Resource.GroupResource(), o.then, now)}, uid: now.GetUID()}
	if err := r.resolveOwners(ctx, &s.Undelete, r.result.owners); err != nil {
		return nil, err
	}
	of, err := r.typeOf(o.then.Object)
	if err != nil {
		return nil, err
	}
	s.Patch = differences(of, strip(now.Object), s.Content.Object)
	if len(s.Patch) == 0 {
		return nil, nil //nolint:nilnil // nothing to do
	}
	s.Content.SetUID(now.GetUID())
	s.Content.SetResourceVersion(now.GetResourceVersion())
	return s, nil
}

// merge returns an object as it was, with the fields of the present one that belong to that.
func merge(resource schema.GroupResource, then, now *unstructured.Unstructured) *unstructured.Unstructured {
	merged := (&unstructured.Unstructured{Object: strip(then.Object)}).DeepCopy()
	for _, path := range slices.Concat(instanceFields(resource, then.Object), [][]string{{"metadata", "finalizers"}},
		bound[resource]) {
		unstructured.RemoveNestedField(merged.Object, path...)
		if value, exists, _ := unstructured.NestedFieldCopy(now.Object, path...); exists {
			// what has no such parent is sent without it, and the server judges it
			_ = unstructured.SetNestedField(merged.Object, value, path...)
		}
	}
	for _, path := range addresses[resource] {
		old, existed, _ := unstructured.NestedFieldNoCopy(then.Object, path...)
		value, exists, _ := unstructured.NestedFieldCopy(now.Object, path...)
		if existed && exists && isHeadless(old) == isHeadless(value) {
			_ = unstructured.SetNestedField(merged.Object, value, path...) // its parent is there
		}
	}
	return merged
}

// bound are fields that a controller sets once.
var bound = map[schema.GroupResource][][]string{
	{Resource: "persistentvolumeclaims"}: {{"spec", "volumeName"}},
}

func isHeadless(address any) bool {
	return slices.Contains([]string{corev1.ClusterIPNone, "[" + corev1.ClusterIPNone + "]"}, fmt.Sprint(address))
}
