package handlers_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/net/websocket"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics/legacyregistry"

	"byre/apiserver/apitest"
)

// stream reads a watch line by line.
type stream struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Scanner
}

func (s *server) watch(t *testing.T, from *httptest.Server, path string) *stream {
	t.Helper()
	resp := call{method: http.MethodGet, path: path, header: map[string]string{"Accept": "application/json"}}.do(t, from)
	t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	return &stream{t: t, resp: resp, lines: lines}
}

// next returns the next n frames.
func (s *stream) next(n int) []string {
	s.t.Helper()
	var frames []string
	for range n {
		if !s.lines.Scan() {
			s.t.Fatalf("the watch ended after %d of %d events: %v", len(frames), n, s.lines.Err())
		}
		frames = append(frames, s.lines.Text())
	}
	return frames
}

// rest returns all frames until the watch ends.
func (s *stream) rest() []string {
	var frames []string
	for s.lines.Scan() {
		frames = append(frames, s.lines.Text())
	}
	return frames
}

const configMaps = "/api/v1/namespaces/first/configmaps"

func (s *server) mustDo(t *testing.T, method, path, contentType, body string) {
	t.Helper()
	c := call{method: method, path: path, body: body, header: map[string]string{}}
	if contentType != "" {
		c.header["Content-Type"] = contentType
	}
	if resp, answer := c.answer(t, s.bytes); resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
}

// TestWatch_EventsEqualUpstreams: both ways to serve a watch send the same bytes: with
// selectors, with names, by the deprecated paths, and with a bookmark after the initial
// events.
func TestWatch_EventsEqualUpstreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	for _, test := range []struct {
		path   string
		events []string
	}{
		{configMaps + "?watch=1&resourceVersion=1", []string{"ADDED one", "MODIFIED one", "ADDED two", "DELETED one"}},
		{configMaps + "?watch=1", []string{"ADDED zero", "ADDED one", "MODIFIED one", "ADDED two", "DELETED one"}},
		{"/api/v1/configmaps?watch=1&resourceVersion=1", []string{"ADDED one", "MODIFIED one", "ADDED two", "DELETED one"}},
		{configMaps + "?watch=1&resourceVersion=1&labelSelector=a%3Db", []string{"ADDED one", "DELETED one"}},
		{configMaps + "?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dtwo", []string{"ADDED two"}},
		{"/api/v1/watch/namespaces/first/configmaps?resourceVersion=1",
			[]string{"ADDED one", "MODIFIED one", "ADDED two", "DELETED one"}},
		{"/api/v1/watch/namespaces/first/configmaps/two?resourceVersion=1", []string{"ADDED two"}},
		{configMaps + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
			[]string{"ADDED zero", "BOOKMARK ", "ADDED one", "MODIFIED one", "ADDED two", "DELETED one"}},
	} {
		t.Run(test.path, func(t *testing.T) {
			s := newServer(t, nil)
			s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
			bytes, decoded := s.watch(t, s.bytes, test.path), s.watch(t, s.upstream, test.path)
			s.create(t, configMaps, `{"metadata":{"name":"one","labels":{"a":"b"}}}`)
			s.mustDo(t, http.MethodPatch, configMaps+"/one", "application/merge-patch+json",
				`{"metadata":{"labels":{"a":null}},"data":{"k":"<&>"}}`)
			s.create(t, configMaps, `{"metadata":{"name":"two"}}`)
			s.mustDo(t, http.MethodDelete, configMaps+"/one", "", "")

			got, want := bytes.next(len(test.events)), decoded.next(len(test.events))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("frames (-decoded +bytes):\n%s", diff)
			}
			if diff := cmp.Diff(test.events, summary(t, got)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(headers(decoded.resp.Header), headers(bytes.resp.Header)); diff != "" {
				t.Errorf("headers (-decoded +bytes):\n%s", diff)
			}
		})
	}
}

// TestWatch_IsCompressed: a watch that begins with the objects that there are is sent as gzip to
// a client that accepts it, and what a client has to know is readable at once.
func TestWatch_IsCompressed(t *testing.T) {
	t.Parallel()
	const list = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, test := range []struct {
		query, accepts, encoding string
	}{
		{list, "gzip", "gzip"},
		{list, "deflate, gzip", "gzip"},
		{list, "", ""},
		{"", "gzip", ""},
	} {
		s := newServer(t, nil)
		s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
		c := call{method: http.MethodGet, path: configMaps + "?watch=1" + test.query,
			header: map[string]string{"Accept-Encoding": test.accepts}}
		var headersOf [2]http.Header
		var read [2][]string
		for i, server := range []*httptest.Server{s.upstream, s.bytes} {
			resp := c.do(t, server)
			defer resp.Body.Close()
			headersOf[i] = headers(resp.Header)
			body := io.Reader(resp.Body)
			if resp.Header.Get("Content-Encoding") == "gzip" {
				var err error
				if body, err = gzip.NewReader(body); err != nil {
					t.Fatal(err)
				}
			}
			lines := bufio.NewScanner(body)
			events := &stream{t: t, resp: resp, lines: lines}
			first := events.next(1)
			// What comes later is another member of the stream.
			name := fmt.Sprintf("later-%d", i)
			s.create(t, configMaps, `{"metadata":{"name":"`+name+`"}}`)
			for !strings.Contains(first[len(first)-1], name) {
				first = append(first, events.next(1)...)
			}
			read[i] = summary(t, first)
		}
		if headersOf[1].Get("Content-Encoding") != test.encoding {
			t.Errorf("%q, accepting %q: the encoding is %q, want %q", test.query, test.accepts,
				headersOf[1].Get("Content-Encoding"), test.encoding)
		}
		if diff := cmp.Diff(headersOf[0], headersOf[1]); diff != "" {
			t.Errorf("%q, accepting %q: headers (-decoded +bytes):\n%s", test.query, test.accepts, diff)
		}
		if !slices.Contains(read[1], "ADDED zero") || read[1][len(read[1])-1] != "ADDED later-1" {
			t.Errorf("%q, accepting %q: %v", test.query, test.accepts, read[1])
		}
	}
}

// TestWatch_FormsEqualUpstreams: the events of a watch equal upstream's in every form: of
// built-in resources in the stored version and in another one, and of decorated resources.
func TestWatch_FormsEqualUpstreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("watches in every form")
	}
	const body = `{"metadata":{"name":"%s","labels":{"a":"b"}},"spec":%s}`
	for _, resource := range []struct{ path, spec, patch string }{
		{"/api/v1/namespaces/first/pods", `{"containers":[{"name":"c","image":"i"}]}`,
			`{"metadata":{"labels":{"a":null},"annotations":{"note":"<&>"}}}`},
		{"/api/v1/namespaces/first/services", `{"clusterIP":"None","ports":[{"port":80}]}`,
			`{"spec":{"ports":[{"port":81}]}}`},
		{"/apis/autoscaling/v1/namespaces/first/horizontalpodautoscalers",
			`{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}`,
			`{"spec":{"maxReplicas":4}}`},
		{"/apis/autoscaling/v2/namespaces/first/horizontalpodautoscalers",
			`{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}`,
			`{"spec":{"maxReplicas":4}}`},
	} {
		t.Run(resource.path, func(t *testing.T) {
			s := newServer(t, nil)
			s.create(t, resource.path, fmt.Sprintf(body, "zero", resource.spec))
			type pair struct {
				call
				got, want *http.Response
			}
			var watches []pair
			for _, accept := range []string{
				"application/json",
				"application/json;pretty=1",
				"application/vnd.kubernetes.protobuf",
				"application/vnd.kubernetes.protobuf;stream=watch,application/json",
				"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
				"application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
				"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			} {
				for _, query := range []string{"", "&labelSelector=a%3Db",
					"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
					c := call{method: http.MethodGet, path: resource.path + "?watch=1" + query,
						header: map[string]string{"Accept": accept}}
					watches = append(watches, pair{c, c.do(t, s.bytes), c.do(t, s.upstream)})
				}
			}
			s.create(t, resource.path, fmt.Sprintf(body, "one", resource.spec))
			s.mustDo(t, http.MethodPatch, resource.path+"/one", "application/merge-patch+json", resource.patch)
			s.mustDo(t, http.MethodDelete, resource.path+"/one?gracePeriodSeconds=0", "", "")
			for _, watch := range watches {
				got, want := untilDeleted(t, watch.got), untilDeleted(t, watch.want)
				if got != want {
					t.Errorf("%s %v: got\n%q\nwant\n%q", watch.path, watch.header, got, want)
				}
				if diff := cmp.Diff(headers(watch.want.Header), headers(watch.got.Header)); diff != "" {
					t.Errorf("%s %v: headers (-decoded +bytes):\n%s", watch.path, watch.header, diff)
				}
			}
		})
	}
}

// untilDeleted reads the events of a watch up to the first one of a deletion, and closes it.
func untilDeleted(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	body := bufio.NewReader(resp.Body)
	var events []byte
	for {
		var event []byte
		var err error
		if strings.Contains(resp.Header.Get("Content-Type"), "protobuf") {
			// Each event follows its length (k8s.io/apimachinery/pkg/util/framer).
			var length uint32
			if err = binary.Read(body, binary.BigEndian, &length); err == nil {
				event = make([]byte, length)
				_, err = io.ReadFull(body, event)
			}
		} else {
			event, err = body.ReadBytes('\n')
		}
		if err != nil {
			t.Fatalf("after %q: %v", events, err)
		}
		events = append(events, event...)
		if bytes.Contains(event, []byte("DELETED")) {
			return string(events)
		}
	}
}

// summary is the type and name of each event.
func summary(t *testing.T, frames []string) []string {
	t.Helper()
	var events []string
	for _, frame := range frames {
		event := parse(t, []byte(frame))
		name, _ := asMap(asMap(event["object"])["metadata"])["name"].(string)
		events = append(events, fmt.Sprintf("%s %s", event["type"], name))
	}
	return events
}

// TestWatch_EndsAtItsTimeout: a watch ends at its timeout without an error.
func TestWatch_EndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a second")
	}
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	start := time.Now()
	events := s.watch(t, s.bytes, configMaps+"?watch=1&timeoutSeconds=1").rest()
	if diff := cmp.Diff([]string{"ADDED zero"}, summary(t, events)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if took := time.Since(start); took < time.Second || took > 30*time.Second {
		t.Errorf("it ended after %v", took)
	}
}

// TestWatch_ReportsErrors: an error before the watch has begun is an error status; a later
// one is an ERROR event.
func TestWatch_ReportsErrors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a future revision")
	}
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	for _, path := range []string{
		configMaps + "?watch=1&resourceVersion=x",
		configMaps + "?watch=1&fieldSelector=no.such%3Dfield",
		configMaps + "?watch=1&labelSelector=%3D%3D",
		configMaps + "?watch=1&resourceVersionMatch=Exact",
		configMaps + "?watch=1&sendInitialEvents=true",
		configMaps + "/zero?watch=1&timeoutSeconds=1",
		"/api/v1/watch/namespaces/first/configmaps/zero?fieldSelector=metadata.name%3Done",
		configMaps + "?watch=1&resourceVersion=99999999&timeoutSeconds=4",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			compare(t, s, call{method: http.MethodGet, path: path})
		})
	}
}

// TestWatch_TablesAreUpstreams: the events of a watch in another form than plain JSON equal
// upstream's.
func TestWatch_TablesAreUpstreams(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	for _, accept := range []string{
		"application/json;as=Table;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;stream=watch",
		"application/json;stream=watch",
		"application/yaml",
		"application/vnd.kubernetes.protobuf",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	} {
		t.Run(accept, func(t *testing.T) {
			t.Parallel()
			compare(t, s,
				call{method: http.MethodGet, path: configMaps + "?watch=1&timeoutSeconds=1",
					header: map[string]string{"Accept": accept}})
		})
	}
}

// TestWatch_BatchesComeInOrder: many events at once arrive complete and in order.
func TestWatch_BatchesComeInOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	padding := strings.Repeat("x", 10_000)
	const count = 200
	for i := range count {
		s.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"m%03d"},"data":{"p":%q}}`, i, padding))
	}
	frames := s.watch(t, s.bytes, configMaps+"?watch=1&resourceVersion=1").next(count - 1)
	whole := regexp.MustCompile(`^\{"type":"ADDED","object":\{.*\}\}$`)
	for i, frame := range frames {
		if !whole.MatchString(frame) || !strings.Contains(frame, fmt.Sprintf(`"name":"m%03d"`, i+1)) {
			t.Fatalf("event %d is %.120s…", i, frame)
		}
	}
}

// signal is the lifecycle signal of the server's shutdown.
type signal chan struct{}

func (s signal) ShuttingDown() <-chan struct{} { return s }

// TestWatch_EndsAtShutdown: watches end when the server begins to shut down.
func TestWatch_EndsAtShutdown(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	shutdown := make(signal)
	h := apitest.WithContext(s.api, someone)
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.ServeHTTP(w, req.WithContext(request.WithServerShutdownSignal(req.Context(), shutdown)))
	}))
	defer served.Close()
	watch := s.watch(t, served, configMaps+"?watch=1")
	watch.next(1)
	close(shutdown)
	if rest := watch.rest(); len(rest) > 0 || watch.lines.Err() != nil {
		t.Errorf("it ended with %q, %v", rest, watch.lines.Err())
	}
}

// TestWatch_IsCounted: events and open watches are counted under kube-apiserver's names.
func TestWatch_IsCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	metrics.Register()
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	s.watch(t, s.bytes, configMaps+"?watch=1&timeoutSeconds=1").rest()
	gathered, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`apiserver_watch_events_total:.*"group" value:"" .*"resource" value:"configmaps" .*"version" value:"v1"`,
		`apiserver_request_total:.*"code" value:"200" .*"component" value:"apiserver" .*"resource" value:"configmaps" .*"scope" value:"namespace" .*"verb" value:"WATCH"`,
		`apiserver_request_total:.*"code" value:"201" .*"resource" value:"configmaps" .*"scope" value:"resource" .*"verb" value:"POST"`,
		`apiserver_longrunning_requests:.*"resource" value:"configmaps" .*"verb" value:"WATCH"`,
	} {
		if !counted(gathered, regexp.MustCompile(want)) {
			t.Errorf("no %s", want)
		}
	}
}

// counted reports whether a metric has labels that match. Labels are in the order of their
// names.
func counted(gathered []*dto.MetricFamily, want *regexp.Regexp) bool {
	for _, family := range gathered {
		for _, metric := range family.GetMetric() {
			line := family.GetName() + ":"
			for _, label := range metric.GetLabel() {
				line += fmt.Sprintf("%q value:%q ", label.GetName(), label.GetValue())
			}
			if want.MatchString(line) {
				return true
			}
		}
	}
	return false
}

// TestWatch_ServesWebSockets: a watch over a WebSocket has the same events, one in each
// message.
func TestWatch_ServesWebSockets(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, configMaps, `{"metadata":{"name":"zero"}}`)
	url := "ws" + strings.TrimPrefix(s.bytes.URL, "http") + configMaps + "?watch=1"
	socket, err := websocket.Dial(url, "", s.bytes.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	var frame string
	if err := websocket.Message.Receive(socket, &frame); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ADDED zero"}, summary(t, []string{frame})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
