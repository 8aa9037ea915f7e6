package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/history"
	"byre/apiserver/query"
)

// A download is the server's answer to one request, as it is.
func TestConsole_DownloadsAreTheServersAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]any{
		"/api/v1/namespaces/shop/pods":     object{"kind": "PodList"},
		"/api/v1/namespaces/shop/pods/web": object{"kind": "Pod"}, query.Path: object{"kind": "Query"},
	})
	for path, want := range map[string][2]string{
		"r/core/v1/pods?namespace=shop&labelSelector=a%3Db&format=json": {"GET /api/v1/namespaces/shop/pods?labelSelector=a%3Db", "application/json"},
		"o/core/v1/pods/shop/web?format=json":                           {"GET /api/v1/namespaces/shop/pods/web", "application/json"},
		"o/core/v1/pods/shop/web?format=yaml":                           {"GET /api/v1/namespaces/shop/pods/web", "application/yaml"},
		"sql?q=SELECT+1&format=csv":                                     {"POST " + query.Path, "text/csv"},
		"sql?q=SELECT+1&format=ndjson":                                  {"POST " + query.Path, "application/x-ndjson"},
	} {
		w := s.get(Path + path)
		last := s.requests[len(s.requests)-1]
		if got := last.Method + " " + last.RequestURI; got != want[0] || last.Header.Get("Accept") != want[1] || !strings.Contains(w.Body.String(), `"kind"`) {
			t.Errorf("%s asks %s for %s, and gets %s", path, got, last.Header.Get("Accept"), w.Body)
		}
		// The answer may be any aggregated server's, of any type.
		if _, isBounded := last.Context().Deadline(); !isBounded || !strings.Contains(w.Header().Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: bounded %t, %v", path, isBounded, w.Header())
		}
		if last.Method == http.MethodPost && s.bodies[len(s.bodies)-1] != "SELECT 1" {
			t.Errorf("%s asks %q", path, s.bodies[len(s.bodies)-1])
		}
	}
}

func TestCommand_QuotesWordsAndRefusesControlCharacters(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"web": "kubectl byre undelete pods/web -n shop", "system:node": "kubectl byre undelete pods/system:node -n shop",
		"$(reboot)": "kubectl byre undelete 'pods/$(reboot)' -n shop", "it's": `kubectl byre undelete 'pods/it'\''s' -n shop`,
		"a b;c": "kubectl byre undelete 'pods/a b;c' -n shop", "a\nb": "", "\x1b[2J": "", "\u202ea": "", "": "kubectl byre undelete pods/ -n shop",
	} {
		if got := undelete(resource{Resource: "pods"}, "shop", name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	if got := undelete(resource{Resource: "namespaces"}, "", "shop"); got != "kubectl byre undelete -n shop" {
		t.Error(got)
	}
}

// podTable is a Table with the rows n of a page of a list.
func podTable(next string, rows ...[]any) object {
	t := object{
		"metadata":          object{"resourceVersion": "9", "continue": next},
		"columnDefinitions": []object{{"name": "Name"}, {"name": "Restarts"}, {"name": "Age"}, {"name": "Node", "priority": 1}},
	}
	var all []object
	for i, cells := range rows {
		all = append(all, object{"cells": cells, "object": object{"metadata": object{"name": cells[0], "namespace": fmt.Sprint("ns", i%2), "creationTimestamp": noon.Add(time.Duration(i) * time.Minute)}}})
	}
	t["rows"] = all
	return t
}

var rowLink = regexp.MustCompile(`href="\.\./\.\./\.\./o/core/v1/pods/([^"]*)"`)

func TestTable_SortsAndFilters(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]any{"/api/v1/pods": podTable("", []any{"web-10", "10 (5m ago)", "3m", "n1"}, []any{"web-9", "9", "2m", "n2"}, []any{"db", 100, "1m", "n1"})})
	for parameters, want := range map[string]string{
		"": "ns0/web-10 ns1/web-9 ns0/db", "?sort=Name": "ns0/db ns0/web-10 ns1/web-9", "?sort=Restarts": "ns1/web-9 ns0/web-10 ns0/db",
		"?sort=Restarts&desc=1": "ns0/db ns0/web-10 ns1/web-9", "?sort=Age": "ns0/db ns1/web-9 ns0/web-10",
		"?sort=Namespace": "ns0/web-10 ns0/db ns1/web-9", "?sort=none": "ns0/web-10 ns1/web-9 ns0/db",
		"?q=WEB": "ns0/web-10 ns1/web-9", "?q=ns1": "ns1/web-9", "?q=n2": "ns1/web-9", "?q=none": "",
	} {
		var got []string
		for _, match := range rowLink.FindAllStringSubmatch(s.get(Path+"r/core/v1/pods"+parameters).Body.String(), -1) {
			got = append(got, match[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", parameters, got, want)
		}
	}
}

// A download in CSV has the rows of all pages of the list; if one fails, the connection breaks.
func TestTable_DownloadHasAllPages(t *testing.T) {
	t.Parallel()
	second := any(podTable("", []any{"b,\"c\"", 0, "1m", "n2"}))
	s := newServer(t, map[string]any{"/api/v1/pods": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := any(podTable("more", []any{"a", 0, "1m", "n1"}))
		if r.URL.Query().Get("continue") == "more" {
			page = second
		}
		if page == nil {
			w.WriteHeader(http.StatusGone)
		}
		_ = json.NewEncoder(w).Encode(page)
	})})
	want := "namespace,created,name,restarts,age,node\nns0,2026-12-01T12:00:00Z,a,0,1m,n1\nns0,2026-12-01T12:00:00Z,\"b,\"\"c\"\"\",0,1m,n2\n"
	if w := s.get(Path + "r/core/v1/pods?format=csv"); w.Body.String() != want || w.Header().Get("Content-Disposition") != "attachment; filename=pods.csv" {
		t.Errorf("%v\n%s", w.Header(), w.Body)
	}
	if _, isBounded := s.requests[len(s.requests)-1].Context().Deadline(); isBounded {
		t.Error("the whole download has the time of one request")
	}
	second = nil
	defer func() {
		if reason := recover(); reason != http.ErrAbortHandler { //nolint:errorlint // a panic's value
			t.Errorf("it ended with %v", reason)
		}
	}()
	s.get(Path + "r/core/v1/pods?format=csv")
}

// An object that is gone has its history, and the command that brings it back.
func TestObject_ThatIsGoneHasItsHistory(t *testing.T) {
	t.Parallel()
	gone := object{"items": []object{{"revision": 7, "time": metav1.NewMicroTime(noon.Add(-time.Hour)), "who": "bob", "verb": "delete", "object": object{"resource": "pods", "namespace": "shop", "name": "web"}}}}
	s := newServer(t, map[string]any{changesPath + "/namespaces/shop/changes": gone})
	w := s.get(Path + "o/core/v1/pods/shop/web?since=24h")
	for _, want := range []string{"kubectl byre undelete pods/web -n shop", "bob", "60m ago", `href="../../../../../change/shop/7"`} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d, and no %s:\n%s", w.Code, want, w.Body)
		}
	}
	selector, err := url.QueryUnescape(s.requests[len(s.requests)-1].URL.Query().Get("fieldSelector"))
	if err != nil || !strings.Contains(selector, "object.name=web") || !strings.Contains(selector, "since=2026-11-30T12:00:00Z") {
		t.Errorf("it selects %s", selector)
	}
	s.answers[changesPath+"/namespaces/shop/changes"] = object{}
	if w := s.get(Path + "o/core/v1/pods/shop/web"); w.Code != http.StatusNotFound {
		t.Errorf("without a history: %d", w.Code)
	}
	unavailable, forbidden := apierrors.NewServiceUnavailable("away").Status(), apierrors.NewForbidden(schema.GroupResource{}, "", nil).Status()
	for _, unknown := range []struct {
		parameters string
		answer     any
		status     int
	}{
		{"", refuseIf("", unavailable, nil), http.StatusOK}, {"", refuseIf("", forbidden, nil), http.StatusNotFound}, {"?since=24h", object{}, http.StatusOK},
	} {
		s.answers[changesPath+"/namespaces/shop/changes"] = unknown.answer
		if w := s.get(Path + "o/core/v1/pods/shop/web" + unknown.parameters); w.Code != unknown.status {
			t.Errorf("%+v: %d %s", unknown, w.Code, w.Body)
		}
	}
}

// Of a history that does not reach back to a moment, a page shows what there is, and says what is missing; so it
// does if one of its lists fails.
func TestDeleted_ShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	deleted := func(revision int, age time.Duration) object {
		return object{"revision": revision, "time": metav1.NewMicroTime(noon.Add(-age)), "object": object{"resource": "pods", "name": "web", "uid": strconv.Itoa(revision)}}
	}
	list := object{"items": []object{deleted(9, time.Hour), deleted(8, 25*time.Hour)}}
	for selected, failure := range map[string]metav1.Status{
		"since=": apierrors.NewResourceExpired("too short").Status(), "verb=delete,": apierrors.NewTooManyRequestsError("too many").Status(),
	} {
		body := newServer(t, map[string]any{changesPath + "/changes": refuseIf(selected, failure, list)}).get(Path + "deleted?since=24h").Body.String()
		if !strings.Contains(body, failure.Message) || !strings.Contains(body, "change/default/9") || selected == "since=" && strings.Contains(body, "change/default/8") {
			t.Errorf("%s\n%s", selected, body)
		}
	}
}

// A page shows the newest changes, says that there are older ones, and asks for no more than it shows.
func TestObject_ShowsTheNewestChanges(t *testing.T) {
	t.Parallel()
	const path = changesPath + "/namespaces/shop/changes"
	page := object{"metadata": object{"continue": "more"}, "items": slices.Repeat([]object{{"revision": 7, "time": metav1.NewMicroTime(noon), "who": "bob", "verb": "update"}}, 150)}
	s := newServer(t, map[string]any{path: page})
	body := s.get(Path + "o/core/v1/pods/shop/web").Body.String()
	requests := slices.DeleteFunc(slices.Clone(s.requests), func(r *http.Request) bool { return r.URL.Path != path })
	if changes := strings.Count(body, "/change/"); changes != changesPerPage || len(requests) != 2 || !strings.Contains(body, "older changes") {
		t.Errorf("%d changes of %d requests:\n%s", changes, len(requests), body)
	}
	if first, second := requests[0].URL.Query(), requests[1].URL.Query(); !strings.Contains(first.Get("fieldSelector"), "order=newest") || second.Get("continue") != "more" {
		t.Errorf("it asks %s and %s", first, second)
	}
	page["metadata"] = object{}
	if body := s.get(Path + "o/core/v1/pods/shop/web").Body.String(); strings.Contains(body, "older changes") {
		t.Error(body)
	}
}

// Two versions of many lines are compared as a whole: line by line it would take minutes, which nothing ends.
func TestChange_OfManyLinesIsShown(t *testing.T) {
	t.Parallel()
	var before, after strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&before, "%x\n%xb\n", i, i)
		fmt.Fprintf(&after, "%x\n%xa\n", i, i)
	}
	of := func(data string) *runtime.RawExtension {
		text, err := json.Marshal(object{"data": object{"a": data, "b": "same"}})
		if err != nil {
			t.Fatal(err)
		}
		return &runtime.RawExtension{Raw: text}
	}
	for _, c := range []struct {
		before, after string
		lines         int
		first, last   diffLine
	}{
		{before.String(), after.String(), 1 + 2*79_999, diffLine{"place", "@@ -4,79999 +4,79999 @@"}, diffLine{"added", "+    9c3fa"}},
		{before.String(), before.String() + "x\n", 2, diffLine{"place", "@@ -80003,0 +80003,1 @@"}, diffLine{"added", "+    x"}},
		{before.String(), before.String(), 0, diffLine{}, diffLine{}},
	} {
		lines, err := (&change{history.Change{Before: of(c.before), After: of(c.after)}}).diff()
		if err != nil || len(lines) != c.lines || c.lines > 0 && (lines[0] != c.first || lines[len(lines)-1] != c.last) {
			t.Errorf("%d lines, %q to %q, %v", len(lines), lines[:min(1, len(lines))], lines[max(0, len(lines)-1):], err)
		}
	}
}
