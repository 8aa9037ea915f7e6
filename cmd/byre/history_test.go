package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/history"
	"byre/sqlstore/storetest"
)

// chronicle asks a server for changes, as different users.
type chronicle struct {
	*testing.T
	dir string
	// endpoint is a PostgreSQL, or SQLite in dir.
	endpoint string
	config   *rest.Config
	kube     kubernetes.Interface
}

const (
	allChanges = "/apis/history.byre.dev/v1/changes"
	inShop     = "/apis/history.byre.dev/v1/namespaces/shop/changes"
	inBank     = "/apis/history.byre.dev/v1/namespaces/bank/changes"
)

// as returns the answer to a request of a user; of the administrator if it is empty.
func (h *chronicle) as(user, path, accept string) (int, string) {
	h.Helper()
	config := rest.CopyConfig(h.config)
	config.Impersonate.UserName = user
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		h.Fatal(err)
	}
	request, err := http.NewRequestWithContext(h.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		h.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	h.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	h.must(err)
	return response.StatusCode, string(body)
}

// list returns the list that a user sees.
func (h *chronicle) list(user, path string) (list history.ChangeList, text string) {
	h.Helper()
	status, body := h.as(user, path, "application/json")
	if status != http.StatusOK {
		h.Fatalf("%s as %q: %d %s", path, user, status, body)
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		h.Fatal(err)
	}
	return list, body
}

// expectOnly expects of a user's list that it has some canaries, and none of the others.
func (h *chronicle) expectOnly(user, path string, want ...string) {
	h.Helper()
	list, text := h.list(user, path)
	var got []string
	for _, item := range list.Items {
		if item.Namespace != "shop" && item.Namespace != "bank" {
			continue
		}
		_, one := h.as(user, "/apis/history.byre.dev/v1/namespaces/"+item.Namespace+"/changes/"+item.Name, "application/json")
		text += one
	}
	for _, canary := range canaries {
		if strings.Contains(text, canary) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(canary))) {
			got = append(got, canary)
		}
	}
	if !slices.Equal(got, want) {
		h.Errorf("%s as %q has %q, want %q", path, user, got, want)
	}
}

// canaries are in one object each.
var canaries = []string{"canary-bank-config", "canary-shop-config", "canary-shop-secret", "canary-shop-widget"}

func (h *chronicle) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// bind gives a user rights in a namespace, or cluster-wide if it is empty.
func (h *chronicle) bind(namespace, user, role string) {
	h.Helper()
	meta := metav1.ObjectMeta{Name: strings.ReplaceAll(user+"-"+role, ":", "-")}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	var err error
	if namespace == "" {
		_, err = h.kube.RbacV1().ClusterRoleBindings().Create(h.Context(),
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
	} else {
		_, err = h.kube.RbacV1().RoleBindings(namespace).Create(h.Context(),
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
	}
	h.must(err)
}

func (h *chronicle) makeNamespace(name string) {
	h.Helper()
	_, err := h.kube.CoreV1().Namespaces().Create(h.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	h.must(err)
}

// write creates a ConfigMap, or changes its only value.
func (h *chronicle) write(namespace, name, value string) {
	h.Helper()
	maps, data := h.kube.CoreV1().ConfigMaps(namespace), map[string]string{"key": value}
	object, err := maps.Get(h.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(h.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data},
			metav1.CreateOptions{})
	} else if err == nil {
		object.Data = data
		_, err = maps.Update(h.Context(), object, metav1.UpdateOptions{})
	}
	h.must(err)
}

// awaitRights waits until a user may list changes at a path, and the objects of a resource in it.
func (h *chronicle) awaitRights(user, path string) {
	h.Helper()
	storetest.EventuallyDone(h.T, user+" may list changes", func(context.Context) (bool, error) {
		status, _ := h.as(user, path, "application/json")
		return status == http.StatusOK, nil
	})
}

func newChronicle(t *testing.T, flags ...string) *chronicle {
	t.Helper()
	// On a busy machine a query takes longer than the default.
	h := (&chronicle{T: t}).of(t.TempDir(), append([]string{"--sql-timeout=1m"}, flags...)...)
	for _, resource := range []string{"configmaps", "secrets", "widgets"} {
		_, err := h.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: resource},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"", "example.com"}, Resources: []string{resource},
				Verbs: []string{"list"}}},
		}, metav1.CreateOptions{})
		h.must(err)
	}
	return h
}

// Two tenants and others see the changes of what they may list, and nothing else, in lists and in
// single changes: not what an encrypted Secret was, not what a namespace of the same name had before,
// not the objects of a definition that is gone.
func TestHistory_ShowsWhatTheUserMayList(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encryption := filepath.Join(t.TempDir(), "encryption.yaml")
			if err := os.WriteFile(encryption, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[
				{"resources":["secrets","widgets.example.com"],"providers":[{"aescbc":{"keys":[{"name":"key1","secret":"`+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))+`"}]}}]}]}`), 0o600); err != nil {
				t.Fatal(err)
			}
			h := newChronicle(t, append(flags(t), "--encryption-provider-config="+encryption)...)
			h.fill()
			h.bind("shop", "alice", "configmaps")
			h.bind("shop", "alice", "byre:history-viewer")
			h.bind("bank", "bob", "configmaps")
			h.bind("bank", "bob", "byre:history-viewer")
			h.bind("shop", "carol", "secrets")
			h.bind("shop", "carol", "widgets")
			h.bind("", "carol", "byre:history-viewer")
			h.bind("", "dave", "byre:history-viewer")
			h.bind("", "erin", "configmaps")
			h.bind("", "frank", "configmaps")
			h.bind("", "frank", "byre:history-viewer")
			h.bind("", "frank", "widgets")
			h.awaitRights("alice", inShop)
			h.awaitRights("bob", inBank)
			for _, user := range []string{"carol", "dave", "frank"} {
				h.awaitRights(user, allChanges)
			}
			h.expectOnly("", allChanges, canaries...)
			h.expectOnly("", inShop, canaries[1:]...)
			h.expectOnly("alice", inShop, "canary-shop-config")
			h.expectOnly("bob", inBank, "canary-bank-config")
			h.expectOnly("carol", allChanges, "canary-shop-secret", "canary-shop-widget")
			h.expectOnly("dave", allChanges)
			h.expectOnly("frank", allChanges, "canary-bank-config", "canary-shop-config", "canary-shop-widget")
			for _, refused := range [][2]string{{"alice", inBank}, {"alice", allChanges}, {"bob", inShop}, {"erin", allChanges},
				{"erin", inShop}} {
				if status, body := h.as(refused[0], refused[1], "application/json"); status != http.StatusForbidden {
					t.Errorf("%s as %s: %d %s", refused[1], refused[0], status, body)
				}
			}
			h.expectHidden("alice", "object.resource=secrets")

			deleteNamespace(t, h.kube, "shop")
			h.expectOnly("carol", allChanges)
			h.makeNamespace("shop")
			h.bind("shop", "alice", "configmaps")
			h.bind("shop", "alice", "byre:history-viewer")
			h.write("shop", "later", "later")
			h.awaitRights("alice", inShop)
			storetest.Eventually(t, "alice sees what is new", func() bool {
				_, text := h.list("alice", inShop)
				return strings.Contains(text, `"later"`)
			})
			h.expectOnly("alice", inShop)
			h.expectOnly("", inShop, canaries[1:]...)
			h.expectOnly("frank", inShop, "canary-shop-config", "canary-shop-widget")

			definitions := dynamic.NewForConfigOrDie(h.config).Resource(
				schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
			h.must(definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
			storetest.Eventually(t, "the definition is gone", func() bool {
				_, err := definitions.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
			encrypted := "--encryption-provider-config=" + encryption
			for name, other := range map[string]*chronicle{"itself": h, "restored": h.restored(encrypted),
				"replica": h.replica(encrypted)} {
				if other == nil {
					continue
				}
				t.Log(name)
				other.awaitRights("alice", inShop)
				other.awaitRights("frank", inShop)
				other.expectOnly("alice", inShop)
				other.expectOnly("frank", inShop, "canary-shop-config")
				other.expectOnly("", inShop, canaries[1:]...)
			}
			succeed(t, append([]string{"compact", "--keep=0s", "--resource=secrets"}, h.database()...)...)
			h.expectOnly("alice", inShop)
			h.expectOnly("", inShop, "canary-shop-config", "canary-shop-widget")
		})
	}
}

func (h *chronicle) isSQLite() bool { return strings.HasPrefix(h.endpoint, "sqlite://") }

// database returns the flags that name the database.
func (h *chronicle) database() []string {
	if h.isSQLite() {
		return []string{"--data-dir", h.dir}
	}
	return []string{"--endpoint", h.endpoint}
}

// restored starts a server on a copy of the database, which is restored from a backup.
func (h *chronicle) restored(flags ...string) *chronicle {
	h.Helper()
	file, dir := filepath.Join(h.TempDir(), "backup"), h.TempDir()
	succeed(h.T, append([]string{"backup", file}, h.database()...)...)
	succeed(h.T, "restore", file, "--data-dir", dir)
	return h.of(dir, append(flags, "--accept-new-keys")...)
}

// replica starts another server on the same PostgreSQL; nil if it is SQLite.
func (h *chronicle) replica(flags ...string) *chronicle {
	h.Helper()
	if h.isSQLite() {
		return nil
	}
	return h.of(h.TempDir(), append(flags, "--endpoint", h.endpoint, "--cert-dir", filepath.Join(h.dir, "pki"))...)
}

// of starts a server.
func (h *chronicle) of(dir string, flags ...string) *chronicle {
	h.Helper()
	endpoint := "sqlite://" + filepath.Join(dir, "byre.db")
	if i := slices.Index(flags, "--endpoint"); i >= 0 {
		endpoint = flags[i+1]
	}
	other := &chronicle{T: h.T, dir: dir, endpoint: endpoint, config: startServer(h.T, dir, flags...).config(h.T)}
	other.kube = kubernetes.NewForConfigOrDie(other.config)
	return other
}

// What can't be decrypted any more is listed, and nothing of it is shown.
func TestHistory_ListsWhatCanNotBeDecrypted(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "encryption.yaml")
			withKey := func(name, secret string) string {
				h := `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"EncryptionConfiguration","resources":[{"resources":["secrets"],"providers":[{"secretbox":{"keys":[{"name":"` +
					name + `","secret":"` + base64.StdEncoding.EncodeToString([]byte(secret)) + `"}]}}]}]}`
				if err := os.WriteFile(file, []byte(h), 0o600); err != nil {
					t.Fatal(err)
				}
				return "--encryption-provider-config=" + file
			}
			dir, given := t.TempDir(), flags(t)
			first := startServer(t, dir, append(given, withKey("lost", "0123456789abcdef0123456789abcdef"))...)
			secrets := kubernetes.NewForConfigOrDie(first.config(t)).CoreV1().Secrets("default")
			secret, err := secrets.Create(t.Context(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "before"}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret.Data["key"] = []byte("after")
			if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			first.stop(t)
			h := (&chronicle{T: t}).of(dir, append(given, withKey("new", "fedcba9876543210fedcba9876543210"))...)
			list, text := h.list("", allChanges+"?fieldSelector=object.resource%3Dsecrets")
			if len(list.Items) != 2 || !list.Items[0].Unreadable || !list.Items[1].Unreadable || list.Items[1].Changed != nil ||
				list.Items[1].Verb != "update" || list.Items[1].Object.Name != "s" {
				t.Errorf("changes of a Secret that can't be decrypted: %s", text)
			}
			for _, item := range list.Items {
				if status, body := h.as("", "/apis/history.byre.dev/v1/namespaces/default/changes/"+item.Name,
					"application/json"); status != http.StatusOK ||
					!strings.Contains(body, `"unreadable":true`) || strings.Contains(body, `"before":`) ||
					strings.Contains(body, `"after":`) {
					t.Errorf("change %s: %d %s", item.Name, status, body)
				}
			}
		})
	}
}

// fill makes two namespaces, and changes an object for each canary.
func (h *chronicle) fill() {
	h.Helper()
	for _, namespace := range []string{"bank", "shop"} {
		h.makeNamespace(namespace)
		h.write(namespace, "config", "first")
		h.write(namespace, "config", "canary-"+namespace+"-config")
	}
	secrets := h.kube.CoreV1().Secrets("shop")
	secret, err := secrets.Create(h.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}},
		metav1.CreateOptions{})
	h.must(err)
	secret.Data = map[string][]byte{"key": []byte("canary-shop-secret")}
	_, err = secrets.Update(h.Context(), secret, metav1.UpdateOptions{})
	h.must(err)
	client := dynamic.NewForConfigOrDie(h.config)
	defineWidgets(h.T, client)
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w", "labels": map[string]any{"a": "canary-shop-widget"}},
	}}
	_, err = client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
		Resource: "widgets"}).Namespace("shop").Create(h.Context(), widget, metav1.CreateOptions{})
	h.must(err)
}

// expectHidden expects that the changes that a selector selects are answered to a user as if they
// did not exist.
func (h *chronicle) expectHidden(user, selector string) {
	h.Helper()
	list, _ := h.list("", inShop+"?fieldSelector="+selector)
	if len(list.Items) == 0 {
		h.Fatalf("no changes with %s", selector)
	}
	_, want := h.as(user, inShop+"/999999999", "application/json")
	for _, item := range list.Items {
		status, got := h.as(user, inShop+"/"+item.Name, "application/json")
		if status != http.StatusNotFound || got != strings.ReplaceAll(want, "999999999", item.Name) {
			h.Errorf("%s as %s: %d %s", item.Name, user, status, got)
		}
	}
}

// A list has the changes in order, whole or in pages, selects by fields, and is a table for
// kubectl. A change says what it changed, and a single one what there was before and after it.
func TestHistory_ListsInPagesAndBySelectors(t *testing.T) {
	t.Parallel()
	h := newChronicle(t) // the queries of both drivers are compared with a model in storetest
	h.makeNamespace("shop")
	for i := range 6 {
		h.write("shop", "config", fmt.Sprint(i))
	}
	const ours = inShop + "?fieldSelector=object.resource%3Dconfigmaps%2Cobject.name%3Dconfig"
	list, _ := h.list("", ours)
	if len(list.Items) != 6 {
		t.Fatalf("%d changes: %+v", len(list.Items), list.Items)
	}
	first, last := list.Items[0], list.Items[5]
	if first.Verb != "create" || last.Verb != "update" || len(last.Changed) != 1 ||
		last.Changed[0] != (history.FieldChange{Path: "data.key", Old: `"4"`, New: `"5"`}) ||
		last.Replaces != list.Items[4].Revision || last.Object.Kind != "ConfigMap" || last.Before != nil || last.Who == "" ||
		last.AuditID == "" {
		t.Errorf("changes: %+v, %+v", first, last)
	}
	h.expectPages(ours, list)
	h.expectOptions(ours, list)
	newest, _ := h.list("", ours)
	slices.Reverse(newest.Items)
	h.expectPages(ours+"%2Corder%3Dnewest", newest)
	h.expectSelected(list)
	h.expectDescribed(ours, last)
	h.expectExpired(ours, first)
}

// expectPages reads the list in pages, while others write.
func (h *chronicle) expectPages(path string, want history.ChangeList) {
	h.Helper()
	var revisions []int64
	token := ""
	for range 20 {
		page, _ := h.list("", path+"&limit=2&continue="+token)
		for _, item := range page.Items {
			revisions = append(revisions, item.Revision)
		}
		h.write("shop", "config", "while pages are read")
		if len(page.Items) > 2 || token == "" && page.Continue == "" {
			h.Fatalf("a page of 2 has %d items, continue %q", len(page.Items), page.Continue)
		}
		if token = page.Continue; token == "" {
			break
		}
	}
	var all []int64
	for _, item := range want.Items {
		all = append(all, item.Revision)
	}
	if !slices.Equal(revisions, all) {
		h.Errorf("pages of %s have %v, want %v", path, revisions, all)
	}
}

func (h *chronicle) expectOptions(path string, want history.ChangeList) {
	h.Helper()
	for query, status := range map[string]int{
		"&continue=x": http.StatusBadRequest, "&resourceVersion=x": http.StatusBadRequest,
		"&resourceVersion=99999999":                                         http.StatusGatewayTimeout,
		"&resourceVersionMatch=Exact&resourceVersion=" + want.Items[3].Name: http.StatusOK,
	} {
		got, body := h.as("", path+query, "application/json")
		if got != status || status == http.StatusOK && strings.Count(body, `"revision":`) != 4 {
			h.Errorf("%s: %d %s", query, got, body)
		}
	}
}

func (h *chronicle) expectSelected(want history.ChangeList) {
	h.Helper()
	last := want.Items[5]
	for selector, expected := range map[string]int{
		"object.uid=" + last.Object.UID + ",verb=create": 1, "metadata.name=" + last.Name: 1, "who=nobody": 0,
		"object.group=apps": 0, "object.resource=nothing": 0, "subresource=status": 0,
		"object.resource=configmaps,verb!=update,object.name=config": 1,
	} {
		list, _ := h.list("", inShop+"?fieldSelector="+url.QueryEscape(selector))
		if len(list.Items) != expected {
			h.Errorf("%s: %d changes, want %d", selector, len(list.Items), expected)
		}
	}
	at := func(item history.Change) string { return item.Time.UTC().Format(time.RFC3339Nano) }
	for selector, expected := range map[string]int{
		"since=" + want.Items[2].Name: 3, "since=" + at(want.Items[2]): 3, "until=" + at(want.Items[2]): 3,
		"since=" + at(want.Items[5]):                                   0,
		"until=" + want.Items[1].Name + ",since=" + want.Items[0].Name: 1, "since=9999999999": 0,
		"order=newest,since=" + want.Items[2].Name: 3, "until=" + want.Items[1].Name + ",since=" + want.Items[2].Name: 0,
	} {
		list, _ := h.list("",
			inShop+"?fieldSelector="+url.QueryEscape("object.resource=configmaps,object.name=config,"+selector)+
				"&resourceVersionMatch=Exact&resourceVersion="+want.Items[5].Name)
		if len(list.Items) != expected {
			h.Errorf("%s: %d changes, want %d", selector, len(list.Items), expected)
		}
	}
	for _, selector := range []string{"since=soon", "until=2026-13-01", "since!=1", "until!=1", "order=oldest", "order!=newest"} {
		if status, body := h.as("", inShop+"?fieldSelector="+url.QueryEscape(selector),
			"application/json"); status != http.StatusBadRequest {
			h.Errorf("%s: %d %s", selector, status, body)
		}
	}
	if status, body := h.as("", inShop+"?fieldSelector=object.spec%3Dx",
		"application/json"); status != http.StatusBadRequest || !strings.Contains(body, "not a known field selector") {
		h.Errorf("an unknown selector: %d %s", status, body)
	}
	// Those of cluster-scoped objects are in the namespace default.
	list, _ := h.list("",
		"/apis/history.byre.dev/v1/namespaces/default/changes?fieldSelector=object.resource%3Dnamespaces,object.name%3Dshop")
	if len(list.Items) != 1 || list.Items[0].Object.Namespace != "" || list.Items[0].Namespace != "default" {
		h.Errorf("changes of a namespace: %+v", list.Items)
	}
}

// expectDescribed expects a single change, the table, discovery, the APIService and OpenAPI.
func (h *chronicle) expectDescribed(path string, last history.Change) {
	h.Helper()
	for path, wants := range map[string][]string{
		inShop + "/" + last.Name: {`"before":{"apiVersion":"v1"`, `"data":{"key":"4"}`, `"after":`, `"data":{"key":"5"}`},
		"/apis/history.byre.dev/v1": {`"name":"changes"`, `"singularName":"change"`, `"namespaced":true`,
			`"verbs":["get","list","watch"]`},
		"/apis/apiregistration.k8s.io/v1/apiservices/v1.history.byre.dev": {`"type":"Available"`, `"reason":"Local"`},
		"/openapi/v3/apis/history.byre.dev/v1": {"dev.byre.history.v1.Change",
			"MoreChanged is how many"},
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/byre:history-viewer": {`"verbs":["get","list","watch"]`},
	} {
		status, body := h.as("", path, "application/json")
		for _, want := range wants {
			if status != http.StatusOK || !strings.Contains(body, want) {
				h.Errorf("%s has no %s: %d %s", path, want, status, body)
			}
		}
	}
	const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	status, body := h.as("", path, asTable)
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil || status != http.StatusOK || len(table.Rows) < 6 {
		h.Fatalf("table: %d %v %s", status, err, body)
	}
	var names []string
	for _, column := range table.ColumnDefinitions[:6] {
		names = append(names, column.Name)
	}
	cells := table.Rows[5].Cells
	if got := strings.Join(names, " "); got != "Revision Age Who Verb Object Changed" || cells[0] != last.Name ||
		cells[3] != "update" ||
		cells[4] != "configmaps/config" || cells[5] != `data.key: "4" → "5"` {
		h.Errorf("table: %s: %v", got, cells)
	}
}

// expectExpired deletes history between two pages.
func (h *chronicle) expectExpired(path string, first history.Change) {
	h.Helper()
	page, _ := h.list("", path+"&limit=1")
	const newest = "%2Corder%3Dnewest&limit=1"
	last, _ := h.list("", path+newest)
	succeed(h.T, "compact", "--data-dir", h.dir, "--keep=0s", "--resource=configmaps")
	for _, old := range []string{
		path + "&limit=1&continue=" + page.Continue, inShop + "/" + first.Name,
		path + "&resourceVersionMatch=Exact&resourceVersion=" + first.Name,
	} {
		if status, body := h.as("", old, "application/json"); status != http.StatusGone ||
			!strings.Contains(body, `"reason":"Expired"`) {
			h.Errorf("%s: %d %s", old, status, body)
		}
	}
	h.list("", path+newest+"&continue="+last.Continue) // ends with what is left
	earliest := regexp.MustCompile(
		`the history of configmaps does not reach back to [^ ]+: the earliest moment is revision (\d+)`)
	for _, moment := range []string{first.Name, first.Time.UTC().Format(time.RFC3339)} {
		for _, field := range []string{"since", "until"} {
			status, body := h.as("", path+url.QueryEscape(","+field+"="+moment), "application/json")
			found := earliest.FindStringSubmatch(body)
			if status != http.StatusGone || len(found) == 0 {
				h.Fatalf("%s=%s: %d %s", field, moment, status, body)
			}
			h.list("", path+url.QueryEscape(","+field+"="+found[1]))
		}
	}
	// What the selector excludes may be deleted.
	for _, others := range []string{",since=" + first.Name, "&resourceVersionMatch=Exact&resourceVersion=" + first.Name} {
		h.list("", inShop+"?fieldSelector=object.resource!%3Dconfigmaps"+others)
	}
	if list, _ := h.list("", path); len(list.Items) > 0 && list.Items[0].Revision == first.Revision {
		h.Error("a change that was deleted is listed")
	}
}

// grants is what users may list in a namespace, or in all if it is empty: users, namespaces and
// resources.
type grants map[string]map[string][]string

// grantAtRandom binds users to the right to list changes, ConfigMaps and Secrets.
func (h *chronicle) grantAtRandom(random *rand.Rand, users, namespaces []string) grants {
	all := make(grants)
	roles := map[string]string{"changes": "byre:history-viewer", "configmaps": "configmaps", "secrets": "secrets"}
	for _, user := range users {
		all[user] = make(map[string][]string)
		for _, namespace := range append([]string{""}, namespaces...) {
			for _, resource := range []string{"changes", "configmaps", "secrets"} {
				if likely := map[bool]float64{true: 0.25, false: 0.5}[namespace == ""]; random.Float64() < likely {
					h.bind(namespace, user, roles[resource])
					all[user][namespace] = append(all[user][namespace], resource)
				}
			}
		}
	}
	return all
}

// in returns what a user may list in a namespace, or in all if it is empty.
func (g grants) in(user, namespace string) []string {
	return append(slices.Clone(g[user][""]), g[user][namespace]...)
}

// where is the condition in SQL for the changes that a user may see.
func (g grants) where(user string) string {
	visible := []string{"1 = 0"}
	for _, namespace := range []string{"", "a", "b", "c"} {
		if !slices.Contains(g.in(user, namespace), "changes") {
			continue
		}
		for _, resource := range g.in(user, namespace) {
			condition := "resource = '" + resource + "'"
			if namespace != "" {
				condition += " AND namespace = '" + namespace +
					"' AND revision >= (SELECT created_revision FROM objects WHERE resource = 'namespaces' AND name = '" + namespace +
					"')"
			}
			visible = append(visible, "("+condition+")")
		}
	}
	return "(" + strings.Join(visible, " OR ") + ")"
}

// changeAtRandom creates, updates and deletes objects, and returns the value that each has had, by
// namespace and resource.
func (h *chronicle) changeAtRandom(random *rand.Rand, namespaces []string, times int) map[string][]string {
	h.Helper()
	values := make(map[string][]string)
	for range times {
		namespace, resource := namespaces[random.IntN(len(namespaces))], []string{"configmaps", "secrets"}[random.IntN(2)]
		meta := metav1.ObjectMeta{Name: fmt.Sprint("object", random.IntN(3))}
		value := fmt.Sprintf("canary-%x", random.Uint64())
		var create, update, remove func() error
		switch resource {
		case "configmaps":
			client, object := h.kube.CoreV1().ConfigMaps(namespace),
				&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": value}}
			create = func() error { _, err := client.Create(h.Context(), object, metav1.CreateOptions{}); return err }
			update = func() error { _, err := client.Update(h.Context(), object, metav1.UpdateOptions{}); return err }
			remove = func() error { return client.Delete(h.Context(), meta.Name, metav1.DeleteOptions{}) }
		default:
			// The value is a part of a label: a list shows data of Secrets in base64.
			meta.Labels = map[string]string{"value": value}
			client, object := h.kube.CoreV1().Secrets(namespace), &corev1.Secret{ObjectMeta: meta}
			create = func() error { _, err := client.Create(h.Context(), object, metav1.CreateOptions{}); return err }
			update = func() error { _, err := client.Update(h.Context(), object, metav1.UpdateOptions{}); return err }
			remove = func() error { return client.Delete(h.Context(), meta.Name, metav1.DeleteOptions{}) }
		}
		err := update()
		if apierrors.IsNotFound(err) {
			err = create()
		}
		h.must(err)
		values[namespace+"/"+resource] = append(values[namespace+"/"+resource], value)
		if random.IntN(5) == 0 {
			h.must(remove())
		}
	}
	return values
}

// pages reads a list in pages of some items, and returns the revisions, the one of the list, and all
// that was answered.
func (h *chronicle) pages(user, path string, limit int) (revisions []string, last, text string, status int) {
	h.Helper()
	token := ""
	for {
		status, body := h.as(user, fmt.Sprintf("%s?limit=%d&continue=%s", path, limit, token), "application/json")
		text += body
		if status != http.StatusOK {
			return nil, "", text, status
		}
		var list history.ChangeList
		h.must(json.Unmarshal([]byte(body), &list))
		for i := range list.Items {
			revisions = append(revisions, list.Items[i].Name)
		}
		if last, token = list.ResourceVersion, list.Continue; token == "" {
			return revisions, last, text, status
		}
	}
}

// Users with random rights see in every namespace, and in all, what SQL selects by these rights, and
// no value of another change, whether they list or ask for each revision.
func TestHistory_EqualsSQLForRandomRights(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(25, 1))
			h := newChronicle(t, flags(t)...)
			namespaces, users := []string{"a", "b", "c"}, []string{"u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7"}
			for _, namespace := range namespaces {
				h.makeNamespace(namespace)
			}
			old := h.changeAtRandom(random, namespaces, 40)
			deleteNamespace(t, h.kube, "b")
			h.makeNamespace("b")
			values := h.changeAtRandom(random, namespaces, 60)
			for of, canaries := range old {
				// What was in the namespace before is for those only who may list in all.
				of = strings.Replace(of, "b/", "gone/", 1)
				values[of] = append(values[of], canaries...)
			}
			granted := h.grantAtRandom(random, users, namespaces)
			for user := range granted {
				h.bind("", user, "byre:sql-user")
			}
			h.expectListsOfThePast(random)
			for user := range granted {
				for _, namespace := range []string{"", "a", "b", "c"} {
					h.expectAsSQL(granted, user, namespace, random.IntN(20)+1)
				}
				h.expectNoOthers(granted, user, values)
				h.expectGap(granted, user)
				h.expectQueried(granted, user, values)
			}
		})
	}
}

// expectAsSQL compares a list with SQL. The rights that were just given take a moment.
func (h *chronicle) expectAsSQL(granted grants, user, namespace string, limit int) {
	h.Helper()
	path, condition := allChanges, granted.where(user)
	if namespace != "" {
		path, condition = "/apis/history.byre.dev/v1/namespaces/"+namespace+"/changes",
			condition+" AND namespace = '"+namespace+"'"
	}
	mayList := slices.Contains(granted.in(user, namespace), "changes")
	difference := ""
	defer func() {
		if h.Failed() {
			h.Log(difference)
		}
	}()
	storetest.Eventually(h.T, user+" sees in "+path+" what SQL says", func() bool {
		got, last, text, status := h.pages(user, path, limit)
		if !mayList {
			difference = fmt.Sprint(status, text)
			return status == http.StatusForbidden
		}
		if status != http.StatusOK {
			return false
		}
		want := rows(h.T, h.endpoint,
			"SELECT revision FROM changes WHERE resource IN ('configmaps', 'secrets') AND revision <= "+last+" AND "+condition+
				" ORDER BY revision")
		difference = fmt.Sprintf("%q, want %q", got, want)
		return slices.Equal(got, want)
	})
}

// expectNoOthers expects that a user reads no value of an object that the user may not see, by the
// name of any revision.
func (h *chronicle) expectNoOthers(granted grants, user string, values map[string][]string) {
	h.Helper()
	_, _, text, _ := h.pages(user, allChanges, 0)
	for _, row := range rows(h.T, h.endpoint,
		"SELECT namespace || '/changes/' || revision FROM changes WHERE namespace IN ('a', 'b', 'c') AND resource IN ('configmaps', 'secrets')") {
		_, body := h.as(user, "/apis/history.byre.dev/v1/namespaces/"+row, "application/json")
		text += body
	}
	for of, canaries := range values {
		namespace, resource, _ := strings.Cut(of, "/")
		rights := granted.in(user, namespace)
		visible := slices.Contains(rights, "changes") && slices.Contains(rights, resource)
		for _, canary := range canaries {
			if strings.Contains(text, canary) != visible {
				h.Errorf("%s reads %s of %s: %v, want %v", user, canary, of, !visible, visible)
			}
		}
	}
}

// expectGap expects an error for a moment before the namespace b was created again, unless the user sees
// what was in the one before: the answer would look as if nothing had been there.
func (h *chronicle) expectGap(granted grants, user string) {
	h.Helper()
	if !slices.Contains(granted.in(user, "b"), "changes") {
		return
	}
	want := http.StatusGone
	if all := granted.in(user, ""); slices.Contains(all, "changes") && slices.Contains(all, "configmaps") {
		want = http.StatusOK
	}
	if status, body := h.as(user,
		"/apis/history.byre.dev/v1/namespaces/b/changes?fieldSelector=object.resource%3Dconfigmaps,since%3D1",
		"application/json"); status != want {
		h.Errorf("%s since revision 1: %d, want %d: %s", user, status, want, body)
	}
}

// expectQueried expects that what queries tell a user of the past is what the changes are that the user may
// see.
func (h *chronicle) expectQueried(granted grants, user string, values map[string][]string) {
	h.Helper()
	const these = " WHERE resource IN ('configmaps', 'secrets') AND namespace IN ('a', 'b', 'c')"
	last := h.csv("", "SELECT max(revision) FROM changes"+these)[0]
	want := rows(h.T, h.endpoint, "SELECT revision FROM changes"+these+" AND "+granted.where(user)+" ORDER BY revision")
	if got := slices.DeleteFunc(h.csv(user, "SELECT revision FROM changes"+these+" ORDER BY 1"), func(row string) bool {
		return row == ""
	}); !slices.Equal(got, want) {
		h.Errorf("%s asks for changes: %q, want %q", user, got, want)
	}
	var text strings.Builder
	for _, statement := range []string{
		"SELECT before, after FROM changes", "SELECT old, new FROM field_changes",
		"SELECT c.object, s.object FROM configmaps(" + last + ") c FULL JOIN secrets(" + last + ") s ON false",
	} {
		text.WriteString(strings.Join(h.csv(user, statement), "\n"))
	}
	for of, canaries := range values {
		namespace, resource, _ := strings.Cut(of, "/")
		rights := granted.in(user, namespace)
		if slices.Contains(rights, "changes") && slices.Contains(rights, resource) {
			continue
		}
		for _, canary := range canaries {
			if strings.Contains(text.String(), canary) {
				h.Errorf("%s reads %s of %s in SQL", user, canary, of)
			}
		}
	}
}

// expectListsOfThePast expects that a table shows of a moment what a list at its revision has.
func (h *chronicle) expectListsOfThePast(random *rand.Rand) {
	h.Helper()
	revisions := h.csv("", "SELECT revision FROM changes WHERE resource = 'configmaps'")
	for range 10 {
		revision := revisions[random.IntN(len(revisions))]
		list, err := h.kube.CoreV1().ConfigMaps("").List(h.Context(),
			metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		h.must(err)
		var want []string
		for _, item := range list.Items {
			want = append(want, item.Namespace+","+item.Name+","+item.ResourceVersion)
		}
		for _, statement := range []string{
			"SELECT namespace, name, revision FROM configmaps(" + revision + ") ORDER BY 1, 2",
			"SELECT c.namespace, c.name, c.revision FROM (SELECT '" + revision + "' AS r) JOIN configmaps(r) c ORDER BY 1, 2",
			"SELECT namespace, name, revision FROM configmaps_history h WHERE revision <= " + revision +
				" AND coalesce((SELECT min(c.revision) FROM changes c WHERE c.replaces = h.revision AND c.resource = 'configmaps'), 1e9) > " + revision + " ORDER BY 1, 2",
		} {
			if got := h.csv("", statement); !slices.Equal(got, want) {
				h.Errorf("%s: %q, want %q", statement, got, want)
			}
		}
	}
}

// The history shows which values of a Secret have changed, and shows them only where that is asked for.
func TestHistory_MasksValuesOfSecrets(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--controllers=", "--console")
	p := past{t, filepath.Join(h.dir, "admin.kubeconfig")}
	h.makeNamespace("shop")
	client := h.kube.CoreV1().Secrets("shop")
	secret, err := client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			StringData: map[string]string{"key": "canary-one", "same": "canary-same"}}, metav1.CreateOptions{})
	h.must(err)
	secret.Data["key"] = []byte("canary-two")
	secret, err = client.Update(t.Context(), secret, metav1.UpdateOptions{})
	h.must(err)
	revision := secret.ResourceVersion

	one, two := base64.StdEncoding.EncodeToString([]byte("canary-one")),
		base64.StdEncoding.EncodeToString([]byte("canary-two"))
	isMasked := func(what, out string) {
		t.Helper()
		for _, canary := range []string{"canary-one", "canary-two", "canary-same"} {
			if strings.Contains(out, canary) || strings.Contains(out, base64.StdEncoding.EncodeToString([]byte(canary))) {
				t.Errorf("%s shows a value:\n%s", what, out)
			}
		}
		if !strings.Contains(out, "***") {
			t.Errorf("%s shows nothing masked:\n%s", what, out)
		}
	}
	for _, shown := range []struct {
		command []string
		want    []string
	}{
		{[]string{"log", "secret/s"}, []string{one, two}},
		{[]string{"log", "secret/s", "-o", "json"}, []string{one, two}},
		{[]string{"diff", "secret/s"}, []string{one, two}},
		{[]string{"diff", "secret/s", "-o", "json"}, []string{one, two}},
		{[]string{"blame", "secret/s"}, []string{two}},
		{[]string{"blame", "secret/s", "-o", "json"}, []string{two}},
		{[]string{"undo", revision, "--dry-run=server"}, []string{one}},
	} {
		command := append(shown.command, "-n", "shop")
		isMasked(strings.Join(command, " "), p.run("", nil, command...))
		p.run("", shown.want, append(command, "--show-secrets")...)
	}
	for _, format := range []string{"table", "json"} {
		isMasked("timeline", p.run("", nil, "timeline", "secret/s", "-n", "shop", "-o", format))
	}
	for _, accept := range []string{"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"} {
		_, list := h.as("", inShop+"?fieldSelector=object.resource%3Dsecrets", accept)
		isMasked("a list as "+accept, list)
	}
	_, table := h.as("", inShop+"/"+revision, "application/json;as=Table;v=v1;g=meta.k8s.io")
	isMasked("the table of one change", table)
	if _, got := h.as("", inShop+"/"+revision, "application/json"); !strings.Contains(got, one) ||
		!strings.Contains(got, two) {
		t.Errorf("a change that is got has no values: %s", got)
	}

	m := h.model("", "shop", 200, "64Ki")
	object := map[string]any{"resource": "secrets", "name": "s"}
	for _, tool := range []string{"changes", "diff", "show", "blame"} {
		text, result := m.call(tool, object)
		if result.IsError {
			t.Fatal(text)
		}
		isMasked("the tool "+tool, text)
	}
	_, rows := h.ask("", "text/csv", "SELECT path, old, new FROM field_changes WHERE resource = 'secrets'")
	isMasked("SQL", rows)

	console := h.openConsole("")
	for _, page := range []string{"o/core/v1/secrets/shop/s", "change/shop/" + revision} {
		_, body, err := fetch(t.Context(), http.DefaultClient, console+page)
		h.must(err)
		isMasked("the page "+page, body)
	}
	if _, body, _ := fetch(t.Context(), http.DefaultClient,
		console+"change/shop/"+revision+"?secrets=1"); !strings.Contains(body, one) || !strings.Contains(body, two) {
		t.Errorf("the page of the change does not show the values when it is asked to: %s", body)
	}
}
