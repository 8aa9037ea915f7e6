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

func (m *updatePlugin) Validate(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
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
		"merge-status":           {contentType: merge, sub: "/status", body: `{"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}`},
		"merge-status-reset":     {contentType: merge, sub: "/status", body: `{"status":{"message":"m"},"metadata":{"managedFields":[{}]}}`},
		"merge-charset":          {contentType: merge + "; charset=utf-8", body: `{"metadata":{"labels":{"l":"two"}}}`},
		"merge-renamed":          {contentType: merge, body: `{"metadata":{"annotations":{"change":"rename"}}}`},
		"merge-dropped":          {contentType: merge, body: `{"metadata":{"annotations":{"change":"drop"}}}`},
		"merge-spoilt":           {contentType: merge, body: `{"metadata":{"annotations":{"change":"spoil"}}}`},
		"merge-denied":           {contentType: merge, body: `{"metadata":{"annotations":{"change":"deny"}}}`},
		"strategic":              {contentType: strategic, body: `{"spec":{"containers":[{"name":"c","image":"j"}]}}`},
		"strategic-replace":      {contentType: strategic, body: `{"metadata":{"$patch":"replace","name":"NAME","namespace":"first"}}`},
		"strategic-delete":       {contentType: strategic, body: `{"metadata":{"$patch":"delete"}}`},
		"strategic-retain":       {contentType: strategic, body: `{"metadata":{"$retainKeys":["name","uid"],"name":"NAME"}}`},
		"strategic-status":       {contentType: strategic, sub: "/status", body: `{"status":{"conditions":[{"type":"Ready","status":"True"}],"podIPs":[{"ip":"10.0.0.1"}]}}`},
		"strategic-type":         {contentType: strategic, body: `{"spec":{"nodeName":7}}`},
		"json-patch":             {contentType: jsonPatch, body: `[{"op":"replace","path":"/metadata/labels/l","value":"two"}]`},
		"json-patch-test":        {contentType: jsonPatch, body: `[{"op":"test","path":"/metadata/managedFields/0/manager","value":"creator"},{"op":"remove","path":"/metadata/managedFields"}]`},
		"apply":                  {contentType: apply, query: "?fieldManager=me&force=true", body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","labels":{"l":"two"}}}`},
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
func changeTwice(t *testing.T, s *server, by *httptest.Server, name, contentType, sub, query, agent, body string, edit func(string) string) string {
	t.Helper()
	path := "/api/v1/namespaces/first/pods/" + name
	created, text := (call{method: http.MethodPost, path: "/api/v1/namespaces/first/pods", header: map[string]string{"User-Agent": "creator"},
		body: `{"metadata":{"name":"` + name + `","labels":{"l":"one"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).answer(t, s.upstream)
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
			change.method, change.body, change.header["Content-Type"] = http.MethodPatch, strings.ReplaceAll(body, "NAME", name), contentType
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
		s.create(b, "/api/v1/namespaces/first/pods", `{"metadata":{"name":"`+name+`","labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]},{"name":"d","image":"i"}]}}`)
	}
	const batch = 20
	n := 0
	for b.Loop() {
		for name, handler := range handlers {
			began := cpuTime(b)
			for range batch {
				n++
				req := httptest.NewRequestWithContext(b.Context(), http.MethodPatch, "/api/v1/namespaces/first/pods/"+name+"/status", strings.NewReader(fmt.Sprintf(`{"status":{"message":"%d"}}`, n)))
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
