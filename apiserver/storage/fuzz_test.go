package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// FuzzKey: a path is either refused or leads to a key of its own resource, and that key has
// one path.
func FuzzKey(f *testing.F) {
	for _, key := range []string{
		"/pods/ns/name", "/pods/name", "/pods", "/pods/", "pods/ns/name", "/pods/ns/a/b", "/pods/../secrets/ns/name",
		"/pods/./a", "/pods/ns/..", "/podsx/a",
		"/pods//name", "/pods//0/", "/pods/ns/", "//pods/ns/name", "/pods/ns/na\x00me", "/pods/\xff", "/secrets/ns/name", "",
		"/", "/pods/ns/name/", "/pods/%2e%2e/x", "/pods/'; DROP TABLE objects; --/x",
	} {
		f.Add(key)
	}
	s := newFixture(f, backends()[0])
	f.Fuzz(func(t *testing.T, key string) {
		at, err := s.records.locate(key)
		if err == nil {
			if at.Resource != "pods" || at.Group != "" || strings.Contains(at.Namespace, "/") || at.Name == "" {
				t.Errorf("%q leads to %q", key, at.Key)
			}
			if again, err := s.records.locate(strings.TrimPrefix(at.path, DefaultKeyPrefix)); err != nil || again != at {
				t.Errorf("%q has the path %q, which leads to %q: %v", key, at.path, again.Key, err)
			}
			if at.path != s.records.pathOf(at.Key) {
				t.Errorf("%q has the path %q, its key %q", key, at.path, s.records.pathOf(at.Key))
			}
		}
		for _, recursive := range []bool{false, true} {
			if sp, err := s.records.keyRange(key, recursive); err == nil && !strings.HasPrefix(sp.path, s.records.prefix) {
				t.Errorf("%q covers %q", key, sp.path)
			}
		}
	})
}

// fuzzPods creates Pods that fuzzed lists can find.
func fuzzPods(f *testing.F) (*fixture, []*example.Pod) {
	s := newFixture(f, backends()[0])
	var pods []*example.Pod
	for i := range 40 {
		pod := &example.Pod{}
		pod.Namespace, pod.Name = fmt.Sprintf("ns%d", i%3), fmt.Sprintf("pod-%d", i)
		pod.Labels = map[string]string{"app": []string{"a", "b", ""}[i%3], "n": fmt.Sprint(i)}
		pod.Spec.NodeName = []string{"", "node1", "node2", "1"}[i%4]
		if i%5 == 0 {
			pod.Labels = nil
		}
		out := &example.Pod{}
		if err := s.Create(f.Context(), "/pods/"+pod.Namespace+"/"+pod.Name, pod, out, 0); err != nil {
			f.Fatal(err)
		}
		pods = append(pods, out)
	}
	return s, pods
}

// listed returns the names on a page.
func listed(p *page) (names []string, err error) {
	for e, err := range p.items {
		if err != nil {
			return nil, err
		}
		names = append(names, e.Namespace+"/"+e.Name)
	}
	return names, nil
}

// refused reports whether an error tells the client what is wrong with its request.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500 ||
		storage.IsTooLargeResourceVersion(err) || errors.Is(err, context.Canceled)
}

// FuzzContinue: a continue token that the server did not issue is refused, or it continues
// within the list and gives the same page from memory as from the database.
func FuzzContinue(f *testing.F) {
	token := func(version, start string, rv int64) string {
		key, err := storage.EncodeContinue("/pods/"+start, "/pods/", rv)
		if err != nil {
			f.Fatal(err)
		}
		return strings.Replace(key, "meta.k8s.io/v1", version, 1)
	}
	for _, start := range []string{"ns1/pod-1\x00", "ns1/pod-1", "ns1/", "ns1", "zzz/", "a", "ns1/pod-\xff", "ns1/p\x00d",
		"/"} {
		f.Add(token("meta.k8s.io/v1", start, 20), "", byte(5))
		f.Add(token("meta.k8s.io/v1", start, -1), "ns1", byte(0))
	}
	f.Add("", "ns1", byte(1))
	f.Add("bm90IGpzb24", "", byte(1))
	f.Add(token("meta.k8s.io/v1", "../secrets/a", 1), "", byte(1))
	f.Add(token("meta.k8s.io/v1", "ns2/pod-2\x00", 1<<62), "ns1", byte(1))
	s, _ := fuzzPods(f)
	snapshot, err := s.feed.Snapshot(f.Context(), sqlstore.Resource{Resource: "pods"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token, namespace string, limit byte) {
		key := "/pods/"
		if namespace != "" {
			key += namespace + "/"
		}
		l, err := s.lister.parseListRequest(key, storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.Everything(), Limit: int64(limit), Continue: token,
		}})
		if err != nil {
			return // in upstream's words
		}
		if l.exact > snapshot.Revision() {
			return // a read waits for that revision
		}
		ctx := t.Context()
		stored, err := s.lister.pageFromDatabase(ctx, l)
		if err != nil {
			if !refused(err) {
				t.Errorf("from the database: %v", err)
			}
			return
		}
		fromDatabase, err := listed(stored)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range fromDatabase {
			if l.namespace != "" && !strings.HasPrefix(name, l.namespace+"/") {
				t.Errorf("a list of %q has %q", l.namespace, name)
			}
		}
		if l.exact != 0 && l.exact < snapshot.Since() {
			return
		}
		remembered, err := s.lister.pageFromSnapshot(ctx, l, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		fromMemory, err := listed(remembered)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(fromMemory, fromDatabase) {
			t.Errorf("from memory %v, from the database %v", fromMemory, fromDatabase)
		}
	})
}

// FuzzSelectors: a list with selectors has all objects that match and no others, also where
// the index is used.
func FuzzSelectors(f *testing.F) {
	for _, field := range []string{
		"", "spec.nodeName=node1", "spec.nodeName==node2,metadata.namespace=ns1", "spec.nodeName=", "spec.nodeName!=node1",
		"spec.nodeName=node1,spec.nodeName=node2",
		"spec.nodeName=node1,spec.nodeName!=node1", "metadata.name=pod-3", `spec.nodeName=n\,ode`,
		"spec.nodeName=' OR 1=1 --", "unknown=1", "spec.nodeName",
	} {
		for _, label := range []string{"", "app", "!app", "app=a", "app in (a,b),n notin (1)", "n>10,n<20", "app=''; --"} {
			f.Add(label, field, "ns1")
			f.Add(label, field, "")
		}
	}
	s, pods := fuzzPods(f)
	f.Fuzz(func(t *testing.T, label, field, namespace string) {
		byLabel, labelErr := labels.Parse(label)
		byField, fieldErr := fields.ParseSelector(field)
		if labelErr != nil || fieldErr != nil || strings.ContainsAny(namespace, "/.") {
			return
		}
		key := "/pods/"
		if namespace != "" {
			key += namespace + "/"
		}
		p := storage.SelectionPredicate{Label: byLabel, Field: byField, GetAttrs: podAttrs}
		page, err := s.lister.page(t.Context(), key, storage.ListOptions{Recursive: true, Predicate: p}, nil)
		if err != nil {
			if !refused(err) {
				t.Fatal(err)
			}
			return
		}
		got, err := listed(page)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, pod := range pods {
			ok, err := p.Matches(pod)
			if err != nil {
				t.Fatal(err)
			}
			if ok && (namespace == "" || pod.Namespace == namespace) {
				want = append(want, pod.Namespace+"/"+pod.Name)
			}
		}
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("labels %q, fields %q in %q: %v, want %v", label, field, namespace, got, want)
		}
	})
}
