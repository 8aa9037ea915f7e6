package main

import (
	"bytes"
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
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
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
		return hostile{name: name, method: http.MethodPatch, path: victim, contentType: jsonPatch,
			body: "[" + strings.Join(ops, ",") + "]", want: want}
	}
	// Each operation copies all of the data: doubled 30 times, one gigabyte.
	doubled := []string{`{"op":"add","path":"/data/x0","value":"` + strings.Repeat("x", 1000) + `"}`}
	for i := range 30 {
		doubled = append(doubled, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/x%d"}`, i+1))
	}
	return []hostile{
		{name: "more than 3 MiB", body: `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`,
			want: http.StatusRequestEntityTooLarge},
		{name: "deep JSON", body: `{"metadata":{"name":"x","annotations":{"a":` + deep("[", "]") + `}}}`,
			want: http.StatusBadRequest},
		{name: "deep objects", body: `{"metadata":{"name":"x"},"data":` + deep(`{"a":`, "}") + `}`,
			want: http.StatusBadRequest},
		{name: "deep YAML", contentType: "application/yaml", body: "metadata: {name: x}\ndata: {a: " + deep("[", "]") + "}",
			want: http.StatusBadRequest},
		{name: "deep CBOR where it is off", contentType: "application/cbor",
			body: "\xd9\xd9\xf7" + strings.Repeat("\x81", 10_001) + "\xf6", want: http.StatusUnsupportedMediaType},
		{name: "deep protobuf", contentType: "application/vnd.kubernetes.protobuf",
			body: "k8s\x00" + strings.Repeat("\x0a\x7f", 10_001), want: http.StatusBadRequest},
		{name: "YAML of aliases", contentType: "application/yaml", body: aliases(), want: http.StatusBadRequest},
		{name: "annotations of 257 KiB",
			body: `{"metadata":{"name":"x","annotations":{"a":"` + strings.Repeat("x", 257<<10) + `"}}}`,
			want: http.StatusUnprocessableEntity},
		patch("a patch of 10,001 operations", http.StatusRequestEntityTooLarge,
			slices.Repeat([]string{`{"op":"test","path":"/kind","value":"ConfigMap"}`}, 10_001)...),
		patch("a patch that copies copies", http.StatusUnprocessableEntity, doubled...),
		{name: "a deep merge patch", method: http.MethodPatch, path: victim, contentType: "application/merge-patch+json",
			body: `{"data":` + deep(`{"a":`, "}") + `}`, want: http.StatusBadRequest},
		definition("CEL that costs too much",
			`"x-kubernetes-validations":[{"rule":"self.a.all(x, self.a.all(y, self.a.all(z, x == y && y == z)))"}],"properties":{"a":{"type":"array","items":{"type":"string"}}}`),
		definition("CEL that is deep",
			`"x-kubernetes-validations":[{"rule":"`+strings.Repeat("(", 5000)+"true"+strings.Repeat(")", 5000)+`"}]`),
		definition("a regular expression that unfolds",
			`"properties":{"a":{"type":"string","pattern":"((((x{1,1000}){1,1000}){1,1000}){1,1000})"}}`),
		{name: "a selector of a megabyte", method: http.MethodGet,
			path: configMaps + "?labelSelector=" + strings.Repeat("a,", 1<<19+4<<10),
			want: http.StatusRequestHeaderFieldsTooLarge},
		{name: "a header of a megabyte", method: http.MethodGet,
			header: map[string]string{"X-Large": strings.Repeat("x", 1<<20+8<<10)},
			want:   http.StatusRequestHeaderFieldsTooLarge},
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
	for _, text := range []string{`' OR 1=1 --`, `x'; DROP TABLE objects; --`, `") OR ("1"="1`, `%' OR name LIKE '%`, `$1`,
		`?1`, "a\x00b", "\xff"} {
		quoted := url.QueryEscape(text)
		for _, r := range []hostile{
			{name: "name", path: configMaps + "/" + url.PathEscape(text), want: 0},
			{name: "namespace", path: "/api/v1/namespaces/" + url.PathEscape(text) + "/configmaps", want: http.StatusOK},
			{name: "field", path: configMaps + "?fieldSelector=" + url.QueryEscape("metadata.name="+text), want: 0},
			{name: "label", path: configMaps + "?labelSelector=" + quoted, want: http.StatusBadRequest},
			{name: "continue", path: configMaps + "?limit=1&continue=" + quoted, want: http.StatusBadRequest},
			{name: "resourceVersion", path: configMaps + "?resourceVersion=" + quoted, want: 0},
			{name: "created name", path: configMaps, method: http.MethodPost, body: named(text),
				want: http.StatusUnprocessableEntity},
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
var leak = regexp.MustCompile(
	`(?i)sqlstate|sqlite|postgres|pgx|select .* from|byre\.db|/pki/|goroutine |\.go:\d+|PRIVATE KEY|admin-secret|` +
		regexp.QuoteMeta(os.TempDir()) + `/`)

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
			if status, answer := (hostile{body: `{"metadata":{"name":"victim"},"data":{"a":"b"}}`}).send(t,
				config); status != http.StatusCreated {
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
	if err := os.WriteFile(tokens, []byte("admin-secret,admin,1,system:masters\nalice-secret,alice,2\n"),
		0o600); err != nil {
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
	if status, answer := (hostile{path: pods,
		body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`}).send(t,
		config); status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	for _, ip := range []string{"127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1"} {
		claim := hostile{method: http.MethodPatch, path: pods + "/p/status", contentType: "application/merge-patch+json",
			body: fmt.Sprintf(`{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)}
		if status, answer := claim.send(t, config); status != http.StatusOK && status != http.StatusUnprocessableEntity {
			t.Fatalf("%s: %d %s", ip, status, answer)
		} else if status == http.StatusUnprocessableEntity {
			continue // no Pod can have this address
		}
		if status, answer := (hostile{method: http.MethodGet, path: pods + "/p:" + port + "/proxy/"}).send(t,
			config); status < 400 {
			t.Errorf("by a Pod at %s: %d %s", ip, status, answer)
		}
	}
	select {
	case <-reached:
		t.Error("a program on this machine was asked")
	default:
	}
}

// flowTokens has tokens of a user, whose requests share the level "global-default" with
// those of all users, and of a service account, whose level is "workload-low".
func flowTokens(t *testing.T) string {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	users := "flooder,ada,1\nothers,system:serviceaccount:default:default,2,\"system:serviceaccounts\"\n"
	if err := os.WriteFile(tokens, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	return tokens
}

// floodTimeout keeps the server from ending the requests of a flood while the test runs.
const floodTimeout = "--request-timeout=10m"

// flood is many requests that occupy a server's seats and almost no processor: their bodies
// do not end.
type flood struct {
	pending sync.WaitGroup
	end     context.CancelFunc
	// refused counts the answers with 429 and Retry-After; wrong is an answer of another
	// kind.
	refused atomic.Int64
	wrong   atomic.Pointer[string]
}

func startFlood(t *testing.T, config *rest.Config, method, path string, requests int) *flood {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{end: cancel}
	client := anonymous()
	for range requests {
		body, _ := io.Pipe()
		// The client waits for the goroutine that reads this body.
		context.AfterFunc(ctx, func() { body.Close() })
		request, err := http.NewRequestWithContext(ctx, method, config.Host+path,
			io.MultiReader(strings.NewReader(`{"metadata":`), body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+config.BearerToken)
		request.Header.Set("Content-Type", "application/json")
		f.pending.Go(func() {
			response, err := client.Do(request)
			if err != nil {
				return // the server held it until the end
			}
			defer response.Body.Close()
			if ctx.Err() != nil {
				return // the answer is to a body that ended
			}
			if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") != "" {
				f.refused.Add(1)
				return
			}
			wrong := fmt.Sprintf("%s, Retry-After %q", response.Status, response.Header.Get("Retry-After"))
			f.wrong.Store(&wrong)
		})
	}
	t.Cleanup(func() {
		cancel()
		f.pending.Wait()
	})
	return f
}

// full waits until the server refuses requests of the flood.
func (f *flood) full(t *testing.T) {
	t.Helper()
	storetest.EventuallyDone(t, "a refused request", func(context.Context) (bool, error) {
		return f.refused.Load() > 0, nil
	})
}

// p99 returns the 99th percentile of the latency of many reads, each of which must succeed.
func p99(t *testing.T, config *rest.Config) time.Duration {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 500 {
		started := time.Now()
		status, body, err := fetch(t.Context(), client, config.Host+"/api/v1/namespaces/default")
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d %s, %v", status, body, err)
		}
		took = append(took, time.Since(started))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// TestFlowControl_FloodHardlyAffectsOthers: the server refuses the requests of a client
// that floods it, and the latency of other clients hardly changes.
func TestFlowControl_FloodHardlyAffectsOthers(t *testing.T) {
	server := startServer(t, t.TempDir(), "--token-auth-file", flowTokens(t), "--authorization-mode=AlwaysAllow",
		"--max-requests-inflight=40", "--max-mutating-requests-inflight=20", floodTimeout)
	flooder, others := withToken(server.config(t), "flooder"), withToken(server.config(t), "others")
	// Other processes use the machine too: compare the best of some rounds.
	quiet, flooded := time.Hour, time.Hour
	for range 3 {
		quiet = min(quiet, p99(t, others))
	}
	f := startFlood(t, flooder, http.MethodPost, configMaps, 1000)
	f.full(t)
	for range 3 {
		flooded = min(flooded, p99(t, others))
	}
	f.end()
	f.pending.Wait()
	if wrong := f.wrong.Load(); wrong != nil {
		t.Errorf("a request of the flood is answered with %s", *wrong)
	}
	t.Logf("of the flood %d were turned away; p99 of others %v, before %v", f.refused.Load(), flooded, quiet)
	// A read that has to wait for a seat of the flood waits until the flood ends, or is
	// refused. Shorter differences come from other processes.
	if flooded > quiet+5*time.Second {
		t.Errorf("p99 of others is %v, before the flood it was %v", flooded, quiet)
	}
	if _, metrics := server.mustGet(t, "/metrics"); !strings.Contains(metrics,
		`apiserver_flowcontrol_rejected_requests_total{flow_schema="global-default",priority_level="global-default"`) {
		t.Error("the metrics don't say who was turned away")
	}
}

// TestFlowControl_MaxInFlightWithoutFairness: without priority and fairness there is one
// limit for reads and one for writes, and none for watches.
func TestFlowControl_MaxInFlightWithoutFairness(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--token-auth-file", flowTokens(t), "--authorization-mode=AlwaysAllow",
		"--enable-priority-and-fairness=false", "--max-requests-inflight=5", "--max-mutating-requests-inflight=5",
		"--controllers=", floodTimeout)
	flooder := withToken(server.config(t), "flooder")
	client, err := rest.HTTPClientFor(flooder)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, flooder.Host+configMaps+"?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer flooder")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("a watch is answered with %s", response.Status)
		}
	}
	f := startFlood(t, flooder, http.MethodPost, configMaps, 50)
	f.full(t)
	p99(t, withToken(server.config(t), "others")) // reads are still answered
	storetest.EventuallyDone(t, "45 refused requests", func(context.Context) (bool, error) {
		return f.refused.Load() == 45, nil
	})
	if status, answer := (hostile{body: `{"metadata":{"name":"late"}}`}).send(t,
		flooder); status != http.StatusTooManyRequests {
		t.Errorf("one more write is answered with %d %s", status, answer)
	}
	f.end()
	f.pending.Wait()
	if wrong := f.wrong.Load(); wrong != nil {
		t.Errorf("a request of the flood is answered with %s", *wrong)
	}
	storetest.EventuallyDone(t, "a request after the flood is answered", func(context.Context) (bool, error) {
		status, _ := (hostile{body: `{"metadata":{"name":"after"}}`}).send(t, flooder)
		return status == http.StatusCreated, nil
	})
}

func dialTLS(t *testing.T, address string, protocols ...string) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// framed is a client that ignores the limits of HTTP/2.
type framed struct {
	*http2.Framer
	authority string
	maxStream uint32 // the server's limit
}

func dialFramed(t *testing.T, config *rest.Config) *framed {
	t.Helper()
	address := strings.TrimPrefix(config.Host, "https://")
	conn := dialTLS(t, address, "h2")
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := &framed{Framer: http2.NewFramer(conn, conn), authority: address}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
			f.maxStream, _ = settings.Value(http2.SettingMaxConcurrentStreams)
			return f
		}
	}
}

// open sends a watch request on a stream.
func (f *framed) open(stream uint32, token string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "GET"}, {":scheme", "https"}, {":authority", f.authority},
		{":path", configMaps + "?watch=1"}, {"authorization", "Bearer " + token},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true,
		EndHeaders: true})
}

// TestHTTP2_StreamsAreBounded: the server refuses streams beyond its limit. A client that
// opens and resets streams without end is disconnected, or the server keeps up with it.
// Other clients are served as before.
func TestHTTP2_StreamsAreBounded(t *testing.T) {
	server := sharedServer(t, "sqlite")
	config := withToken(server.config(t), sharedAdmin)
	t.Run("open", func(t *testing.T) {
		client := dialFramed(t, config)
		if client.maxStream != 100 {
			t.Fatalf("the server allows %d streams", client.maxStream)
		}
		const more = 20
		for i := range client.maxStream + more {
			if err := client.open(2*i+1, sharedAdmin); err != nil {
				t.Fatal(err)
			}
		}
		answered, refused := 0, 0
		for answered < int(client.maxStream) || refused < more {
			frame, err := client.ReadFrame()
			if err != nil {
				t.Fatalf("after %d answers and %d refusals: %v", answered, refused, err)
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				answered++
			case *http2.RSTStreamFrame:
				if frame.ErrCode != http2.ErrCodeRefusedStream {
					t.Fatalf("a stream ended with %v", frame.ErrCode)
				}
				refused++
			}
		}
	})
	t.Run("reset", func(t *testing.T) {
		client := dialFramed(t, config)
		go func() { _, _ = io.Copy(io.Discard, readerOf(client)) }()
		for i := range uint32(20_000) {
			if client.open(2*i+1, sharedAdmin) != nil || client.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
				break // the server has disconnected
			}
		}
	})
	started := time.Now()
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("after the flood of streams /readyz answers %d %s", status, body)
	}
	if took := time.Since(started); took > 30*time.Second {
		t.Errorf("it took %v to say so", took)
	}
}

// readerOf reads frames until there are none.
func readerOf(f *framed) io.Reader {
	return readerFunc(func([]byte) (int, error) {
		_, err := f.ReadFrame()
		return 0, err
	})
}

type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }

// TestWatch_IdleWatchesTakeLittleMemory opens thousands of watches that get no events.
func TestWatch_IdleWatchesTakeLittleMemory(t *testing.T) {
	server := sharedServer(t, "sqlite")
	config := withToken(server.config(t), sharedAdmin)
	config.Insecure, config.CAData = true, nil
	const watches, perConnection = 2000, 100
	before := residentMemory(t, server.serverProcess)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range watches / perConnection {
		// A hundred watches share a transport: the server allows no more streams on a
		// connection.
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		for range perConnection {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+configMaps+"?watch=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+sharedAdmin)
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { response.Body.Close() })
			if response.StatusCode != http.StatusOK {
				t.Fatalf("a watch is answered with %s", response.Status)
			}
		}
	}
	each := (residentMemory(t, server.serverProcess) - before) / watches
	t.Logf("each watch takes %d KiB", each>>10)
	if each > 100<<10 && !isRaceInstrumented() { // the race detector keeps a shadow of all memory
		t.Errorf("each idle watch takes %d KiB", each>>10)
	}
	if status, body := server.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("with %d watches the server says %d %s", watches, status, body)
	}
}

// isRaceInstrumented reports whether this program, which is the server as well, was built
// with -race.
func isRaceInstrumented() bool {
	build, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(t testing.TB, p *serverProcess) int {
	t.Helper()
	return statusBytes(t, p, "VmRSS:")
}

// statusBytes returns a size in /proc/PID/status.
func statusBytes(t testing.TB, p *serverProcess, name string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.Atoi(strings.Fields(size)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}
