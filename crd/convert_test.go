package crd_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// TestConversion_SharesWebhookCalls: many readers read objects by each verb in a version
// that a webhook converts to. Each object is converted once, and one call converts a page
// of them.
func TestConversion_SharesWebhookCalls(t *testing.T) {
	t.Parallel()
	onDatabases(t, testConvertedTogether)
}

func testConvertedTogether(t *testing.T, s *server) {
	const objects = 60
	c := newConverter(t)
	s.defineConverted(t, c)
	for i := range objects {
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"CronTab","metadata":{"name":"a%02d","labels":{"odd":"%d"}},"spec":{"schedule":"%d"}}`, i, i%2, i)
		if w := s.do(t, http.MethodPost, crontabPath("v1"), body); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	since := func() func(what string, calls, objects int32) {
		calls, converted := c.calls.Load(), c.objects.Load()
		return func(what string, mostCalls, want int32) {
			t.Helper()
			if n, m := c.calls.Load()-calls, c.objects.Load()-converted; n > mostCalls || m != want {
				t.Errorf("%s: %d calls for %d objects, want at most %d for %d", what, n, m, mostCalls, want)
			}
		}
	}
	client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1beta1", Resource: "crontabs"}).Namespace("default")
	list := func(options metav1.ListOptions, want int) *unstructured.UnstructuredList {
		t.Helper()
		got, err := client.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Items) != want {
			t.Errorf("%d items, want %d", len(got.Items), want)
		}
		for _, item := range got.Items {
			cron, _, _ := unstructured.NestedString(item.Object, "spec", "cron")
			if item.GetAPIVersion() != "example.com/v1beta1" || cron == "" {
				t.Fatalf("not converted: %v", item.Object)
			}
		}
		return got
	}

	converted := since()
	list(metav1.ListOptions{Limit: 20}, 20)
	converted("a page", 1, 20)
	converted = since()
	var readers errgroup.Group
	for range 8 {
		readers.Go(func() error {
			list(metav1.ListOptions{}, objects)
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		t.Fatal(err)
	}
	converted("lists at the same time", 2, objects-20)
	converted = since()
	list(metav1.ListOptions{LabelSelector: "odd=1"}, objects/2)
	list(metav1.ListOptions{LabelSelector: "odd=0", Limit: 7}, 7)
	whole := list(metav1.ListOptions{ResourceVersion: "0"}, objects)
	converted("the same again", 0, 0)

	converted = since()
	var watches []apiwatch.Interface
	for _, options := range []metav1.ListOptions{
		{ResourceVersion: whole.GetResourceVersion()},
		{ResourceVersion: whole.GetResourceVersion()},
		{ResourceVersion: whole.GetResourceVersion(), LabelSelector: "odd=1"},
	} {
		events, err := client.Watch(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		watches = append(watches, events)
	}
	if w := s.do(t, http.MethodPatch, crontabPath("v1")+"/a01", `{"spec":{"schedule":"new"}}`, "Content-Type", "application/merge-patch+json"); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for i, events := range watches {
		event := <-events.ResultChan()
		u, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type != apiwatch.Modified {
			t.Fatalf("watch %d: %v", i, event)
		}
		if cron, _, _ := unstructured.NestedString(u.Object, "spec", "cron"); cron != "new" {
			t.Errorf("watch %d: %v", i, u.Object)
		}
	}
	converted("one change for three watches", 1, 1)

	initial, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	for range objects {
		<-initial.ResultChan()
	}
	converted("initial events", 1, 1)
}

// TestConversion_FailureHidesNoOtherObject: an object that the webhook fails to convert
// does not hide others.
func TestConversion_FailureHidesNoOtherObject(t *testing.T) {
	t.Parallel()
	onDatabases(t, testOneThatCannotBeConverted)
}

func testOneThatCannotBeConverted(t *testing.T, s *server) {
	c := newConverter(t)
	s.defineConverted(t, c)
	c.refuse.Store(new("bad"))
	for _, name := range []string{"a", "b", "bad", "c"} {
		if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", name, `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "refused") {
		t.Errorf("list: %d %s", w.Code, w.Body)
	}
	// Nothing of a long list is sent before its last object is converted.
	for i := range 40 {
		if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", fmt.Sprint("a", i), `{"schedule":"`+strings.Repeat("*", 10_000)+`"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"kind":"Status"`) {
		t.Errorf("long list: %d with %d bytes", w.Code, w.Body.Len())
	}
	for name, code := range map[string]int{"a": 200, "b": 200, "c": 200, "bad": 500} {
		if w := s.do(t, http.MethodGet, crontabPath("v1beta1")+"/"+name, ""); w.Code != code {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	c.refuse.Store(nil)
	if w := s.do(t, http.MethodGet, crontabPath("v1beta1"), ""); w.Code != http.StatusOK {
		t.Errorf("list when the webhook has changed its mind: %d %s", w.Code, w.Body)
	}
}

// An object that a webhook does not convert is sound. Its reader is told of the webhook and not that the object is
// corrupt.
func TestConversion_FailureIsNoCorruption(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		expect := func(when, want string) {
			t.Helper()
			for _, request := range [][3]string{
				{http.MethodGet, "/a", ""}, {http.MethodGet, "", ""}, {http.MethodDelete, "/a", ""},
			} {
				w := s.do(t, request[0], crontabPath("v1beta1")+request[1], request[2])
				if body := w.Body.String(); w.Code != http.StatusInternalServerError || strings.Contains(body, "orrupt") || strings.Contains(body, "decodable") || !strings.Contains(body, want) {
					t.Errorf("%s, %s: %d %s", when, request, w.Code, body)
				}
			}
			if w := s.do(t, http.MethodGet, crontabPath("v1")+"/a", ""); w.Code != http.StatusOK {
				t.Errorf("%s the object is gone: %d %s", when, w.Code, w.Body)
			}
		}
		c.refuse.Store(new("a"))
		expect("when the webhook refuses", "refused")
		c.Close()
		expect("when the webhook is away", "conversion webhook for example.com/v1, Kind=CronTab failed")
	})
}
