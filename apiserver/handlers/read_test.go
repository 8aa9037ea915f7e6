package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"byre/apiserver/apitest"
	"byre/sqlstore"
)

// seed creates objects of several kinds, namespaces and sizes.
func (s *server) seed(t *testing.T) {
	t.Helper()
	for i := range 7 {
		s.create(t, "/api/v1/namespaces/first/configmaps", fmt.Sprintf(
			`{"metadata":{"name":"c%d","labels":{"odd":"%d"},"annotations":{"text":"<&>\u2028\"\\"}},"data":{"n":"%d"},"binaryData":{"b":"AAEC"}}`, i, i%2, i))
	}
	s.create(t, "/api/v1/namespaces/alpha/configmaps", `{"metadata":{"name":"c0"},"immutable":true}`)
	s.create(t, "/api/v1/namespaces/alpha/configmaps",
		fmt.Sprintf(`{"metadata":{"name":"huge"},"data":{"text":%q}}`, strings.Repeat("abc ", 100_000)))
	s.create(t, "/api/v1/namespaces/first/secrets", `{"metadata":{"name":"s"},"stringData":{"k":"v"}}`)
	s.create(t, "/api/v1/namespaces/first/pods",
		`{"metadata":{"name":"p"},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}]}}`)
	s.create(t, "/api/v1/namespaces/alpha/pods",
		`{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	s.create(t, "/api/v1/namespaces", `{"metadata":{"name":"first"}}`)
	s.create(t, "/api/v1/nodes", `{"metadata":{"name":"n1"}}`)
	s.create(t, "/apis/apps/v1/namespaces/first/deployments",
		`{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	s.create(t, "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		`{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	s.create(t, "/apis/autoscaling/v1/namespaces/first/horizontalpodautoscalers",
		`{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}`)
	s.create(t, "/apis/coordination.k8s.io/v1/namespaces/first/leases",
		`{"metadata":{"name":"l"},"spec":{"holderIdentity":"me","renewTime":"2024-01-02T03:04:05.678901Z"}}`)
	s.create(t, "/api/v1/namespaces/first/services",
		`{"metadata":{"name":"s"},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`)
	s.create(t, "/api/v1/namespaces/first/persistentvolumeclaims",
		`{"metadata":{"name":"p"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)
	s.create(t, "/apis/apps/v1/namespaces/first/controllerrevisions",
		`{"metadata":{"name":"r"},"revision":1,"data":{"kind":"X","apiVersion":"v1","a":{"b":"<&>"}}}`)
	s.create(t, "/apis/networking.k8s.io/v1/ipaddresses",
		`{"metadata":{"name":"10.0.0.1"},"spec":{"parentRef":{"resource":"services","namespace":"first","name":"s"}}}`)
	s.create(t, "/api/v1/namespaces/first/events",
		`{"metadata":{"name":"e"},"involvedObject":{"namespace":"first","name":"p"},"type":"Normal","eventTime":null}`)
}

// reads are requests for objects that seed created and for objects that do not exist.
var reads = []string{
	"/api/v1/namespaces/first/configmaps/c1",
	"/api/v1/namespaces/first/configmaps/c1?resourceVersion=0",
	"/api/v1/namespaces/first/configmaps/c1?resourceVersion=x",
	"/api/v1/namespaces/first/configmaps/c1?pretty=true",
	"/api/v1/namespaces/first/configmaps/c1?pretty=false",
	"/api/v1/namespaces/first/configmaps/c1?export=true",
	"/api/v1/namespaces/first/configmaps/nosuch",
	"/api/v1/namespaces/first/configmaps/a%2Fb",
	"/api/v1/namespaces/first/configmaps/c1%00",
	"/api/v1/namespaces/first/configmaps/..",
	"/api/v1/namespaces/alpha/configmaps/huge",
	"/api/v1/namespaces/first/secrets/s",
	"/api/v1/namespaces/first/pods/p",
	"/api/v1/namespaces/first/pods/p/status",
	"/api/v1/namespaces/first",
	"/api/v1/namespaces/first/status",
	"/api/v1/namespaces/nosuch",
	"/api/v1/nodes/n1",
	"/apis/apps/v1/namespaces/first/deployments/d",
	"/apis/apps/v1/namespaces/first/deployments/d/scale",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/r",
	"/apis/autoscaling/v1/namespaces/first/horizontalpodautoscalers/h",
	"/apis/autoscaling/v2/namespaces/first/horizontalpodautoscalers/h",
	"/apis/coordination.k8s.io/v1/namespaces/first/leases/l",

	"/api/v1/configmaps",
	"/api/v1/namespaces/first/configmaps",
	"/api/v1/namespaces/first/configmaps/",
	"/api/v1/namespaces//configmaps",
	"/api/v1/namespaces/nosuch/configmaps",
	"/api/v1/namespaces/first/configmaps?limit=3",
	"/api/v1/namespaces/first/configmaps?limit=-1",
	"/api/v1/namespaces/first/configmaps?limit=x",
	"/api/v1/namespaces/first/configmaps?continue=nonsense",
	"/api/v1/namespaces/first/configmaps?labelSelector=odd%3D1",
	"/api/v1/namespaces/first/configmaps?labelSelector=odd%3D1&limit=2",
	"/api/v1/namespaces/first/configmaps?labelSelector=%3D%3D%3D",
	"/api/v1/namespaces/first/configmaps?fieldSelector=metadata.name%3Dc2",
	"/api/v1/namespaces/first/configmaps?fieldSelector=metadata.name%21%3Dc2",
	"/api/v1/namespaces/first/configmaps?fieldSelector=no.such%3Dc2",
	"/api/v1/configmaps?fieldSelector=metadata.namespace%3Dalpha",
	"/api/v1/configmaps?fieldSelector=metadata.namespace%3Dalpha,metadata.name%3Dc0",
	"/api/v1/configmaps?resourceVersion=0",
	"/api/v1/configmaps?resourceVersion=3&resourceVersionMatch=Exact",
	"/api/v1/configmaps?resourceVersion=3&resourceVersionMatch=NotOlderThan",
	"/api/v1/configmaps?resourceVersionMatch=Exact",
	"/api/v1/configmaps?resourceVersion=x",
	"/api/v1/configmaps?sendInitialEvents=true",
	"/api/v1/configmaps?timeoutSeconds=1",
	"/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
	"/api/v1/pods?fieldSelector=status.phase%3DPending",
	"/api/v1/namespaces",
	"/api/v1/namespaces?fieldSelector=status.phase%3DActive",
	"/api/v1/nodes",
	"/api/v1/services",
	"/api/v1/namespaces/first/services/s",
	"/api/v1/persistentvolumeclaims",
	"/api/v1/namespaces/first/persistentvolumeclaims/p",
	"/apis/apps/v1/namespaces/first/controllerrevisions/r",
	"/apis/apps/v1/controllerrevisions?labelSelector=a%3Db",
	"/apis/apps/v1/controllerrevisions",
	"/apis/events.k8s.io/v1/namespaces/first/events/e",
	"/api/v1/events",
	"/apis/events.k8s.io/v1/events",
	"/apis/apps/v1/deployments",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"/apis/autoscaling/v1/horizontalpodautoscalers",
	"/apis/autoscaling/v2/horizontalpodautoscalers",
	"/apis/coordination.k8s.io/v1/leases",
	"/apis/networking.k8s.io/v1/ipaddresses", // whose rows have more cells than columns
}

// accepts are the headers with which each of reads is sent.
var accepts = []map[string]string{
	{},
	{"Accept": "*/*"},
	{"Accept": "application/json"},
	{"Accept": "application/json", "User-Agent": "curl/8"},
	{"Accept": "application/json;pretty=1"},
	{"Accept": "text/html,application/xml;q=0.9,*/*;q=0.8", "User-Agent": "Mozilla/5.0 (X11)", "Accept-Encoding": "gzip"},
	{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "User-Agent": "curl/8"},
	{"Accept": "application/json;as=Table;v=v1beta1;g=meta.k8s.io;pretty=1"},
	{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "User-Agent": "Wget/1"},
	{"Accept": "application/json", "Accept-Encoding": "gzip"},
	{"Accept": "application/json", "Accept-Encoding": "br;q=1.0, gzip;q=0.8"},
	{"Accept": "application/yaml"},
	{"Accept": "application/vnd.kubernetes.protobuf,application/json"},
	{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
	{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
	{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
	{"Accept": "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io"},
	{"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io;pretty=1"},
	{"Accept": "application/vnd.kubernetes.protobuf"},
	{"Accept": "application/vnd.kubernetes.protobuf", "Accept-Encoding": "gzip"},
	{"Accept": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
	{"Accept": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
	{"Accept": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io"},
	{"Accept": "text/html"},
	{"Accept": "text/html,*/*;q=0.1"},
	{"Accept": "application/json;as=Nonsense"},
}

// varying matches what differs from one request to the next: tokens, and ages in tables.
var varying = regexp.MustCompile(`"continue":\s?"[^"]+"|"creationTimestamp":\s?"[^"]+"|"\d+s"`)

// TestEncodedRead_EqualsUpstreams: a read answered from stored bytes equals the answer of
// upstream's handlers: status, headers, and every byte of the body.
func TestEncodedRead_EqualsUpstreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := newServer(t, nil)
	s.seed(t)
	for _, path := range reads {
		for _, header := range accepts {
			t.Run(fmt.Sprint(path, header), func(t *testing.T) {
				compare(t, s, call{method: http.MethodGet, path: path, header: header})
			})
		}
	}
}

// TestEncodedRead_WaitsForAFutureRevision: a read at a future revision waits for it and
// then fails with upstream's words.
func TestEncodedRead_WaitsForAFutureRevision(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a future revision")
	}
	s := newServer(t, nil)
	s.create(t, "/api/v1/namespaces/first/configmaps", `{"metadata":{"name":"c1"}}`)
	for _, path := range []string{
		"/api/v1/namespaces/first/configmaps/c1?resourceVersion=99999999",
		"/api/v1/configmaps?resourceVersion=99999999",
		"/api/v1/configmaps?resourceVersion=99999999&resourceVersionMatch=Exact",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			compare(t, s, call{method: http.MethodGet, path: path})
		})
	}
}

func compare(t *testing.T, s *server, c call) {
	t.Helper()
	want, wantBody := c.answer(t, s.upstream)
	got, gotBody := c.answer(t, s.bytes)
	// A continue token holds the second in which it was issued, and the two answers may be
	// of different seconds. (In JSON the tokens are not compared.)
	for tries := 3; tries > 0 && strings.Contains(c.path, "limit=") &&
		unpack(t, want, wantBody) != unpack(t, got, gotBody); tries-- {
		want, wantBody = c.answer(t, s.upstream)
		got, gotBody = c.answer(t, s.bytes)
	}
	if want.StatusCode != got.StatusCode {
		t.Errorf("status %d, want %d: %s", got.StatusCode, want.StatusCode, gotBody)
	}
	if diff := cmp.Diff(headers(want.Header), headers(got.Header)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(unpack(t, want, wantBody), unpack(t, got, gotBody)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

// headers returns the headers that must be equal.
func headers(h http.Header) http.Header {
	kept := h.Clone()
	kept.Del("Date")
	kept.Del("Audit-Id")
	// How an answer was written decides whether a short one has a length.
	kept.Del("Content-Length")
	return kept
}

func unpack(t *testing.T, resp reply, body string) string {
	t.Helper()
	if resp.Header.Get("Content-Encoding") == "gzip" {
		body = gunzip(t, body)
	}
	return varying.ReplaceAllString(body, "")
}

// TestEncodedRead_PagesAreTheList: pages that the two servers answer in turns add up to the
// list.
func TestEncodedRead_PagesAreTheList(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.seed(t)
	for _, path := range []string{"/api/v1/namespaces/first/configmaps?",
		"/api/v1/configmaps?fieldSelector=metadata.namespace%3Dfirst&"} {
		// from bytes and from upstream's handlers in turns, or the other way round, or all from upstream's
		for turn := range 3 {
			var names []string
			for page, token := 0, ""; page == 0 || token != ""; page++ {
				from := s.bytes
				if turn == 2 || page%2 != turn {
					from = s.upstream
				}
				_, body := (call{method: http.MethodGet, path: path + "limit=2&continue=" + url.QueryEscape(token)}).answer(t, from)
				list := parse(t, []byte(body))
				for _, item := range list["items"].([]any) {
					names = append(names, asMap(asMap(item)["metadata"])["name"].(string))
				}
				token, _ = asMap(list["metadata"])["continue"].(string)
			}
			if want := []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6"}; !slices.Equal(want, names) {
				t.Errorf("%s: turn %d: got %v, want %v", path, turn, names, want)
			}
		}
	}
}

// TestEncodedRead_CoversEveryStoredResource: reads of every stored resource, in every
// version, are answered from bytes.
func TestEncodedRead_CoversEveryStoredResource(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	var decoded []string
	for _, r := range s.api.Stored() {
		if !r.FromBytes() {
			decoded = append(decoded, r.Path())
		}
	}
	if len(decoded) > 0 {
		t.Errorf("decoded: %v", decoded)
	}
}

// TestEncodedRead_FindsJobsByTheLabelsTheyShow: a Job without labels gets those of its template as defaults, which the
// registry gives the template after it has set the defaults of the request.
func TestEncodedRead_FindsJobsByTheLabelsTheyShow(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const jobs = "/apis/batch/v1/namespaces/first/jobs"
	names := func(selector string) (names []string) {
		_, body := (call{method: http.MethodGet, path: jobs + "?labelSelector=" + url.QueryEscape(selector)}).answer(t,
			s.bytes)
		for _, item := range parse(t, []byte(body))["items"].([]any) {
			names = append(names, asMap(asMap(item)["metadata"])["name"].(string))
		}
		return names
	}
	if got := names(""); len(got) > 0 { // the Jobs are in memory now
		t.Fatal(got)
	}
	s.create(t, jobs,
		`{"metadata":{"name":"j"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`)
	if got := names("job-name=j"); !slices.Equal(got, []string{"j"}) {
		t.Errorf("by its label: %v", got)
	}
	if got := names("!job-name"); len(got) > 0 {
		t.Errorf("without its label: %v", got)
	}
}

// TestMetadata_CutOutOfTheWholeObject: metadata in protobuf is the same whether it is
// transcoded, cut out of whole objects that are in memory, or encoded by upstream's
// handlers, in gets and lists, in both versions.
func TestMetadata_CutOutOfTheWholeObject(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const pods = "/api/v1/namespaces/first/pods"
	for i := range 3 {
		s.create(t, pods, fmt.Sprintf(
			`{"metadata":{"name":"p%d","labels":{"app":"a"},"annotations":{"x":"y\n"},"finalizers":["example.com/f"]},"spec":{"containers":[{"name":"c","image":"i"}]}}`, i))
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	answer := func(path, accept string) string {
		resp, body := call{method: http.MethodGet, path: path, header: map[string]string{"Accept": accept}}.answer(t, s.bytes)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(body)
		}
		return body
	}
	forget := func() { s.feed.Forget(sqlstore.Resource{Resource: "pods"}) }
	for _, version := range []string{"v1", "v1beta1"} {
		for path, kind := range map[string]string{pods: "PartialObjectMetadataList", pods + "/p1": "PartialObjectMetadata"} {
			accept := protobuf + ";as=" + kind + ";g=meta.k8s.io;v=" + version
			forget()
			answer(pods, "application/json") // loads the resource
			made := answer(path, accept)
			forget()
			answer(pods, protobuf) // the whole objects are in memory
			if cut := answer(path, accept); cut != made {
				t.Errorf("%s %s: cut\n%q\nmade\n%q", path, accept, cut, made)
			}
			_, upstream := call{method: http.MethodGet, path: path, header: map[string]string{"Accept": accept}}.answer(t,
				s.upstream)
			if made != upstream {
				t.Errorf("%s %s: made\n%q\nupstream\n%q", path, accept, made, upstream)
			}
		}
	}
}

// discard is a client that reads everything and stores nothing.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}

// TestList_Streams: a list of any length, indented or not, allocates only a small part of what it sends.
func TestList_Streams(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 20 MB")
	}
	s := newServer(t, nil)
	const count, size = 400, 50_000
	body := strings.Repeat("x", size)
	for i := range count {
		s.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"m%03d"},"data":{"k":%q}}`, i, body))
	}
	list := func(query string) (sent int, allocated uint64) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, configMaps+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		to := &discard{header: http.Header{}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		apitest.WithContext(s.api, someone).ServeHTTP(to, req)
		runtime.ReadMemStats(&after)
		return to.bytes, after.TotalAlloc - before.TotalAlloc
	}
	for _, query := range []string{"", "?pretty=true"} {
		list(query) // fills the caches
		sent, allocated := list(query)
		for range 4 { // other goroutines of the process allocate too, now and then
			_, again := list(query)
			allocated = min(allocated, again)
		}
		t.Logf("%q: sent %d kB, allocated %d kB", query, sent/1000, allocated/1000)
		if sent < count*size {
			t.Fatalf("only %d bytes were sent", sent)
		}
		if limit := uint64(sent / 20); allocated > limit {
			t.Errorf("%q: allocated %d bytes, more than %d", query, allocated, limit)
		}
	}
}

var errBroken = errors.New("the disk is gone")

// breaking is a driver whose lists fail after some records once they are told to.
type breaking struct {
	sqlstore.Driver
	after int // the number of records that a list still returns; negative for all
}

func (b *breaking) List(
	ctx context.Context, q sqlstore.Query, each func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	given := 0
	return b.Driver.List(ctx, q, func(r sqlstore.Record) error {
		if b.after >= 0 && given >= b.after {
			return errBroken
		}
		given++
		return each(r)
	})
}

// TestList_BrokenListIsAnError: a list that cannot be read to its end is never answered as
// a shorter list. Before the first byte was sent the answer is an error status; after it
// the connection breaks.
func TestList_BrokenListIsAnError(t *testing.T) {
	t.Parallel()
	driver := &breaking{after: -1}
	s := newServer(t, func(d sqlstore.Driver) sqlstore.Driver {
		driver.Driver = d
		return driver
	})
	const count = 1200 // more than one read returns
	body := strings.Repeat("x", 1000)
	for i := range count {
		s.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"m%04d"},"data":{"k":%q}}`, i, body))
	}
	// A list of an older state is read from the database.
	old := call{method: http.MethodGet,
		path: fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", configMaps, count-1)}
	if resp, text := old.answer(t, s.bytes); resp.StatusCode != http.StatusOK || strings.Count(text, `"uid"`) != count-1 {
		t.Fatalf("whole: %d, %d bytes", resp.StatusCode, len(text))
	}

	driver.after = 0
	if resp, text := old.answer(t, s.bytes); resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("broken before the first: %d %s", resp.StatusCode, text)
	}
	driver.after = 250
	resp := old.do(t, s.bytes)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK && err == nil {
		t.Errorf("broken in the middle: a list of %d bytes without an error", len(text))
	}
}
