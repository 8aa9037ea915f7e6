package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// admin is the user of a request that names none. Nobody refuses it anything.
const admin = "admin"

// Kind is a kind of objects, and its resource.
type Kind struct {
	schema.GroupVersion
	Resource, Kind string
	// IsCluster is true for a resource without namespaces, and IsCustom for one of a CustomResourceDefinition.
	IsCluster, IsCustom bool
}

var kinds = []Kind{
	{schema.GroupVersion{Version: "v1"}, "namespaces", "Namespace", true, false},
	{schema.GroupVersion{Version: "v1"}, "configmaps", "ConfigMap", false, false},
	{schema.GroupVersion{Version: "v1"}, "secrets", "Secret", false, false},
	{schema.GroupVersion{Version: "v1"}, "serviceaccounts", "ServiceAccount", false, false},
	{schema.GroupVersion{Version: "v1"}, "services", "Service", false, false},
	{schema.GroupVersion{Version: "v1"}, "pods", "Pod", false, false},
	{schema.GroupVersion{Group: "apps", Version: "v1"}, "deployments", "Deployment", false, false},
	{schema.GroupVersion{Group: "batch", Version: "v1"}, "jobs", "Job", false, false},
	{schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, "customresourcedefinitions",
		"CustomResourceDefinition", true, false},
	{schema.GroupVersion{Group: "example.com", Version: "v1"}, "gears", "Gear", false, true},
}

var shortNames = map[string][]string{"configmaps": {"cm"}, "services": {"svc"}, "deployments": {"deploy"}}

// fakeCluster is a cluster in memory. It is an http.Handler and a RoundTripper. The resource changes is the server's
// own (apiserver/history) over the model of a store; the objects have what the verbs of this package rely on:
// preconditions, dry runs, finalizers, JSON patches, and namespaces that must exist. There are no defaults, no
// validation and no controllers.
type fakeCluster struct {
	// Allow, if set, says whether a user may do a verb to the objects of a resource in a namespace, or in all if it is
	// empty.
	Allow func(who, verb, resource, namespace string) bool
	// BeforeWrite, if set, is called before each request that writes; the request fails with its error.
	BeforeWrite func(verb string, object *unstructured.Unstructured) error
	// Requests counts the requests that write, but for dry runs.
	Requests int

	mu      sync.Mutex
	model   *driver
	history *history.Storage
	uids    int
}

// driver is a model that Reset replaces.
type driver struct{ *storetest.Model }

// newFakeCluster returns a cluster with the namespaces default and shop, and the definition of gears.
func newFakeCluster() *fakeCluster {
	c := &fakeCluster{model: &driver{}}
	log := &changes.Log{Driver: c.model, Authorizer: c, Prefix: func(of sqlstore.Resource) string { return of.Resource }}
	c.Reset()
	c.history = history.New(history.Config{Log: log, Feed: watch.New(c.model, watch.Options{})})
	return c
}

// Reset makes the cluster what newFakeCluster returns.
func (c *fakeCluster) Reset() {
	c.model.Model = storetest.NewModel()
	begin := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	c.model.Clock = func() time.Time { // each change has a second of its own
		begin = begin.Add(time.Second)
		return begin
	}
	c.Requests, c.uids = 0, 0
	for _, name := range []string{"default", "shop"} {
		c.Must(c.Create(admin, c.Object("namespaces", "", name, nil)))
	}
	c.Must(c.Create(admin, c.Object("customresourcedefinitions", "", "gears.example.com", nil)))
}

// Must panics if a write of a test has failed.
func (*fakeCluster) Must(o *unstructured.Unstructured, err error) *unstructured.Unstructured {
	if err != nil {
		panic(err)
	}
	return o
}

// Config is the configuration of a client without a limit of its rate. who is the user; empty means admin.
func (c *fakeCluster) Config(who string) *rest.Config {
	config := &rest.Config{Host: "http://cluster", Transport: c, RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()}
	config.Impersonate.UserName = who
	return config
}

// Revision is the last revision.
func (c *fakeCluster) Revision() int64 {
	state, _ := c.model.State(context.Background()) // a model does not fail
	return state.Revision
}

// DeleteHistory deletes the changes of a resource up to a revision, as retention does.
func (c *fakeCluster) DeleteHistory(resource string, upTo int64) {
	k := kindOf(resource)
	// as above
	_, _, _ = c.model.DeleteHistory(context.Background(),
		sqlstore.Deletion{Of: k.key("", "").Of(), UpTo: upTo, Limit: 1 << 30})
}

// Object makes an object; content are its members beside the metadata.
func (c *fakeCluster) Object(resource, namespace, name string, content map[string]any) *unstructured.Unstructured {
	k := kindOf(resource)
	o := &unstructured.Unstructured{Object: map[string]any{}}
	maps.Copy(o.Object, content)
	o.SetGroupVersionKind(k.WithKind(k.Kind))
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

func kindOf(resource string) *Kind {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Resource == resource })
	return &kinds[i]
}

func (k *Kind) key(namespace, name string) sqlstore.Key {
	key := sqlstore.Key{Group: k.Group, Resource: k.Resource, Namespace: namespace, Name: name}
	if k.IsCustom {
		key.Owner = sqlstore.Custom
	}
	return key
}

func (k *Kind) resource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// Get returns an object; nil if it does not exist.
func (c *fakeCluster) Get(resource, namespace, name string) *unstructured.Unstructured {
	o, _ := c.get(kindOf(resource), namespace, name) // nil with an error
	return o
}

func (c *fakeCluster) get(k *Kind, namespace, name string) (*unstructured.Unstructured, error) {
	record, _, err := c.model.Get(context.Background(), k.key(namespace, name))
	if err != nil {
		return nil, apierrors.NewNotFound(k.resource(), name)
	}
	return decode(record), nil
}

func decode(record sqlstore.Record) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(record.Value); err != nil {
		panic(err)
	}
	o.SetResourceVersion(strconv.FormatInt(record.Revision, 10))
	return o
}

// List returns the objects of a resource in a namespace, or in all if it is empty, in the order of their names.
func (c *fakeCluster) List(resource, namespace string) []*unstructured.Unstructured {
	of := kindOf(resource).key("", "")
	var all []*unstructured.Unstructured
	_, _ = c.model.List(context.Background(),
		sqlstore.Query{Range: sqlstore.Range{Group: of.Group, Resource: of.Resource, Owner: of.Owner, Namespace: namespace}},
		func(r sqlstore.Record) error {
			all = append(all, decode(r))
			return nil
		}) // a model does not fail
	return all
}

// Create writes as a user, as a request with this verb does; so do Update and Delete.
func (c *fakeCluster) Create(who string, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return c.create(&sqlstore.Author{User: who, Verb: "create"}, o, false)
}

// Update replaces an object, of a revision if it has one.
func (c *fakeCluster) Update(author sqlstore.Author, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return c.update(&author, o, false)
}

// Delete deletes an object, or begins to, if it has finalizers.
func (c *fakeCluster) Delete(who, resource, namespace, name string) error {
	return c.delete(&sqlstore.Author{User: who, Verb: "delete"}, kindOf(resource), namespace, name,
		&metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
}

// DeleteNamespace deletes a namespace as its controller does: it is marked, then its objects go, and then itself.
func (c *fakeCluster) DeleteNamespace(name string) {
	o := c.Get("namespaces", "", name)
	now := metav1.NewTime(c.model.Clock())
	o.SetDeletionTimestamp(&now)
	c.Must(c.update(&sqlstore.Author{User: admin, Verb: "delete"}, o, false))
	for _, k := range kinds {
		if k.IsCluster {
			continue
		}
		for _, o := range c.List(k.Resource, name) {
			o.SetFinalizers(nil)
			c.write(&sqlstore.Author{User: "namespace-controller", Verb: "deletecollection"}, sqlstore.Delete, &k, o)
		}
	}
	c.write(&sqlstore.Author{User: "namespace-controller", Verb: "update"}, sqlstore.Delete, kindOf("namespaces"),
		c.Get("namespaces", "", name))
}

func (c *fakeCluster) create(
	author *sqlstore.Author, o *unstructured.Unstructured, dryRun bool,
) (*unstructured.Unstructured, error) {
	k, o := ofObject(o), o.DeepCopy()
	if c.BeforeWrite != nil {
		if err := c.BeforeWrite("create", o); err != nil {
			return nil, err
		}
	}
	if !k.IsCluster && c.Get("namespaces", "", o.GetNamespace()) == nil {
		return nil, apierrors.NewNotFound(kindOf("namespaces").resource(), o.GetNamespace())
	}
	if c.Get(k.Resource, o.GetNamespace(), o.GetName()) != nil {
		return nil, apierrors.NewAlreadyExists(k.resource(), o.GetName())
	}
	c.uids++
	o.SetUID(types.UID(fmt.Sprintf("uid-%d", c.uids)))
	o.SetCreationTimestamp(metav1.NewTime(c.model.Clock()))
	o.SetDeletionTimestamp(nil)
	if dryRun {
		return o, nil
	}
	return c.write(author, sqlstore.Create, k, o), nil
}

func ofObject(o *unstructured.Unstructured) *Kind {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.WithKind(k.Kind) == o.GroupVersionKind() })
	return &kinds[i]
}

func (c *fakeCluster) update(
	author *sqlstore.Author, o *unstructured.Unstructured, dryRun bool,
) (*unstructured.Unstructured, error) {
	k, o := ofObject(o), o.DeepCopy()
	if c.BeforeWrite != nil {
		if err := c.BeforeWrite("update", o); err != nil {
			return nil, err
		}
	}
	now, err := c.get(k, o.GetNamespace(), o.GetName())
	if err != nil {
		return nil, err
	}
	if version := o.GetResourceVersion(); version != "" && version != now.GetResourceVersion() || o.GetUID() != "" &&
		o.GetUID() != now.GetUID() {
		return nil, apierrors.NewConflict(k.resource(), o.GetName(), errors.New("it has been changed"))
	}
	o.SetUID(now.GetUID())
	o.SetCreationTimestamp(now.GetCreationTimestamp())
	if deleted := now.GetDeletionTimestamp(); deleted != nil {
		o.SetDeletionTimestamp(deleted)
	}
	switch {
	case dryRun:
		return o, nil
	case o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && k.Resource != "namespaces":
		return c.write(author, sqlstore.Delete, k, o), nil
	}
	o.SetResourceVersion(now.GetResourceVersion())
	return c.write(author, sqlstore.Update, k, o), nil
}

func (c *fakeCluster) delete(
	author *sqlstore.Author, k *Kind, namespace, name string, options *metav1.DeleteOptions,
) error {
	now, err := c.get(k, namespace, name)
	if err != nil {
		return err
	}
	if c.BeforeWrite != nil {
		if err := c.BeforeWrite("delete", now); err != nil {
			return err
		}
	}
	if p := options.Preconditions; p != nil &&
		(p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil &&
			*p.ResourceVersion != now.GetResourceVersion()) {
		return apierrors.NewConflict(k.resource(), name, errors.New("it has been changed"))
	}
	if len(options.DryRun) > 0 {
		return nil
	}
	if k.Resource == "jobs" && options.PropagationPolicy == nil { // the default of Jobs leaves their Pods
		now.SetFinalizers(append(now.GetFinalizers(), metav1.FinalizerOrphanDependents))
	}
	if len(now.GetFinalizers()) == 0 {
		c.write(author, sqlstore.Delete, k, now)
		return nil
	}
	if now.GetDeletionTimestamp() == nil {
		deleted := metav1.NewTime(c.model.Clock())
		now.SetDeletionTimestamp(&deleted)
		c.write(author, sqlstore.Update, k, now)
	}
	return nil
}

// write commits a change. Of an Update and a Delete, o is of the revision that is now.
func (c *fakeCluster) write(
	author *sqlstore.Author, op sqlstore.Op, k *Kind, o *unstructured.Unstructured,
) *unstructured.Unstructured {
	c.Requests++
	w := sqlstore.Write{Op: op, Key: k.key(o.GetNamespace(), o.GetName()), UID: string(o.GetUID()), Author: *author}
	if op != sqlstore.Create {
		w.Replaces, _ = strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	}
	stored := o.DeepCopy()
	stored.SetResourceVersion("")
	value, err := stored.MarshalJSON()
	if err != nil {
		panic(err)
	}
	if w.Value = value; op == sqlstore.Delete {
		w.Value = nil
	}
	outcomes, err := c.model.Commit(context.Background(), []sqlstore.Write{w})
	if err = errors.Join(err, outcomes[0].Err); err != nil {
		panic(err)
	}
	o.SetResourceVersion(strconv.FormatInt(outcomes[0].Revision, 10))
	return o
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (c *fakeCluster) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if c.allows(a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetNamespace()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (c *fakeCluster) allows(who, verb, resource, namespace string) bool {
	return who == admin || c.Allow == nil || c.Allow(who, verb, resource, namespace)
}

// RoundTrip implements http.RoundTripper.
func (c *fakeCluster) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Result(), nil
}

// ServeHTTP implements http.Handler.
func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := http.StatusOK
	answer, err := c.answer(r)
	if err != nil {
		var failed apierrors.APIStatus
		if !errors.As(err, &failed) {
			failed = apierrors.NewInternalError(err)
		}
		failure := failed.Status()
		failure.Kind, failure.APIVersion = "Status", "v1"
		answer, status = &failure, int(failure.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// target is what the path of a request names.
type target struct {
	*Kind
	namespace, name, subresource string
}

// answer answers a request: of discovery, of changes, or of objects.
func (c *fakeCluster) answer(r *http.Request) (any, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case parts[0] == "api" && len(parts) == 1:
		return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}, nil
	case parts[0] == "apis" && len(parts) == 1:
		return c.groups(), nil
	case parts[0] == "api":
		gv, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case parts[0] == "apis" && len(parts) > 2:
		gv, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	}
	if len(parts) == 0 {
		return c.resources(gv), nil
	}
	at := target{}
	if parts[0] == "namespaces" && len(parts) > 2 {
		at.namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{1: &at.name, 2: &at.subresource} {
		if i > 0 && i < len(parts) {
			*to = parts[i]
		}
	}
	who := r.Header.Get("Impersonate-User")
	author := sqlstore.Author{User: who, RealUser: admin, Manager: r.URL.Query().Get("fieldManager"),
		Subresource: at.subresource}
	if who == "" {
		author.User, author.RealUser = admin, ""
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	if verb == "get" && at.name == "" {
		verb = "list"
	}
	author.Verb = verb
	if !c.allows(author.User, verb, parts[0], at.namespace) {
		return nil,
			apierrors.NewForbidden(schema.GroupResource{Group: gv.Group, Resource: parts[0]}, at.name,
				fmt.Errorf("%s may not %s", author.User, verb))
	}
	if gv.Group == history.GroupName {
		return c.changes(r, author.User, &at)
	}
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.GroupVersion == gv && k.Resource == parts[0] })
	if i < 0 || !c.isServed(&kinds[i]) {
		return nil,
			&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound,
				Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource"}}
	}
	at.Kind = &kinds[i]
	return c.request(r, &author, &at)
}

func (c *fakeCluster) isServed(k *Kind) bool {
	return !k.IsCustom || c.Get("customresourcedefinitions", "", k.Resource+"."+k.Group) != nil
}

func (c *fakeCluster) groups() *metav1.APIGroupList {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, gv := range []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "batch", Version: "v1"},
		{Group: "apiextensions.k8s.io", Version: "v1"}, {Group: "example.com", Version: "v1"},
		{Group: history.GroupName, Version: "v1"}} {
		if len(c.resources(gv).APIResources) == 0 {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		list.Groups = append(list.Groups,
			metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
	}
	return list
}

func (c *fakeCluster) resources(gv schema.GroupVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String()}
	if gv.Group == history.GroupName {
		list.APIResources = []metav1.APIResource{{Name: "changes", Kind: "Change", Namespaced: true,
			Verbs: metav1.Verbs{"get", "list", "watch"}}}
	}
	for _, k := range kinds {
		if k.GroupVersion == gv && c.isServed(&k) {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: k.Resource, Kind: k.Kind, SingularName: strings.ToLower(k.Kind), Namespaced: !k.IsCluster,
				ShortNames: shortNames[k.Resource],
				Verbs:      metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
			})
		}
	}
	return list
}

// changes answers a request for changes.
func (c *fakeCluster) changes(r *http.Request, who string, at *target) (any, error) {
	ctx := request.WithNamespace(request.WithUser(r.Context(), &user.DefaultInfo{Name: who}), at.namespace)
	if at.name != "" {
		return c.history.Get(ctx, at.name, nil)
	}
	q := r.URL.Query()
	selector, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	limit, _ := strconv.ParseInt(q.Get("limit"), 10, 64) // none is 0
	found, err := c.history.List(ctx,
		&internalversion.ListOptions{FieldSelector: selector, Limit: limit, Continue: q.Get("continue")})
	if err != nil {
		return nil, err
	}
	if strings.Contains(r.Header.Get("Accept"), "as=Table") {
		return c.history.ConvertToTable(ctx, found, nil)
	}
	list := found.(*history.ChangeList)
	list.Kind, list.APIVersion = "ChangeList", history.GroupName+"/v1"
	for i := range list.Items {
		list.Items[i].Kind, list.Items[i].APIVersion = "Change", list.APIVersion
	}
	return list, nil
}

// request answers a request for objects.
func (c *fakeCluster) request(r *http.Request, author *sqlstore.Author, at *target) (any, error) {
	dryRun := r.URL.Query().Get("dryRun") != ""
	body := &unstructured.Unstructured{}
	switch author.Verb {
	case "create", "update":
		if err := json.NewDecoder(r.Body).Decode(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		body.SetNamespace(at.namespace)
	}
	switch author.Verb {
	case "list":
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": at.GroupVersion.String(),
			"kind": at.Kind.Kind + "List"}}
		list.SetResourceVersion(strconv.FormatInt(c.Revision(), 10))
		for _, o := range c.List(at.Resource, at.namespace) {
			list.Items = append(list.Items, *o)
		}
		return list, nil
	case "get":
		return c.get(at.Kind, at.namespace, at.name)
	case "create":
		return c.create(author, body, dryRun)
	case "update":
		return c.update(author, body, dryRun)
	case "patch":
		return c.patch(r, author, at, dryRun)
	}
	options := &metav1.DeleteOptions{}
	if err := json.NewDecoder(r.Body).Decode(options); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess},
		c.delete(author, at.Kind, at.namespace, at.name, options)
}

// patch answers a JSON patch.
func (c *fakeCluster) patch(r *http.Request, author *sqlstore.Author, at *target, dryRun bool) (any, error) {
	now, err := c.get(at.Kind, at.namespace, at.name)
	if err != nil {
		return nil, err
	}
	before, err := now.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var patch jsonpatch.Patch
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after, err := patch.Apply(before)
	if err != nil {
		return nil,
			apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0,
				false)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(after); err != nil {
		return nil, err
	}
	return c.update(author, o, dryRun)
}
