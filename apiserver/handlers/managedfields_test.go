package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"byre/apiserver/apitest"
)

// fieldsPlugin is an admission plugin that changes managed fields in the way that the
// object's name says. It records their managers when the object is validated.
type fieldsPlugin struct {
	mu        sync.Mutex
	validated map[string]string
}

func (m *fieldsPlugin) Handles(operation admission.Operation) bool {
	return operation == admission.Create
}

func (m *fieldsPlugin) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return err
	}
	fields := object.GetManagedFields()
	switch object.GetName() {
	case "renamed":
		fields[0].Manager = "plugin"
	case "dropped":
		fields = nil
	case "spoilt":
		fields = []metav1.ManagedFieldsEntry{{Manager: "plugin", Operation: "Destroy"}}
	}
	object.SetManagedFields(fields)
	return nil
}

func (m *fieldsPlugin) Validate(
	_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces,
) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.validated[object.GetName()] = managers(object.GetManagedFields())
	return nil
}

func managers(fields []metav1.ManagedFieldsEntry) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.Manager)
	}
	return strings.Join(names, " ")
}

// TestManagedFields_AdmissionsChangesAreStored: managed fields that admission has changed
// are stored, unless they are malformed.
func TestManagedFields_AdmissionsChangesAreStored(t *testing.T) {
	t.Parallel()
	m := &fieldsPlugin{validated: map[string]string{}}
	s := newAdmittingServer(t, nil, m)
	for name, want := range map[string]struct {
		managers string
		warned   bool
	}{
		"left-alone": {managers: "tester"},
		"renamed":    {managers: "plugin"},
		"dropped":    {managers: ""},
		"spoilt":     {managers: "tester", warned: true},
	} {
		t.Run(name, func(t *testing.T) {
			answer, body := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/configmaps?fieldManager=tester",
				body: `{"metadata":{"name":"` + name + `"},"data":{"a":"b"}}`}).answer(t, s.bytes)
			if answer.StatusCode != http.StatusCreated {
				t.Fatalf("status %d: %s", answer.StatusCode, body)
			}
			if warned := strings.Contains(answer.Header.Get("Warning"),
				"managedFields was in an invalid state"); warned != want.warned {
				t.Errorf("warning %q", answer.Header.Get("Warning"))
			}
			_, stored := (call{method: http.MethodGet, path: "/api/v1/namespaces/first/configmaps/" + name}).answer(t,
				s.upstream)
			for what, text := range map[string]string{"answered": body, "stored": stored} {
				var object metav1.PartialObjectMetadata
				if err := json.Unmarshal([]byte(text), &object); err != nil {
					t.Fatal(err)
				}
				if got := managers(object.ManagedFields); got != want.managers {
					t.Errorf("%s are fields of %q, want %q", what, got, want.managers)
				}
				if want.managers != "" && !strings.Contains(string(object.ManagedFields[0].FieldsV1.GetRawBytes()), `"f:data"`) {
					t.Errorf("%s are %s", what, object.ManagedFields[0].FieldsV1)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if got := m.validated[name]; got != want.managers {
				t.Errorf("validated with fields of %q, want %q", got, want.managers)
			}
		})
	}
}

// TestCreate_HasManagedFieldsOfUpstream: a created object has the managed fields that
// upstream computes, for each manager and for requests that bring managed fields.
func TestCreate_HasManagedFieldsOfUpstream(t *testing.T) {
	t.Parallel()
	s := newAdmittingServer(t, nil, &fieldsPlugin{validated: map[string]string{}})
	brought := func(fields string) string {
		return `{"metadata":{"name":"NAME","labels":{"l":""},"managedFields":` + fields + `},"data":{"a":"b"}}`
	}
	for name, c := range map[string]struct{ agent, query, body string }{
		"agent":         {agent: "kube-controller-manager/v1.37.2 (linux)", body: brought("null")},
		"same-shape":    {agent: "kubectl/v1", body: brought("null")},
		"odd-agent":     {agent: "a\tb c \xff\xfe d/1", body: brought("null")},
		"long-agent":    {agent: strings.Repeat("ä", 100), body: brought("null")},
		"no-agent":      {agent: "/", body: brought("null")},
		"field-manager": {agent: "kubectl", query: "?fieldManager=me", body: brought("null")},
		"brought": {agent: "me",
			body: brought(
				`[{"manager":"other","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]`)},
		"unreadable": {agent: "me", body: brought(`[{"manager":"other","operation":"Destroy"}]`)},
		"reset":      {agent: "me", body: brought(`[{}]`)},
		"nothing":    {agent: "me", body: `{"metadata":{"name":"NAME"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for i, server := range []*httptest.Server{s.upstream, s.bytes, s.bytes} {
				answer, body := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/configmaps" + c.query,
					header: map[string]string{"User-Agent": c.agent},
					body:   strings.Replace(c.body, "NAME", fmt.Sprintf("%s-%d", name, i), 1)}).answer(t, server)
				if answer.StatusCode != http.StatusCreated {
					t.Fatalf("status %d: %s", answer.StatusCode, body)
				}
				var object metav1.PartialObjectMetadata
				if err := json.Unmarshal([]byte(body), &object); err != nil {
					t.Fatal(err)
				}
				for i := range object.ManagedFields {
					object.ManagedFields[i].Time = nil
				}
				text, err := json.Marshal(object.ManagedFields)
				if err != nil {
					t.Fatal(err)
				}
				fields = append(fields, string(text))
			}
			if fields[1] != fields[0] || fields[2] != fields[0] {
				t.Errorf("fields are\n%s\nand\n%s, upstream's\n%s", fields[1], fields[2], fields[0])
			}
		})
	}
}

// updatePlugin is an admission plugin that changes updated objects in the way that
// their annotation says. It records the managed fields that plugins see.
type updatePlugin struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (m *updatePlugin) Handles(admission.Operation) bool { return true }

func (m *updatePlugin) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil || attributes.GetOperation() != admission.Update {
		return err
	}
	m.see(object.GetName(), attributes)
	fields := object.GetManagedFields()
	switch object.GetAnnotations()["change"] {
	case "rename":
		fields[0].Manager = "plugin"
	case "drop":
		object.SetManagedFields(nil)
	case "spoil":
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "plugin", Operation: "Destroy"}})
	case "label":
		object.SetLabels(map[string]string{"by": "plugin"})
	case "deny":
		return errors.New("denied")
	}
	return nil
}

func (m *updatePlugin) Validate(
	_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces,
) error {
	if object, err := meta.Accessor(attributes.GetObject()); err == nil && attributes.GetOperation() == admission.Update {
		m.see(object.GetName(), attributes)
	}
	return nil
}

func (m *updatePlugin) see(name string, attributes admission.Attributes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range []any{attributes.GetOldObject(), attributes.GetObject()} {
		object, err := meta.Accessor(o)
		if err != nil {
			panic(err)
		}
		m.seen[name] = append(m.seen[name], withoutTimes(object.GetManagedFields()))
	}
}

func withoutTimes(fields []metav1.ManagedFieldsEntry) string {
	copied := append([]metav1.ManagedFieldsEntry(nil), fields...)
	for i := range copied {
		copied[i].Time = nil
	}
	text, err := json.Marshal(copied)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestUpdate_HasManagedFieldsOfUpstream: an update or a patch has the same response and
// stores the same managed fields as with upstream's handlers, whatever the request says
// about managed fields and whatever admission does. Plugins see the same.
func TestUpdate_HasManagedFieldsOfUpstream(t *testing.T) {
	m := &updatePlugin{seen: map[string][]string{}}
	s := newAdmittingServer(t, nil, m)
	s.create(t, configMaps, `{"metadata":{"name":"first"}}`) // so that no Pod has the version 1
	const (
		merge     = "application/merge-patch+json"
		strategic = "application/strategic-merge-patch+json"
		jsonPatch = "application/json-patch+json"
		apply     = "application/apply-patch+yaml"
	)
	other := `[{"manager":"other","operation":"Update","apiVersion":"v1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:nodeName":{}}}}]`
	for name, c := range map[string]struct {
		contentType, sub, query, agent, body string
		// edit makes the body of an update of what is stored.
		edit func(text string) string
	}{
		"put-as-read":            {edit: func(text string) string { return text }},
		"put-changed":            {edit: replacer(`"l":"one"`, `"l":"two"`)},
		"put-fewer":              {edit: replacer(`"labels":{"l":"one"},`, ``)},
		"put-without-fields":     {edit: withFields(`null`)},
		"put-empty-fields":       {edit: withFields(`[]`)},
		"put-reset-fields":       {edit: withFields(`[{}]`)},
		"put-other-fields":       {edit: withFields(other)},
		"put-unreadable-fields":  {edit: withFields(`[{"manager":"other","operation":"Destroy"}]`)},
		"put-by-same-manager":    {agent: "creator", edit: replacer(`"l":"one"`, `"l":"two"`)},
		"put-status":             {sub: "/status", edit: replacer(`"phase":"Pending"`, `"phase":"Running"`)},
		"put-status-with-fields": {sub: "/status", edit: withFields(other)},
		"put-old-version":        {edit: withVersion("1")},
		"put-no-version":         {edit: withVersion("")},
		"put-invalid":            {edit: replacer(`"image":"i"`, `"image":""`)},
		"put-unknown":            {query: "?fieldValidation=Strict", edit: replacer(`"spec":{`, `"spec":{"surprise":1,`)},
		"put-warned":             {edit: replacer(`"spec":{`, `"spec":{"surprise":1,`)},
		"put-field-manager":      {query: "?fieldManager=me", edit: replacer(`"l":"one"`, `"l":"two"`)},
		"put-dry-run":            {query: "?dryRun=All", edit: replacer(`"l":"one"`, `"l":"two"`)},
		"put-odd-agent":          {agent: "a\tb \xff/1", edit: replacer(`"l":"one"`, `"l":"two"`)},
		"put-renamed":            {edit: replacer(`"l":"one"}`, `"l":"one"},"annotations":{"change":"rename"}`)},
		"put-dropped":            {edit: replacer(`"l":"one"}`, `"l":"one"},"annotations":{"change":"drop"}`)},
		"put-spoilt":             {edit: replacer(`"l":"one"}`, `"l":"one"},"annotations":{"change":"spoil"}`)},
		"put-labelled":           {edit: replacer(`"l":"one"}`, `"l":"one"},"annotations":{"change":"label"}`)},
		"put-denied":             {edit: replacer(`"l":"one"}`, `"l":"one"},"annotations":{"change":"deny"}`)},
		"merge":                  {contentType: merge, body: `{"metadata":{"labels":{"l":"two","m":""}}}`},
		"merge-nothing":          {contentType: merge, body: `{}`},
		"merge-same":             {contentType: merge, body: `{"metadata":{"labels":{"l":"one"}}}`},
		"merge-remove":           {contentType: merge, body: `{"metadata":{"labels":null}}`},
		"merge-metadata":         {contentType: merge, body: `{"metadata":null}`},
		"merge-reset":            {contentType: merge, body: `{"metadata":{"managedFields":[{}]}}`},
		"merge-escaped-reset":    {contentType: merge, body: `{"metadata":{"manage\u0064Fields":[{}],"labels":{"l":"two"}}}`},
		"merge-other":            {contentType: merge, body: `{"metadata":{"managedFields":` + other + `}}`},
		"merge-type":             {contentType: merge, body: `{"spec":{"nodeName":7}}`},
		"merge-unknown":          {contentType: merge, query: "?fieldValidation=Strict", body: `{"spec":{"surprise":7}}`},
		"merge-warned":           {contentType: merge, body: `{"spec":{"surprise":7},"metadata":{"labels":{"l":"two"}}}`},
		"merge-warned-type":      {contentType: merge, body: `{"spec":{"surprise":7,"nodeName":7}}`},
		"merge-not-json":         {contentType: merge, body: `{`},
		"merge-name":             {contentType: merge, body: `{"metadata":{"name":"another"}}`},
		"merge-status": {contentType: merge, sub: "/status",
			body: `{"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}`},
		"merge-status-reset": {contentType: merge, sub: "/status",
			body: `{"status":{"message":"m"},"metadata":{"managedFields":[{}]}}`},
		"merge-charset": {contentType: merge + "; charset=utf-8", body: `{"metadata":{"labels":{"l":"two"}}}`},
		"merge-renamed": {contentType: merge, body: `{"metadata":{"annotations":{"change":"rename"}}}`},
		"merge-dropped": {contentType: merge, body: `{"metadata":{"annotations":{"change":"drop"}}}`},
		"merge-spoilt":  {contentType: merge, body: `{"metadata":{"annotations":{"change":"spoil"}}}`},
		"merge-denied":  {contentType: merge, body: `{"metadata":{"annotations":{"change":"deny"}}}`},
		"strategic":     {contentType: strategic, body: `{"spec":{"containers":[{"name":"c","image":"j"}]}}`},
		"strategic-replace": {contentType: strategic,
			body: `{"metadata":{"$patch":"replace","name":"NAME","namespace":"first"}}`},
		"strategic-delete": {contentType: strategic, body: `{"metadata":{"$patch":"delete"}}`},
		"strategic-retain": {contentType: strategic, body: `{"metadata":{"$retainKeys":["name","uid"],"name":"NAME"}}`},
		"strategic-status": {contentType: strategic, sub: "/status",
			body: `{"status":{"conditions":[{"type":"Ready","status":"True"}],"podIPs":[{"ip":"10.0.0.1"}]}}`},
		"strategic-type": {contentType: strategic, body: `{"spec":{"nodeName":7}}`},
		"json-patch": {contentType: jsonPatch,
			body: `[{"op":"replace","path":"/metadata/labels/l","value":"two"}]`},
		"json-patch-test": {contentType: jsonPatch,
			body: `[{"op":"test","path":"/metadata/managedFields/0/manager","value":"creator"},{"op":"remove","path":"/metadata/managedFields"}]`},
		"apply": {contentType: apply, query: "?fieldManager=me&force=true",
			body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","labels":{"l":"two"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			var results [2]string
			for i, server := range []*httptest.Server{s.upstream, s.bytes} {
				own := fmt.Sprintf("%s-%d", name, i)
				results[i] = changeTwice(t, s, server, own, c.contentType, c.sub, c.query, c.agent, c.body, c.edit)
				m.mu.Lock()
				results[i] += strings.Join(m.seen[own], "\n")
				m.mu.Unlock()
				results[i] = strings.ReplaceAll(results[i], own, "NAME")
			}
			if results[0] != results[1] {
				t.Errorf("got\n%s\nupstream\n%s", results[1], results[0])
			}
		})
	}
}

var variable = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|time)":"[^"]*"`)

// changeTwice creates a Pod and changes it twice. It returns the responses and what
// plugins saw.
func changeTwice(
	t *testing.T, s *server, by *httptest.Server, name, contentType, sub, query, agent, body string,
	edit func(string) string,
) string {
	t.Helper()
	path := "/api/v1/namespaces/first/pods/" + name
	created, text := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/pods",
		header: map[string]string{"User-Agent": "creator"},
		body: `{"metadata":{"name":"` + name +
			`","labels":{"l":"one"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).answer(t, s.upstream)
	if created.StatusCode != http.StatusCreated {
		t.Fatalf("status %d: %s", created.StatusCode, text)
	}
	if agent == "" {
		agent = "tester"
	}
	var all strings.Builder
	for range 2 {
		_, stored := (call{method: http.MethodGet, path: path}).answer(t, s.upstream)
		change := call{method: http.MethodPut, path: path + sub + query, header: map[string]string{"User-Agent": agent}}
		if edit != nil {
			change.body = edit(stored)
		} else {
			change.method, change.body, change.header["Content-Type"] = http.MethodPatch, strings.ReplaceAll(body, "NAME", name),
				contentType
		}
		answer, text := change.answer(t, by)
		_, stored = (call{method: http.MethodGet, path: path}).answer(t, s.upstream)
		fmt.Fprintln(&all, answer.StatusCode, answer.Header["Warning"], text, stored)
	}
	return variable.ReplaceAllString(strings.ReplaceAll(all.String(), `\`, ""), `"$1":""`)
}

func replacer(old, replacement string) func(string) string {
	return func(text string) string { return strings.Replace(text, old, replacement, 1) }
}

// withFields returns a function that replaces the managed fields of an object.
func withFields(fields string) func(string) string {
	return edited(func(metadata map[string]any) { metadata["managedFields"] = json.RawMessage(fields) })
}

func withVersion(version string) func(string) string {
	return edited(func(metadata map[string]any) { metadata["resourceVersion"] = version })
}

func edited(edit func(metadata map[string]any)) func(string) string {
	return func(text string) string {
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			panic(err)
		}
		edit(object["metadata"].(map[string]any))
		out, err := json.Marshal(object)
		if err != nil {
			panic(err)
		}
		return string(out)
	}
}

// BenchmarkStatusPatch patches the status of a Pod, by upstream's handlers and by ours, in turns.
// It measures the processor time of a patch.
func BenchmarkStatusPatch(b *testing.B) {
	s := newAdmittingServer(b, nil, admitAll{})
	ours := s.handler(s.serving)
	handlers := map[string]http.Handler{"upstream": apitest.WithContext(s.api.UpstreamWrites(), someone), "ours": ours}
	used := map[string]int64{}
	for name := range handlers {
		s.create(b, "/api/v1/namespaces/first/pods",
			`{"metadata":{"name":"`+name+
				`","labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},{"name":"d","image":"i"}]}}`)
	}
	const batch = 20
	n := 0
	for b.Loop() {
		for name, handler := range handlers {
			began := cpuTime(b)
			for range batch {
				n++
				req := httptest.NewRequestWithContext(b.Context(), http.MethodPatch,
					"/api/v1/namespaces/first/pods/"+name+"/status", strings.NewReader(fmt.Sprintf(`{"status":{"message":"%d"}}`, n)))
				req.Header.Set("Content-Type", "application/merge-patch+json")
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, req); w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
			used[name] += cpuTime(b) - began
		}
	}
	for name, time := range used {
		b.ReportMetric(float64(time)/float64(n/2), "cpu-ns/"+name)
	}
}
