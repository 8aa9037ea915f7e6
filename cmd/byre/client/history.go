package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/moment"
)

// pageSize is how many changes are asked for at once.
const pageSize = 500

// tables asks for a list as kubectl prints it.
const tables = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// Client asks a server. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	server    string // the URL, without a slash at its end
	raw       rest.Interface
	resources discovery.DiscoveryInterface
	objects   dynamic.Interface
	mapper    meta.RESTMapper
	namespace string
	// types has the managedfields.TypeConverter of each schema.GroupVersion that typeOf was asked for.
	types *sync.Map
}

// NewClient makes a Client. The namespace is that of objects that name none.
func NewClient(config *rest.Config, namespace string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.QPS, config.Burst = 50, 300 // as kubectl
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	raw, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	found, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(found)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	return &Client{client, strings.TrimSuffix(server.String(), "/"), raw, cached, objects, mapper, namespace,
		&sync.Map{}}, nil
}

// In returns the client with another namespace; empty means the one that it has.
func (c *Client) In(namespace string) *Client {
	other := *c
	other.namespace = cmp.Or(namespace, c.namespace)
	return &other
}

// Namespace is that of objects that name none.
func (c *Client) Namespace() string { return c.namespace }

// Object names an object of a cluster.
type Object struct {
	// Resource is the preferred version of the object's resource.
	Resource schema.GroupVersionResource
	// Namespace is empty if the resource is not namespaced.
	Namespace, Name string
}

// String returns an object as kubectl prints it, such as deployments.apps/web.
func (o Object) String() string { return o.Resource.GroupResource().String() + "/" + o.Name }

// IsSecret reports whether the object is a Secret, whose values are masked where its changes are shown.
func (o Object) IsSecret() bool { return changes.IsSecret(o.Resource.Group, o.Resource.Resource) }

// changesIn is the namespace in which the changes of the object are listed.
func (o Object) changesIn() string { return history.ShownIn(o.Namespace) }

// Find finds the object that arguments name as kubectl's do: TYPE/NAME or TYPE NAME. It need not exist.
func (c *Client) Find(args []string) (Object, error) {
	kind, name, found := strings.Cut(strings.Join(args, "/"), "/")
	if !found || kind == "" || name == "" || strings.Contains(name, "/") {
		return Object{}, fmt.Errorf("name one object, as TYPE/NAME or TYPE NAME, not %q", strings.Join(args, " "))
	}
	named := schema.ParseGroupResource(kind).WithVersion("")
	resource, err := c.mapper.ResourceFor(named)
	if meta.IsNoMatchError(err) { // it may have been defined since
		meta.MaybeResetRESTMapper(c.mapper)
		resource, err = c.mapper.ResourceFor(named)
	}
	if err != nil {
		return Object{}, err
	}
	return c.objectOf(resource, c.namespace, name)
}

// objectOf returns an object of a resource, without the namespace if the resource has none.
func (c *Client) objectOf(resource schema.GroupVersionResource, namespace, name string) (Object, error) {
	gvk, err := c.mapper.KindFor(resource)
	if err != nil {
		return Object{}, err
	}
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return Object{}, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		namespace = ""
	}
	return Object{resource, namespace, name}, nil
}

// client returns the client of an object's resource.
func (c *Client) client(o Object) dynamic.ResourceInterface {
	if o.Namespace == "" {
		return c.objects.Resource(o.Resource)
	}
	return c.objects.Resource(o.Resource).Namespace(o.Namespace)
}

// Query selects changes.
type Query struct {
	// Namespace is that of the changes; empty means all.
	Namespace string
	// Fields are the field selectors of the resource changes.
	Fields fields.Set
	// WithStatus selects the changes of the status too.
	WithStatus bool
	// WithItems puts the whole items into the rows of tables, and not only their metadata.
	WithItems bool
}

func (q Query) selector() fields.Selector {
	selector := q.Fields.AsSelector()
	if _, selects := q.Fields["subresource"]; q.WithStatus && !selects {
		// A selector of the subresource says that the changes of the status are wanted too.
		selector = fields.AndSelectors(selector, fields.OneTermNotEqualSelector("subresource", "-"))
	}
	return selector
}

// Query selects the changes of the object.
func (o Object) Query(withStatus bool) Query {
	return Query{Namespace: o.changesIn(), WithStatus: withStatus, Fields: fields.Set{
		"object.group": o.Resource.Group, "object.resource": o.Resource.Resource, "object.name": o.Name,
	}}
}

// Tables calls f for each page of the selected changes, the oldest first, as a table of the server. It
// returns the resourceVersion of the list.
func (c *Client) Tables(ctx context.Context, q Query, f func(*metav1.Table) error) (revision string, err error) {
	err = c.pages(ctx, q, tables, func(data []byte) (string, error) {
		var table metav1.Table
		if err := json.Unmarshal(data, &table); err != nil {
			return "", err
		}
		revision = table.ResourceVersion
		return table.Continue, f(&table)
	})
	return revision, err
}

// newest selects the same changes, the newest first.
func (q Query) newest() Query {
	q.Fields = maps.Clone(q.Fields)
	q.Fields["order"] = "newest"
	return q
}

// Changes yields the selected changes, the oldest first if the query does not say otherwise. It reads them page by
// page.
func (c *Client) Changes(ctx context.Context, q Query) iter.Seq2[*history.Change, error] {
	return func(yield func(*history.Change, error) bool) {
		stopped := false
		err := c.pages(ctx, q, "application/json", func(data []byte) (string, error) {
			var list history.ChangeList
			if err := json.Unmarshal(data, &list); err != nil {
				return "", err
			}
			for i := range list.Items {
				if stopped = !yield(&list.Items[i], nil); stopped {
					return "", nil
				}
			}
			return list.Continue, nil
		})
		if err != nil && !stopped {
			yield(nil, err)
		}
	}
}

// getter returns the function that asks for changes, and for objects, until ctx ends.
func (c *Client) getter(ctx context.Context) history.Get {
	return func(path string, query url.Values, into any) error {
		request := c.raw.Get().AbsPath(path).SetHeader("Accept", "application/json")
		for name := range query {
			request.Param(name, query.Get(name))
		}
		result := request.Do(ctx)
		if err := result.Error(); err != nil && !strings.HasPrefix(path, "/apis/"+history.GroupName+"/") {
			return err
		}
		data, err := answer(result)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, into)
	}
}

// pages calls f with the body of each page; it returns the continue token of the next one.
func (c *Client) pages(ctx context.Context, q Query, accept string, f func([]byte) (string, error)) error {
	for next := ""; ; {
		request := c.get(q, accept).Param("limit", strconv.Itoa(pageSize))
		if next != "" {
			request = request.Param("continue", next)
		}
		data, err := answer(request.Do(ctx))
		if err != nil {
			return err
		}
		if next, err = f(data); err != nil || next == "" {
			return err
		}
	}
}

// get returns a request for the selected changes.
func (c *Client) get(q Query, accept string) *rest.Request {
	request := c.raw.Get().AbsPath(history.Path(q.Namespace)).SetHeader("Accept", accept)
	if selector := q.selector(); !selector.Empty() {
		request = request.Param("fieldSelector", selector.String())
	}
	if q.WithItems {
		request = request.Param("includeObject", string(metav1.IncludeObject))
	}
	return request
}

// Change returns a change with the object before and after it.
func (c *Client) Change(ctx context.Context, namespace string, revision int64) (*history.Change, error) {
	change := &history.Change{}
	return change, c.getter(ctx)(history.Path(namespace)+"/"+strconv.FormatInt(revision, 10), nil, change)
}

// ShowSecrets shows the values that a listed change of a Secret has masked, if the user may get them.
func (c *Client) ShowSecrets(ctx context.Context, listed *history.Change) error {
	if !listed.IsOfSecret() || len(listed.Changed) == 0 {
		return nil
	}
	got, err := c.Change(ctx, listed.Namespace, listed.Revision)
	if err == nil {
		listed.ShowSecrets(got)
	}
	return err
}

// answer returns the body of an answer, and says what a server without the resource changes lacks.
func answer(result rest.Result) ([]byte, error) {
	err := result.Error() // Raw returns an error without the server's Status
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return result.Raw()
	case apierrors.IsNotFound(err) && errors.As(err, &status) &&
		(status.Status().Details == nil || status.Status().Details.Name == ""):
		return nil, errNoChanges
	}
	return nil, err
}

var errNoChanges = errors.New("the server has no resource changes of " + history.GroupName + ": is it byre?")

// Version is an object at a moment.
type Version struct {
	// Revision is that of the change that made it; 0 if the history does not have that change.
	Revision int64
	// Content is the object, without its managed fields; nil if it did not exist.
	Content map[string]any
}

// At returns an object as it was at a moment. It fails with the code 410 if the history does not reach back to the
// moment: there may have been changes since that are deleted.
func (c *Client) At(ctx context.Context, o Object, m moment.Moment) (Version, error) {
	var later *history.Change // the earliest change after the moment
	for listed, err := range c.Changes(ctx, o.Query(true).newest()) {
		if err != nil {
			return Version{}, err
		}
		if !m.Covers(listed.Revision, listed.Time.Time) {
			later = listed
			continue
		}
		change, err := c.Change(ctx, o.changesIn(), listed.Revision)
		if err != nil {
			return Version{}, err
		}
		return version(change.Revision, change, change.After)
	}
	q := o.Query(true)
	q.Fields["since"] = m.Selector()
	if _, err := answer(c.get(q, "application/json").Param("limit", "1").Do(ctx)); err != nil {
		return Version{}, err
	}
	if later != nil { // the moment is before the first change that is left
		change, err := c.Change(ctx, o.changesIn(), later.Revision)
		if err != nil {
			return Version{}, err
		}
		return version(change.Replaces, change, change.Before)
	}
	// The object has not changed since the history of its resource was deleted, or never was.
	content, err := c.Now(ctx, o)
	if err != nil {
		return Version{}, err
	}
	return Version{Content: content}, nil
}

func version(revision int64, change *history.Change, content *runtime.RawExtension) (Version, error) {
	if change.Unreadable {
		return Version{}, fmt.Errorf("revision %d: %w", change.Revision, errUnreadable)
	}
	decoded, err := history.Decode(content)
	return Version{Revision: revision, Content: decoded}, err
}

// Now returns an object as it is, without its managed fields; nil if it does not exist.
func (c *Client) Now(ctx context.Context, o Object) (map[string]any, error) {
	object, err := c.client(o).Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil is an object that does not exist
	}
	if err != nil {
		return nil, err
	}
	object.SetManagedFields(nil)
	return object.Object, nil
}

// YAML returns a version as YAML; nothing if the object did not exist.
func (v Version) YAML() (string, error) {
	if v.Content == nil {
		return "", nil
	}
	text, err := yaml.Marshal(v.Content)
	return string(text), err
}

var (
	errNoVersion  = errors.New("the history has no version of it")
	errUnreadable = errors.New("the object can't be read any more")
)

// resumeInterval is the time between two tries to go on.
const resumeInterval = time.Second

// Follow calls f for each selected change after a resourceVersion, as a table of the server, until ctx
// ends. It then returns nil. After a disconnect it goes on where it has stopped.
func (c *Client) Follow(ctx context.Context, q Query, revision string, f func(*metav1.Table) error) error {
	for {
		failed := c.watch(ctx, q, &revision, f)
		var status apierrors.APIStatus
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsResourceExpired(failed):
			return fmt.Errorf("the changes after revision %s can't be followed any more: run the command again: %w", revision,
				failed)
		case errors.As(failed, &status) && status.Status().Code < http.StatusInternalServerError &&
			!apierrors.IsTooManyRequests(failed), errors.As(failed, new(*printError)):
			return failed
		}
		select {
		case <-time.After(resumeInterval):
		case <-ctx.Done():
		}
	}
}

// printError is an error of the function that Follow calls.
type printError struct{ error }

func (e *printError) Unwrap() error { return e.error }

// watch is one watch. It moves revision forward to the last change that it has received.
func (c *Client) watch(ctx context.Context, q Query, revision *string, f func(*metav1.Table) error) error {
	request := c.get(q, tables).Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion",
		*revision)
	stream, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var event metav1.WatchEvent
		if err := events.Decode(&event); err != nil {
			return err
		}
		if event.Type == string(watch.Error) {
			var status metav1.Status
			if err := json.Unmarshal(event.Object.Raw, &status); err != nil {
				return err
			}
			return &apierrors.StatusError{ErrStatus: status}
		}
		var table metav1.Table
		if err := json.Unmarshal(event.Object.Raw, &table); err != nil {
			return err
		}
		if event.Type == string(watch.Added) {
			if err := f(&table); err != nil {
				return &printError{err}
			}
		}
		*revision = table.ResourceVersion
	}
}

// Types returns the names of the resources whose objects can be listed, such as deployments.apps.
func (c *Client) Types() []string {
	lists, _ := c.resources.ServerPreferredResources() // with an error too, those of the groups that answer
	var types []string
	found, _ := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}},
		lists))
	for resource := range found {
		types = append(types, resource.GroupResource().String())
	}
	slices.Sort(types)
	return types
}

// Names returns the names of the objects of a type, or of those that were deleted.
func (c *Client) Names(ctx context.Context, kind string, deleted bool) (names []string, err error) {
	o, err := c.Find([]string{kind, "-"})
	if err != nil {
		return nil, err
	}
	if deleted {
		for change, err := range c.Changes(ctx, Query{Namespace: o.changesIn(), Fields: fields.Set{
			"object.group": o.Resource.Group, "object.resource": o.Resource.Resource, "verb": "delete",
		}}) {
			if err != nil {
				return nil, err
			}
			names = append(names, change.Object.Name)
		}
		slices.Sort(names)
		return slices.Compact(names), nil
	}
	list, err := c.client(o).List(ctx, metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names, nil
}

// Recent returns the last changes of the namespace that can be undone, the newest first, as far as one page has them.
func (c *Client) Recent(ctx context.Context) ([]history.Change, error) {
	search := history.Search{Namespace: c.namespace, Selector: fields.Everything(), Limit: pageSize - 1}
	changes, _, _, err := search.Newest(c.getter(ctx))
	return slices.DeleteFunc(changes, func(change history.Change) bool {
		return change.Unreadable || slices.Contains([]string{"delete", "deletecollection", "expire"}, change.Verb)
	}), err
}
