package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore/storetest"
)

// hostile is a request that asks for too much work or for what its client may not have.
type hostile struct {
	name        string
	method      string // POST if empty
	path        string // of configmaps if empty
	contentType string // JSON if empty
	header      map[string]string
	body        string
	want        int
}

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	victim     = configMaps + "/victim"
	jsonPatch  = "application/json-patch+json"
)

// bombs are small requests that ask for much work, and large ones.
func bombs() []hostile {
	deep := func(open, shut string) string { return strings.Repeat(open, 10_001) + strings.Repeat(shut, 10_001) }
	patch := func(name string, want int, ops ...string) hostile {
		return hostile{name: name, method: http.MethodPatch, path: victim, contentType: jsonPatch, body: "[" + strings.Join(ops, ",") + "]", want: want}
	}
	// Each operation copies all of the data: doubled 30 times, one gigabyte.
	doubled := []string{`{"op":"add","path":"/data/x0","value":"` + strings.Repeat("x", 1000) + `"}`}
	for i := range 30 {
		doubled = append(doubled, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/x%d"}`, i+1))
	}
	return []hostile{
		{name: "more than 3 MiB", body: `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`, want: http.StatusRequestEntityTooLarge},
		{name: "deep JSON", body: `{"metadata":{"name":"x","annotations":{"a":` + deep("[", "]") + `}}}`, want: http.StatusBadRequest},
		{name: "deep objects", body: `{"metadata":{"name":"x"},"data":` + deep(`{"a":`, "}") + `}`, want: http.StatusBadRequest},
		{name: "deep YAML", contentType: "application/yaml", body: "metadata: {name: x}\ndata: {a: " + deep("[", "]") + "}", want: http.StatusBadRequest},
		{name: "deep CBOR where it is off", contentType: "application/cbor", body: "\xd9\xd9\xf7" + strings.Repeat("\x81", 10_001) + "\xf6", want: http.StatusUnsupportedMediaType},
		{name: "deep protobuf", contentType: "application/vnd.kubernetes.protobuf", body: "k8s\x00" + strings.Repeat("\x0a\x7f", 10_001), want: http.StatusBadRequest},
		{name: "YAML of aliases", contentType: "application/yaml", body: aliases(), want: http.StatusBadRequest},
		{name: "annotations of 257 KiB", body: `{"metadata":{"name":"x","annotations":{"a":"` + strings.Repeat("x", 257<<10) + `"}}}`, want: http.StatusUnprocessableEntity},
		patch("a patch of 10,001 operations", http.StatusRequestEntityTooLarge, slices.Repeat([]string{`{"op":"test","path":"/kind","value":"ConfigMap"}`}, 10_001)...),
		patch("a patch that copies copies", http.StatusUnprocessableEntity, doubled...),
		{name: "a deep merge patch", method: http.MethodPatch, path: victim, contentType: "application/merge-patch+json", body: `{"data":` + deep(`{"a":`, "}") + `}`, want: http.StatusBadRequest},
		definition("CEL that costs too much", `"x-kubernetes-validations":[{"rule":"self.a.all(x, self.a.all(y, self.a.all(z, x == y && y == z)))"}],"properties":{"a":{"type":"array","items":{"type":"string"}}}`),
		definition("CEL that is deep", `"x-kubernetes-validations":[{"rule":"`+strings.Repeat("(", 5000)+"true"+strings.Repeat(")", 5000)+`"}]`),
		definition("a regular expression that unfolds", `"properties":{"a":{"type":"string","pattern":"((((x{1,1000}){1,1000}){1,1000}){1,1000})"}}`),
		{name: "a selector of a megabyte", method: http.MethodGet, path: configMaps + "?labelSelector=" + strings.Repeat("a,", 1<<19+4<<10), want: http.StatusRequestHeaderFieldsTooLarge},
		{name: "a header of a megabyte", method: http.MethodGet, header: map[string]string{"X-Large": strings.Repeat("x", 1<<20+8<<10)}, want: http.StatusRequestHeaderFieldsTooLarge},
	}
}

func aliases() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

// definition asks for a custom resource whose schema has more properties.
func definition(name, schema string) hostile {
	return hostile{
		name: name, path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", want: http.StatusUnprocessableEntity,
		body: `{"metadata":{"name":"bombs.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"bombs","kind":"Bomb"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",` + schema + `}}}}}]}}`,
	}
}

// sql returns texts that would end an SQL statement if they were inserted into one.
func sql() []hostile {
	var requests []hostile
	for _, text := range []string{`' OR 1=1 --`, `x'; DROP TABLE objects; --`, `") OR ("1"="1`, `%' OR name LIKE '%`, `$1`, `?1`, "a\x00b", "\xff"} {
		quoted := url.QueryEscape(text)
		for _, r := range []hostile{
			{name: "name", path: configMaps + "/" + url.PathEscape(text), want: 0},
			{name: "namespace", path: "/api/v1/namespaces/" + url.PathEscape(text) + "/configmaps", want: http.StatusOK},
			{name: "field", path: configMaps + "?fieldSelector=" + url.QueryEscape("metadata.name="+text), want: 0},
			{name: "label", path: configMaps + "?labelSelector=" + quoted, want: http.StatusBadRequest},
			{name: "continue", path: configMaps + "?limit=1&continue=" + quoted, want: http.StatusBadRequest},
			{name: "resourceVersion", path: configMaps + "?resourceVersion=" + quoted, want: 0},
			{name: "created name", path: configMaps, method: http.MethodPost, body: named(text), want: http.StatusUnprocessableEntity},
		} {
			if r.method == "" {
				r.method = http.MethodGet
			}
			r.name = "SQL as " + r.name + " " + fmt.Sprintf("%q", text)
			requests = append(requests, r)
		}
	}
	return requests
}

func named(name string) string {
	quoted, err := json.Marshal(name)
	if err != nil {
		panic(err) // it is a string
	}
	return `{"metadata":{"name":` + string(quoted) + `}}`
}

// leak matches texts that no answer may contain.
var leak = regexp.MustCompile(`(?i)sqlstate|sqlite|postgres|pgx|select .* from|byre\.db|/pki/|goroutine |\.go:\d+|PRIVATE KEY|admin-secret|` + regexp.QuoteMeta(os.TempDir()) + `/`)

// TestHostile_RequestsAreRefused sends requests that the server must refuse, and checks
// that the server and its objects are unharmed. No other test of the shared server writes ConfigMaps to
// the namespace default.
func TestHostile_RequestsAreRefused(t *testing.T) {
	t.Parallel()
	for database, requests := range map[string][]hostile{"sqlite": slices.Concat(bombs(), sql()), "postgres": sql()} {
		t.Run(database, func(t *testing.T) {
			server := sharedServer(t, database)
			config := withToken(server.config(t), sharedAdmin)
			kube := kubernetes.NewForConfigOrDie(config)
			storetest.EventuallyDone(t, "a controller has made its ConfigMap", func(ctx context.Context) (bool, error) {
				_, err := kube.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
				return err == nil, err
			})
			if status, answer := (hostile{body: `{"metadata":{"name":"victim"},"data":{"a":"b"}}`}).send(t, config); status != http.StatusCreated {
				t.Fatalf("%d %s", status, answer)
			}
			before := everything(t, kube)
			for _, request := range requests {
				t.Run(request.name, func(t *testing.T) {
					status, answer := request.send(t, config)
					if request.want != 0 && status != request.want || status >= 500 {
						t.Errorf("%d %.300s, want %d", status, answer, request.want)
					}
					if strings.HasPrefix(request.name, "SQL") && strings.Contains(answer, `"victim"`) {
						t.Errorf("it finds what it does not name: %.300s", answer)
					}
					if found := leak.FindString(answer); found != "" {
						t.Errorf("the answer has %q in it: %.300s", found, answer)
					}
				})
			}
			if after := everything(t, kube); !maps.Equal(before, after) {
				t.Errorf("before there was %v, now %v", before, after)
			}
			if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
				t.Errorf("after the requests /readyz answers %d %s", status, body)
			}
		})
	}
}

func hostileTokens(t *testing.T) string {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("admin-secret,admin,1,system:masters\nalice-secret,alice,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return tokens
}

func withToken(config *rest.Config, token string) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.QPS = token, -1
	return config
}

// everything returns the names and versions of the objects that the requests attack.
func everything(t *testing.T, kube kubernetes.Interface) map[string]string {
	t.Helper()
	all := map[string]string{}
	list, err := kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		all["configmap "+m.Name] = m.ResourceVersion
	}
	if definitions, err := kube.Discovery().ServerResourcesForGroupVersion("example.com/v1"); err == nil {
		all["definitions"] = definitions.String()
	}
	return all
}

// client uses HTTP/2 for requests with a body: over HTTP/1.1 an answer that arrives before
// the whole body was read can be lost with the connection. For others it uses HTTP/1.1:
// Go's client of HTTP/2 does not send headers that are too large.
func (h hostile) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
		ForceAttemptHTTP2: h.body != "",
	}}
}

// send sends the request and returns the status and the body of the answer.
func (h hostile) send(t *testing.T, config *rest.Config) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	method, path := h.method, h.path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = configMaps
	}
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(h.body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if h.contentType != "" {
		request.Header.Set("Content-Type", h.contentType)
	}
	request.Header.Set("Authorization", "Bearer "+config.BearerToken)
	for name, value := range h.header {
		request.Header.Set(name, value)
	}
	response, err := h.client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// TestHostile_SpoofedHeadersAreIgnored sends headers with which only front proxies may name
// a user.
func TestHostile_SpoofedHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := server.config(t)
	for _, spoofed := range []map[string]string{
		{"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"},
		{"X-Remote-User": "admin", "X-Remote-Extra-Scopes": "all", "X-Remote-Uid": "1"},
		{"Impersonate-User": "admin"},
		{"Impersonate-User": "alice", "Impersonate-Group": "system:masters"},
		{"Impersonate-Group": "system:masters"},
		{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "admin"},
	} {
		for _, token := range []string{"", sharedAlice} {
			request := hostile{method: http.MethodGet, path: "/api/v1/namespaces/kube-system/secrets", header: spoofed}
			status, answer := request.send(t, withToken(config, token))
			if status < 400 || strings.Contains(answer, "SecretList") {
				t.Errorf("%v with token %q: %d %s", spoofed, token, status, answer)
			}
		}
	}
}

// TestProxy_ReachesNoLoopback: the server does not connect to its own machine for a Pod
// that claims a loopback address.
func TestProxy_ReachesNoLoopback(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 1)
	private := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case reached <- struct{}{}:
		default:
		}
	})}
	go func() { _ = private.Serve(inner) }()
	t.Cleanup(func() { private.Close() })
	_, port, err := net.SplitHostPort(inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	server := sharedServer(t, "sqlite")
	config := withToken(server.config(t), sharedAdmin)
	namespace := server.makeNamespace(t)
	awaitAccount(t, kubernetes.NewForConfigOrDie(config), namespace)
	pods := "/api/v1/namespaces/" + namespace + "/pods"
	if status, answer := (hostile{path: pods, body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).send(t, config); status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	for _, ip := range []string{"127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1"} {
		claim := hostile{method: http.MethodPatch, path: pods + "/p/status", contentType: "application/merge-patch+json", body: fmt.Sprintf(`{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)}
		if status, answer := claim.send(t, config); status != http.StatusOK && status != http.StatusUnprocessableEntity {
			t.Fatalf("%s: %d %s", ip, status, answer)
		} else if status == http.StatusUnprocessableEntity {
			continue // no Pod can have this address
		}
		if status, answer := (hostile{method: http.MethodGet, path: pods + "/p:" + port + "/proxy/"}).send(t, config); status < 400 {
			t.Errorf("by a Pod at %s: %d %s", ip, status, answer)
		}
	}
	select {
	case <-reached:
		t.Error("a program on this machine was asked")
	default:
	}
}
