package write

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"byre/apiserver/handlers/managedfields"
	"byre/sqlstore"
)

// fake is the storage of ConfigMaps, the admission and the authorizer of a server. It writes down the steps of a
// request.
type fake struct {
	t     *testing.T
	steps []string
	// live are the objects that an update finds, one an attempt: somebody else has written all but the last. One without
	// an UID does not exist.
	live []*core.ConfigMap
	// err and result are what the storage returns; without them an update returns the object. isDeleted is whether a
	// deletion is done.
	err       error
	result    runtime.Object
	isDeleted bool
	// refuses is a step that fails, and forbids whether the authorizer does not allow.
	refuses  string
	forbids  bool
	mutate   func(*core.ConfigMap)
	warnings []string
	asked    []authorizer.Attributes
}

func (f *fake) step(format string, args ...any) error {
	step := fmt.Sprintf(format, args...)
	f.steps = append(f.steps, step)
	if name, _, _ := strings.Cut(step, " "); name == f.refuses {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "c", errors.New(name+" refuses"))
	}
	return nil
}

func (*fake) New() runtime.Object { return &core.ConfigMap{} }
func (*fake) Destroy()            {}

func (f *fake) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	c := obj.(*core.ConfigMap)
	if err := f.step("store %s/%s in %s %v", c.Namespace, c.Name, request.NamespaceValue(ctx),
		options.DryRun); err != nil {
		return nil, err
	}
	if f.err != nil {
		return nil, f.err
	}
	if err := validate(ctx, obj); err != nil {
		return nil, err
	}
	if f.result != nil {
		return f.result, nil
	}
	c.UID = "new"
	return c, nil
}

func (f *fake) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return nil, errors.New("nobody gets")
}

func (f *fake) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	var last runtime.Object
	for _, live := range f.live {
		obj, err := info.UpdatedObject(ctx, live.DeepCopy())
		if err != nil {
			return nil, false, err
		}
		exists := live.UID != ""
		if exists {
			err = update(ctx, obj, live)
		} else if err = create(ctx, obj); err == nil {
			obj.(*core.ConfigMap).UID = "new"
		}
		if err != nil {
			return nil, false, err
		}
		c := obj.(*core.ConfigMap)
		if err := f.step("store %s %v force=%v %v", name, c.Data, force, options.DryRun); err != nil {
			return nil, false, err
		}
		last = obj
	}
	if f.err != nil {
		return nil, false, f.err
	}
	return last, f.live[len(f.live)-1].UID == "", nil
}

func (f *fake) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	grace := "default"
	if options.GracePeriodSeconds != nil {
		grace = fmt.Sprint(*options.GracePeriodSeconds)
	}
	if err := f.step("delete %s grace=%s %v", name, grace, options.DryRun); err != nil {
		return nil, false, err
	}
	return f.result, f.isDeleted, validate(ctx, &core.ConfigMap{})
}

func (*fake) Handles(admission.Operation) bool { return true }

func (f *fake) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if f.mutate != nil {
		f.mutate(a.GetObject().(*core.ConfigMap))
	}
	return f.step("mutate %s by %s dry=%v", a.GetOperation(), a.GetUserInfo().GetName(), a.IsDryRun())
}

func (f *fake) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return f.step("validate %s", a.GetOperation())
}

func (f *fake) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	f.asked = append(f.asked, a)
	if f.forbids {
		return authorizer.DecisionNoOpinion, "no rule", f.err
	}
	return authorizer.DecisionAllow, "", errors.New("a rule can't be read")
}

func (f *fake) ConditionsAwareAuthorize(_ context.Context, _ authorizer.Attributes) authorizer.ConditionsAwareDecision {
	f.t.Error("nobody asks so")
	return authorizer.ConditionsAwareDecision{}
}

// AddWarning implements warning.Recorder.
func (f *fake) AddWarning(_, text string) { f.warnings = append(f.warnings, text) }

// handlers returns the handlers of ConfigMaps.
func (f *fake) handlers() *Handlers {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	scheme := legacyscheme.Scheme
	hub := schema.GroupVersion{Version: runtime.APIVersionInternal}
	fields, err := upstream.NewDefaultFieldManager(upstream.NewDeducedTypeConverter(),
		runtime.UnsafeObjectConvertor(scheme), scheme, scheme, kind, hub, "", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor())},
		Serializer: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec, Creater: scheme, Convertor: scheme,
		Defaulter: scheme, Typer: scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		TableConvertor:  rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "configmaps"}),
		Authorizer:      f, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: kind,
		HubGroupVersion: hub, MetaGroupVersion: metav1.SchemeGroupVersion, MaxRequestBodyBytes: 1000,
	}
	return &Handlers{
		Scope: scope, Admission: f,
		Fields: managedfields.New(managedfields.Config{Kind: kind, Creater: scheme, Upstream: fields}),
		PatchTypes: []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
			string(types.ApplyYAMLPatchType)},
	}
}

// ask sends a request for the ConfigMap c, or for all if it is a create.
func (f *fake) ask(ctx context.Context, method, query, contentType, body string) *httptest.ResponseRecorder {
	h := f.handlers()
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
		http.MethodDelete: "delete"}[method]
	info := &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Namespace: "shop",
		Resource: "configmaps", Name: "c"}
	if method == http.MethodPost {
		info.Name = ""
	}
	ctx = audit.WithAuditContext(ctx)
	ctx = request.WithRequestInfo(request.WithUser(warning.WithWarningRecorder(ctx, f), &user.DefaultInfo{Name: "alice"}),
		info)
	req := httptest.NewRequestWithContext(ctx, method, "/api/v1/namespaces/shop/configmaps?"+query,
		strings.NewReader(body))
	req.Header.Set("User-Agent", "tool/1.0 (linux)")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	handler := map[string]func() http.HandlerFunc{
		http.MethodPost: func() http.HandlerFunc {
			return h.Create(f)
		}, http.MethodPut: func() http.HandlerFunc { return h.Update(f) },
		http.MethodPatch: func() http.HandlerFunc {
			return h.Patch(f)
		}, http.MethodDelete: func() http.HandlerFunc { return h.Delete(f) },
	}[method]
	handler()(w, req)
	return w
}

func existing(data string) *core.ConfigMap {
	return &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "c", UID: "u", ResourceVersion: "7"},
		Data: map[string]string{"k": data}}
}

const (
	jsonType, merge, strategic = "application/json", "application/merge-patch+json",
		"application/strategic-merge-patch+json"
	jsonPatch, apply = "application/json-patch+json", "application/apply-patch+yaml"
	object           = `{"metadata":{"name":"c"},"data":{"k":"v"}}`
)

// Each verb takes upstream's steps in upstream's order, and stops at the first that fails.
func TestWrite_StepsOfAVerb(t *testing.T) {
	t.Parallel()
	absent := &core.ConfigMap{}
	for name, test := range map[string]struct {
		fake
		method, query, media, body string
		status                     int
		want                       []string
		// answer is in the body.
		answer string
	}{
		"create": {method: http.MethodPost, media: jsonType, body: object, status: 201, want: []string{
			"mutate CREATE by alice dry=false", "store shop/c in shop []", "validate CREATE"}, answer: `"uid":"new"`},
		"create, dry": {method: http.MethodPost, query: "dryRun=All", media: jsonType, body: object, status: 201,
			want: []string{
				"mutate CREATE by alice dry=true", "store shop/c in shop [All]", "validate CREATE"}},
		"create, refused by a plugin that mutates": {fake: fake{refuses: "mutate"}, method: http.MethodPost, media: jsonType,
			body: object, status: 403,
			want: []string{"mutate CREATE by alice dry=false"}, answer: "mutate refuses"},
		"create, refused by a plugin that validates": {fake: fake{refuses: "validate"}, method: http.MethodPost,
			media: jsonType, body: object, status: 403, want: []string{
				"mutate CREATE by alice dry=false", "store shop/c in shop []", "validate CREATE"}},
		"create, which the storage refuses": {fake: fake{err: apierrors.NewAlreadyExists(
			schema.GroupResource{Resource: "configmaps"}, "c")}, method: http.MethodPost, media: jsonType, body: object,
			status: 409, want: []string{"mutate CREATE by alice dry=false", "store shop/c in shop []"}},
		"create, with a status that fails": {fake: fake{result: &metav1.Status{Status: metav1.StatusFailure, Code: 429,
			Message: "slower"}}, method: http.MethodPost, media: jsonType, body: object,
			status: 429, answer: "slower",
			want: []string{"mutate CREATE by alice dry=false", "store shop/c in shop []", "validate CREATE"}},
		"create, with a status that succeeds": {fake: fake{result: &metav1.Status{Status: metav1.StatusSuccess}},
			method: http.MethodPost, media: jsonType, body: object,
			status: 201, answer: `"code":201`,
			want: []string{"mutate CREATE by alice dry=false", "store shop/c in shop []", "validate CREATE"}},
		"create in another namespace": {method: http.MethodPost, media: jsonType,
			body: `{"metadata":{"name":"c","namespace":"bank"}}`, status: 400, answer: "does not match the namespace"},
		"create of another version": {method: http.MethodPost, media: jsonType,
			body: `{"apiVersion":"v9","kind":"ConfigMap"}`, status: 400},
		"create of too much": {method: http.MethodPost, media: jsonType, body: object + strings.Repeat(" ", 1000),
			status: 413, answer: "limit is 1000"},
		"create of exactly as much": {method: http.MethodPost, media: jsonType,
			body: object + strings.Repeat(" ", 1000-len(object)), status: 201,
			want: []string{"mutate CREATE by alice dry=false", "store shop/c in shop []", "validate CREATE"}},
		"create with wrong options": {method: http.MethodPost, query: "dryRun=Some", media: jsonType, body: object,
			status: 422},
		"create of an unknown field": {method: http.MethodPost, query: "fieldValidation=Strict", media: jsonType,
			body: `{"datum":1}`, status: 400, answer: "unknown field"},

		"update": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPut, media: jsonType,
			body: object, status: 200, want: []string{
				"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:v] force=false []"}},
		"update, twice because somebody came between": {fake: fake{live: []*core.ConfigMap{existing("old"),
			existing("newer")}}, method: http.MethodPut, media: jsonType, body: object, status: 200, want: []string{
			"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:v] force=false []",
			"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:v] force=false []"}},
		"update that creates": {fake: fake{live: []*core.ConfigMap{absent}}, method: http.MethodPut, media: jsonType,
			body: object, status: 201, want: []string{
				"mutate CREATE by alice dry=false", "validate CREATE", "store c map[k:v] force=false []"}},
		"update that creates, and may not": {fake: fake{live: []*core.ConfigMap{absent}, forbids: true},
			method: http.MethodPut, media: jsonType, body: object, status: 403,
			want: []string{"mutate CREATE by alice dry=false"}, answer: `cannot create resource \"configmaps\"`},
		"update that creates, while the authorizer fails": {fake: fake{live: []*core.ConfigMap{absent}, forbids: true,
			err: errors.New("no rules")}, method: http.MethodPut, media: jsonType, body: object, status: 500,
			want: []string{"mutate CREATE by alice dry=false"}},
		"update of another name": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPut,
			media: jsonType, body: `{"metadata":{"name":"d"}}`, status: 400, answer: "does not match the name on the URL"},

		"patch of the object of each attempt": {fake: fake{live: []*core.ConfigMap{existing("old"), existing("newer")}},
			method: http.MethodPatch, media: merge, body: `{"data":{"m":"1"}}`, status: 200, want: []string{
				"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:old m:1] force=false []",
				"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:newer m:1] force=false []"}},
		"strategic patch": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPatch, media: strategic,
			body: `{"data":{"k":null,"m":"1"}}`, status: 200, want: []string{
				"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[m:1] force=false []"}},
		"JSON patch": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPatch, media: jsonPatch,
			body: `[{"op":"test","path":"/data/k","value":"old"},{"op":"replace","path":"/data/k","value":"x"}]`, status: 200,
			want: []string{
				"mutate UPDATE by alice dry=false", "validate UPDATE", "store c map[k:x] force=false []"}},
		"JSON patch whose test fails": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPatch,
			media: jsonPatch, body: `[{"op":"test","path":"/data/k","value":"other"}]`, status: 422},
		"patch of what does not exist": {fake: fake{live: []*core.ConfigMap{absent}}, method: http.MethodPatch,
			media: merge, body: `{}`, status: 404},
		"patch of a form that there is not": {method: http.MethodPatch, media: jsonType, body: `{}`, status: 415},
		"patch that is no JSON":             {method: http.MethodPatch, media: merge, body: `{`, status: 400},
		"patch of the name": {fake: fake{live: []*core.ConfigMap{existing("old")}}, method: http.MethodPatch,
			media: merge, body: `{"metadata":{"name":"d"}}`, status: 400},
		"apply that creates": {fake: fake{live: []*core.ConfigMap{absent}}, method: http.MethodPatch,
			query: "fieldManager=tool", media: apply,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"b"}}`, status: 201, want: []string{
				"mutate CREATE by alice dry=false", "validate CREATE", "store c map[a:b] force=true []"}},
		"apply to an UID that there is not": {fake: fake{live: []*core.ConfigMap{absent}}, method: http.MethodPatch,
			query: "fieldManager=tool", media: apply,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","uid":"other"}}`, status: 409},
		"apply without a manager": {method: http.MethodPatch, media: apply, body: `{}`, status: 422},

		"delete": {fake: fake{isDeleted: true}, method: http.MethodDelete, status: 200,
			want:   []string{"delete c grace=default []", "mutate DELETE by alice dry=false", "validate DELETE"},
			answer: `"kind":"ConfigMap"`},
		"delete, with options in the query": {fake: fake{isDeleted: true}, method: http.MethodDelete,
			query: "gracePeriodSeconds=5&dryRun=All", status: 200,
			want: []string{"delete c grace=5 [All]", "mutate DELETE by alice dry=true", "validate DELETE"}},
		"delete, with options in the body, which count": {fake: fake{isDeleted: true}, method: http.MethodDelete,
			query: "gracePeriodSeconds=5", media: jsonType, body: `{"gracePeriodSeconds":3}`, status: 200,
			want: []string{"delete c grace=3 []", "mutate DELETE by alice dry=false", "validate DELETE"}},
		"delete, which goes on": {method: http.MethodDelete, media: jsonType,
			body: `{"orphanDependents":false}`, status: 202,
			want: []string{"delete c grace=default []", "mutate DELETE by alice dry=false", "validate DELETE"}},
		"delete, which goes on, for new clients": {method: http.MethodDelete, status: 200,
			want: []string{"delete c grace=default []", "mutate DELETE by alice dry=false", "validate DELETE"}},
		"delete with both policies": {method: http.MethodDelete, media: jsonType,
			body: `{"orphanDependents":false,"propagationPolicy":"Orphan"}`, status: 422},
		"delete with another object": {method: http.MethodDelete, media: jsonType,
			body: `{"apiVersion":"v1","kind":"Pod"}`, status: 400},
		"delete, refused": {fake: fake{refuses: "validate"}, method: http.MethodDelete, status: 403,
			want: []string{"delete c grace=default []", "mutate DELETE by alice dry=false", "validate DELETE"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &test.fake
			f.t = t
			w := f.ask(t.Context(), test.method, test.query, test.media, test.body)
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.answer) || !slices.Equal(f.steps, test.want) {
				t.Errorf("status %d, want %d\nsteps %q,\n want %q\n%s, want %q", w.Code, test.status, f.steps, test.want, w.Body,
					test.answer)
			}
		})
	}
}

// Whether an update may create is asked once, for all attempts, with what the request names.
func TestUpdate_AsksOnceWhetherItMayCreate(t *testing.T) {
	t.Parallel()
	f := &fake{t: t, live: []*core.ConfigMap{{}, {}, {}}}
	if w := f.ask(t.Context(), http.MethodPut, "", jsonType, object); w.Code != http.StatusCreated || len(f.asked) != 1 {
		t.Fatalf("status %d, asked %d times", w.Code, len(f.asked))
	}
	if a := f.asked[0]; a.GetVerb() != "create" || a.GetNamespace() != "shop" || a.GetName() != "c" ||
		a.GetResource() != "configmaps" || a.GetUser().GetName() != "alice" {
		t.Errorf("it asks %+v", a)
	}
	f = &fake{t: t, live: []*core.ConfigMap{existing("old")}, forbids: true}
	if w := f.ask(t.Context(), http.MethodPut, "", jsonType, object); w.Code != http.StatusOK || len(f.asked) > 0 {
		t.Errorf("an update that does not create: status %d, asked %d times", w.Code, len(f.asked))
	}
}

// What admission adds is stored; an owner that is named twice is stored once, with a warning, whoever has named it.
func TestWrite_StoresWhatAdmissionMakes(t *testing.T) {
	t.Parallel()
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"}
	for method, body := range map[string]string{http.MethodPost: object, http.MethodPut: object} {
		f := &fake{t: t, live: []*core.ConfigMap{existing("old")}}
		f.mutate = func(c *core.ConfigMap) {
			c.Data["added"] = "by a plugin"
			c.OwnerReferences = append(c.OwnerReferences, owner, owner)
		}
		w := f.ask(t.Context(), method, "", jsonType, body)
		if !strings.Contains(w.Body.String(), `"added":"by a plugin"`) || strings.Count(w.Body.String(), `"name":"p"`) != 1 ||
			len(f.warnings) != 1 || !strings.Contains(f.warnings[0], "after mutating admission") {
			t.Errorf("%s: %s, warnings %q", method, w.Body, f.warnings)
		}
	}
	f := &fake{t: t}
	ref := `{"apiVersion":"v1","kind":"Pod","name":"p","uid":"1"}`
	w := f.ask(t.Context(), http.MethodPost, "", jsonType,
		`{"metadata":{"name":"c","ownerReferences":[`+ref+","+ref+`]},"datum":1}`)
	if strings.Count(w.Body.String(), `"name":"p"`) != 1 || len(f.warnings) != 2 {
		t.Errorf("%s, warnings %q", w.Body, f.warnings)
	}
}

// The field manager is the one that the request names, or else the beginning of its user agent.
func TestWrite_NamesTheFieldManager(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"": "tool", "fieldManager=me": "me"} {
		f := &fake{t: t}
		if w := f.ask(t.Context(), http.MethodPost, query, jsonType, object); !strings.Contains(w.Body.String(),
			`"manager":"`+want+`","operation":"Update"`) {
			t.Errorf("%q: %s", query, w.Body)
		}
	}
	for agent, want := range map[string]string{"": "", "a b": "a b", "a\x00\u202eb/1": "ab",
		strings.Repeat("ä", 100): strings.Repeat("ä", 64)} {
		req := httptest.NewRequest(http.MethodPost, "/", nil)
		req.Header.Set("User-Agent", agent)
		if got := (&write{req: req}).manager(""); got != want {
			t.Errorf("%q: %q, want %q", agent, got, want)
		}
	}
}

// A request whose time is up is answered so whatever its error was, and no client is told to repeat it: it may have
// been stored.
func TestWrite_EndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	f := &fake{t: t, err: errors.New("the connection broke off")}
	w := f.ask(ctx, http.MethodPost, "", jsonType, object)
	if w.Code != http.StatusGatewayTimeout || w.Header().Get("Retry-After") != "" ||
		!strings.Contains(w.Body.String(), "request did not complete within requested timeout") ||
		strings.Contains(w.Body.String(), "broke") {
		t.Errorf("status %d, %v, %s", w.Code, w.Header(), w.Body)
	}
}

// What can't be read is deleted for those only who may do that.
func TestDelete_OfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	attributes := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		"shop", "c", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "", admission.Delete, nil, false,
		nil)
	for name, test := range map[string]struct {
		f           fake
		subresource string
		want        string
	}{
		"an authorizer that fails":  {fake{}, "", "error while checking permission"},
		"a user who may not":        {fake{forbids: true}, "", "not permitted to do \"unsafe-delete-ignore-read-errors\""},
		"a subresource of anything": {fake{}, "status", "is not allowed on a subresource"},
	} {
		f := &test.f
		f.t = t
		h := f.handlers()
		h.Scope.Subresource = test.subresource
		r := &write{Handlers: h, ctx: t.Context(), namespace: "shop", name: "c", user: &user.DefaultInfo{Name: "alice"}}
		if err := r.authorizeUnsafeDelete(attributes); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// A Table and the metadata are made of the result of a write; a Status stays what it is.
func TestWrite_AnswersInTheFormThatIsAsked(t *testing.T) {
	t.Parallel()
	ask := func(result runtime.Object, accept string) string {
		f := &fake{t: t, result: result}
		h := f.handlers()
		ctx := request.WithRequestInfo(request.WithUser(audit.WithAuditContext(t.Context()),
			&user.DefaultInfo{Name: "alice"}), &request.RequestInfo{Verb: "create", Namespace: "shop", Resource: "configmaps"})
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(object))
		req.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.Create(f)(w, req)
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	for _, test := range []struct {
		result       runtime.Object
		accept, want string
	}{
		{nil, "application/json;as=Table;v=v1;g=meta.k8s.io", `"kind":"Table"`},
		{nil, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", `"kind":"PartialObjectMetadata"`},
		{nil, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "406 "},
		{nil, "application/xml", "406 "},
		{nil, "application/yaml", "kind: ConfigMap"},
		{&metav1.Status{Status: metav1.StatusSuccess}, "application/json;as=Table;v=v1;g=meta.k8s.io", `"kind":"Status"`},
		{&metav1.Status{Status: metav1.StatusSuccess}, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			`"kind":"Status"`},
	} {
		if got := ask(test.result, test.accept); !strings.Contains(got, test.want) {
			t.Errorf("%s of %T: %s", test.accept, test.result, got)
		}
	}
}

// A JSON patch has a bounded number of operations.
func TestPatch_BoundsItsOperations(t *testing.T) {
	t.Parallel()
	for n, isTooMany := range map[int]bool{maxOperations: false, maxOperations + 1: true} {
		p := &patch{
			write: &write{}, options: &metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore},
			body: []byte("[" + strings.Repeat(`{"op":"add","path":"/a","value":1},`, n-1) +
				`{"op":"add","path":"/a","value":2}]`),
		}
		after, _, err := p.executeJSON([]byte("{}"))
		if apierrors.IsRequestEntityTooLargeError(err) != isTooMany || !isTooMany &&
			(err != nil || string(after) != `{"a":2}`) {
			t.Errorf("%d operations: %s, %v", n, after, err)
		}
	}
}

// The store is told who asked for what, whether the quota applies, and whether managed fields may be left out. The
// quota does not apply to the server itself. It applies to a user with the name of its author in the history, and to
// one who impersonates it.
func TestNewRequest_SaysWhoAskedForWhat(t *testing.T) {
	t.Parallel()
	nobody, root, nameless := (*string)(nil), new("root"), new("")
	for _, test := range []struct {
		user, verb   string
		realUser     *string // nil if the request impersonates nobody
		recordedAs   string
		grows, omits bool
	}{
		{"ann", "create", nobody, "", true, true},
		{"ann", "update", nobody, "", true, true},
		{"ann", "patch", nobody, "", true, true},
		{"ann", "patch", nobody, "apply", true, false},
		{"ann", "delete", nobody, "", false, false},
		{"ann", "deletecollection", nobody, "", false, false},
		{"ann", "update", root, "", true, true},
		{"byre", "update", nobody, "", true, true},
		{user.APIServerUser, "update", nobody, "", false, true},
		{user.APIServerUser, "update", root, "", true, true},
		{user.APIServerUser, "update", nameless, "", true, true},
	} {
		ctx := request.WithUser(audit.WithAuditContext(t.Context()), &user.DefaultInfo{Name: test.user})
		audit.WithAuditID(ctx, "id-1")
		ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Verb: test.verb, Subresource: "status"})
		want := sqlstore.Author{User: test.user, Verb: test.verb, Subresource: "status", Manager: "m", AuditID: "id-1"}
		if test.realUser != nil {
			ctx, want.RealUser = WithRealUser(ctx, *test.realUser), *test.realUser
		}
		if test.recordedAs != "" {
			want.Verb = test.recordedAs
		}
		got := newRequest(ctx, test.recordedAs, "m")
		if got.Author != want || got.Grows != test.grows || got.MayOmitManagedFields != test.omits {
			t.Errorf("%+v: %+v, grows=%v, omits=%v", test, got.Author, got.Grows, got.MayOmitManagedFields)
		}
	}
}
