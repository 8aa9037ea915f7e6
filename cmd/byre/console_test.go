package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// openConsole runs "byre console" as a user until the test ends, and returns the URL that it prints.
func (h *chronicle) openConsole(user string) string {
	h.Helper()
	ctx, stop := context.WithCancel(h.Context())
	reader, writer := io.Pipe()
	ended := make(chan int, 1)
	var errOut syncBuffer
	go func() {
		ended <- run(ctx, "byre", past{h.T, filepath.Join(h.dir, "admin.kubeconfig")}.args(user, "console"), writer, &errOut)
		_ = writer.Close() // a pipe's Close can't fail
	}()
	h.Cleanup(func() {
		stop()
		if status := <-ended; status != 0 {
			h.Errorf("byre console ended with %d: %s", status, errOut.String())
		}
	})
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		h.Fatalf("byre console printed %q: %v, %s", line, err, errOut.String())
	}
	return strings.TrimSpace(line)
}

var (
	pageHref = regexp.MustCompile(`(?:href|src|hx-get)="([^"]*)"`)
	pageName = regexp.MustCompile(`/console/([a-z]*)`)
)

// pagesOfAKind is how many pages of one kind, with the same parameters, a walk loads.
const pagesOfAKind = 12

// walk loads what the links of pages lead to, from a first page on, and calls see with each answer.
func (h *chronicle) walk(first string, see func(link string, status int, body string)) {
	h.Helper()
	seen, kinds := map[string]bool{}, map[string]int{}
	for next := []string{first}; len(next) > 0; {
		page := next[0]
		next = next[1:]
		status, body, err := fetch(h.Context(), http.DefaultClient, page)
		h.must(err)
		see(page, status, body)
		at, err := url.Parse(page)
		h.must(err)
		for _, match := range pageHref.FindAllStringSubmatch(body, -1) {
			to, err := at.Parse(html.UnescapeString(match[1]))
			h.must(err)
			if to.Scheme == "data" {
				continue
			}
			if to.Host != at.Host {
				h.Errorf("%s links to %s", page, to)
				continue
			}
			kind := pageName.FindString(to.Path)
			for _, name := range slices.Sorted(maps.Keys(to.Query())) {
				kind += " " + name
			}
			if link := to.String(); !seen[link] && kinds[kind] < pagesOfAKind {
				seen[link] = true
				kinds[kind]++
				next = append(next, link)
			}
		}
	}
	for _, kind := range []string{"/console/r", "/console/o", "/console/change", "/console/deleted", "/console/health",
		"/console/sql q", "/console/static"} {
		if kinds[kind] == 0 {
			h.Errorf("the walk has found no %s, but %v", kind, kinds)
		}
	}
}

// Whoever follows the links of the console comes to no error, without JavaScript: an administrator to none at
// all, and a tenant to none but what the tenant may not see, nor to any value of another tenant.
func TestConsole_EveryLinkLeadsToAPage(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, append(flags(t), "--console")...)
			h.fill()
			for _, name := range []string{`<script>alert(1)</script>`, "a b&c=d;'\"", "\u202egnp.exe", "line\nbreak"} {
				_, err := h.kube.RbacV1().Roles("shop").Create(t.Context(),
					&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(name, "/", "|")}}, metav1.CreateOptions{})
				h.must(err)
				h.must(h.kube.RbacV1().Roles("shop").Delete(t.Context(), strings.ReplaceAll(name, "/", "|"),
					metav1.DeleteOptions{}))
			}
			for _, role := range []string{"configmaps", "byre:history-viewer", "system:aggregate-to-view"} {
				h.bind("shop", "alice", role)
			}
			h.bind("", "alice", "byre:console-user")
			h.bind("", "alice", "byre:sql-user")
			h.awaitRights("alice", inShop)
			storetest.Eventually(t, "alice may see the console", func() bool {
				status, _ := h.as("alice", "/console/static/style.css", "*/*")
				return status == http.StatusOK
			})
			pages := 0
			h.walk(h.openConsole(""), func(link string, status int, body string) {
				pages++
				if status != http.StatusOK {
					t.Errorf("%s: %d %s", link, status, body)
				}
				if strings.Contains(body, "<script>alert") && !strings.Contains(link, "format=") {
					t.Errorf("%s has a script", link)
				}
			})
			t.Logf("an administrator loads %d pages", pages)
			own := false
			h.walk(h.openConsole("alice")+"?namespace=shop", func(link string, status int, body string) {
				if status != http.StatusOK && status != http.StatusForbidden && status != http.StatusNotFound {
					t.Errorf("%s as alice: %d %s", link, status, body)
				}
				own = own || strings.Contains(body, "canary-shop-config")
				for _, canary := range []string{"canary-bank-config", "canary-shop-secret"} {
					if strings.Contains(body, canary) {
						t.Errorf("%s shows %s to alice", link, canary)
					}
				}
			})
			if !own {
				t.Error("alice does not see her own objects")
			}
		})
	}
}

// A page needs no seat of priority and fairness, and no place among the requests in flight, while it waits for
// requests that need one: where there is one place, pages are made.
func TestConsole_NeedsNoSeatWhileItWaits(t *testing.T) {
	t.Parallel()
	for _, fairness := range []string{"true", "false"} {
		t.Run("fairness "+fairness, func(t *testing.T) {
			t.Parallel()
			h := newChronicle(t, "--console", "--controllers=", "--max-requests-inflight=1",
				"--max-mutating-requests-inflight=1", "--enable-priority-and-fairness="+fairness)
			h.bind("", "alice", "cluster-admin")
			start := time.Now()
			for _, page := range []string{"", "r/core/v1/namespaces", "o/core/v1/namespaces/-/default", "deleted", "health",
				"sql?q=SELECT+name+FROM+namespaces"} {
				storetest.Eventually(t, "the page "+page, func() bool {
					status, _ := h.as("alice", "/console/"+page, "text/html")
					return status == http.StatusOK
				})
			}
			t.Logf("the pages took %v", time.Since(start))
		})
	}
}

// A path that the proxy passes on as it is leads to nothing but the console. Whom the proxy keeps out is shown in
// package client.
func TestConsole_ProxyLeadsToTheConsoleOnly(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--console", "--controllers=")
	link, err := url.Parse(h.openConsole(""))
	h.must(err)
	for path, status := range map[string]int{link.Path: 200, strings.TrimSuffix(link.Path, "/"): 301,
		link.Path + "../api/v1/secrets": 307} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+link.Host, nil)
		h.must(err)
		request.URL.Path = path
		response, err := http.DefaultTransport.RoundTrip(request)
		h.must(err)
		body, err := io.ReadAll(response.Body)
		h.must(err)
		response.Body.Close()
		if response.StatusCode != status || strings.Contains(string(body), "SecretList") {
			t.Errorf("%s: %s %s", path, response.Status, body)
		}
	}
	_, rows, err := fetch(t.Context(), http.DefaultClient, link.String()+"r/core/v1/namespaces?format=csv")
	h.must(err)
	if records, err := csv.NewReader(strings.NewReader(rows)).ReadAll(); err != nil || len(records) != 5 {
		t.Errorf("the namespaces as CSV are %q, %v", rows, err)
	}
}

// The console answers to the names of the server, and to no others.
func TestConsole_AnswersToTheNamesOfTheCertificate(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--console", "--controllers=", "--external-hostname=kube.example.com")
	client, err := rest.HTTPClientFor(h.config)
	h.must(err)
	for host, want := range map[string]int{
		"kube.example.com": 200, "kubernetes.default.svc:443": 200, "127.0.0.1": 200, "evil.example.com": 421,
		"kube.example.com.evil": 421,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.config.Host+"/console/health", nil)
		h.must(err)
		request.Host = host
		response, err := client.Do(request)
		h.must(err)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s", host, response.Status)
		}
	}
}

// Without --console there are no such pages, and byre console says so; nor does it open for those who may
// not see them.
func TestConsole_IsOffByDefault(t *testing.T) {
	t.Parallel()
	off, on := newChronicle(t, "--controllers="), newChronicle(t, "--controllers=", "--console")
	if status, body := off.as("", "/console/", "*/*"); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	past{t, filepath.Join(off.dir, "admin.kubeconfig")}.fail("", "has no console: start it with --console", "console")
	past{t, filepath.Join(on.dir, "admin.kubeconfig")}.fail("nobody", "bind the ClusterRole byre:console-user", "console")
	if status, body := on.as("nobody", "/console/", "*/*"); status != http.StatusForbidden ||
		!strings.Contains(body, "byre console") {
		t.Errorf("%d %s", status, body)
	}
}

// The page of an object shows what it controls, however many resources there are.
func TestConsole_ShowsWhatAnObjectControls(t *testing.T) {
	t.Parallel()
	h := newChronicle(t, "--console", "--controllers=")
	definitions := dynamic.NewForConfigOrDie(h.config).Resource(definitionsResource)
	for i := range 80 {
		name := fmt.Sprintf("things%d", i)
		var definition unstructured.Unstructured
		h.must(definition.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.example.com"},
			"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"%[1]s","kind":"Thing%[2]d"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, name, i)))
		_, err := definitions.Create(t.Context(), &definition, metav1.CreateOptions{})
		h.must(err)
	}
	create := func(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
		t.Helper()
		created, err := h.kube.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
		h.must(err)
		return created
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: create("owner").UID}
	create("dependent", owner)
	owner.Controller = new(true)
	create("controlled", owner)
	storetest.Eventually(t, "all definitions are tables and resources", func() bool {
		found, err := h.kube.Discovery().ServerResourcesForGroupVersion("example.com/v1")
		return err == nil && len(found.APIResources) >= 80 &&
			slices.Equal(h.csv("", "SELECT count(*) FROM byre_tables WHERE \"group\" = 'example.com'"), []string{"80"})
	})
	_, body, err := fetch(t.Context(), http.DefaultClient, h.openConsole("")+"o/core/v1/configmaps/default/owner")
	h.must(err)
	_, controls, _ := strings.Cut(body, "What it controls")
	if !strings.Contains(controls, "configmaps/controlled") || strings.Contains(controls, "configmaps/dependent") {
		t.Errorf("it controls %s", controls)
	}
}
