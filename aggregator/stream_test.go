package aggregator_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// waitFor waits until a channel is closed or has a value. Its limit is much longer than a
// busy machine takes: only a failing test reaches it.
func waitFor[T any](t testing.TB, what string, happened <-chan T) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(time.Minute):
		t.Fatalf("%s: this did not happen", what)
	}
}

// TestProxy_StreamsWatches: an event reaches the client when it is sent, and the
// backend sees at once that the client has gone.
func TestProxy_StreamsWatches(t *testing.T) {
	t.Parallel()
	s := start(t)
	events, gone := make(chan string), make(chan struct{})
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/widgets", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json;stream=watch")
		flusher := http.NewResponseController(w)
		for {
			if err := flusher.Flush(); err != nil {
				return
			}
			select {
			case event := <-events:
				_, _ = io.WriteString(w, event+"\n")
			case <-req.Context().Done():
				close(gone)
				return
			}
		}
	}))
	b.available(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url(s, "/widgets?watch=true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for i := range 3 {
		event := fmt.Sprintf(`{"type":"ADDED","n":%d}`, i)
		events <- event
		// The test sends the next event only after it has read this one: a proxy that
		// waited for more bytes would deliver neither.
		if line, err := lines.ReadString('\n'); err != nil || line != event+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	cancel()
	waitFor(t, "the backend sees that the client has gone", gone)
}

// TestProxy_PassesBodiesBothWays: bodies of any size pass in both directions, and a
// compressed answer passes unchanged.
func TestProxy_PassesBodiesBothWays(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	s := start(t)
	big := make([]byte, 20<<20)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, s, "widgets", newAPI("widgets").
		serve("/echo", func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("X-Length", fmt.Sprint(req.ContentLength))
			_, _ = w.Write(body)
		}).
		serve("/packed", func(w http.ResponseWriter, req *http.Request) {
			if !strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
				http.Error(w, "not asked for", http.StatusNotAcceptable)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			_, _ = io.WriteString(packed, "hello")
			_ = packed.Close()
		}))
	b.available(t, s)
	for name, body := range map[string]io.Reader{
		"known length": bytes.NewReader(big),
		"chunked":      struct{ io.Reader }{bytes.NewReader(big)},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url(s, "/echo"), body)
		if err != nil {
			t.Fatal(err)
		}
		status, echo, header := do(t, req)
		if status != http.StatusOK || sha256.Sum256([]byte(echo)) != sha256.Sum256(big) {
			t.Errorf("%s: %d, %d bytes", name, status, len(echo))
		}
		if want := fmt.Sprint(req.ContentLength); name == "known length" && header.Get("X-Length") != want {
			t.Errorf("the backend saw a length of %s, want %s", header.Get("X-Length"), want)
		}
	}
	status, packed, header := get(t, b.url(s, "/packed"), "Accept-Encoding", "gzip")
	if status != http.StatusOK || header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%d %v", status, header)
	}
	reader, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != "hello" {
		t.Errorf("%q %v", text, err)
	}
	if status, text, _ := get(t, b.url(s, "/packed")); status != http.StatusOK || text != "hello" {
		t.Errorf("to a client that says nothing: %d %q", status, text)
	}
}

// TestProxy_UpgradesToWebSocket: an upgraded connection joins client and backend, carries
// the client's identity, and ends when either side ends it.
func TestProxy_UpgradesToWebSocket(t *testing.T) {
	t.Parallel()
	s := start(t)
	ended := make(chan error, 1)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/talk", websocket.Server{Handler: func(conn *websocket.Conn) {
		_, _ = fmt.Fprintf(conn, "%s %s", conn.Request().Header["X-Remote-User"], conn.Request().Header["X-Remote-Group"])
		_, err := io.Copy(conn, conn)
		ended <- err
	}}.ServeHTTP))
	b.available(t, s)
	// Upstream's filters end the request's context after --request-timeout, and the connection lives on.
	ends := make(chan context.CancelFunc, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, end := context.WithCancel(req.Context())
		defer end()
		ends <- end
		s.front.Config.Handler.ServeHTTP(w, req.WithContext(ctx))
	}))
	defer front.Close()
	config, err := websocket.NewConfig("ws"+strings.TrimPrefix(front.URL, "http")+strings.TrimPrefix(b.url(s, "/talk"), s.front.URL), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	config.Header.Set("X-Remote-User", "admin")
	conn, err := config.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	expect(t, conn, "[tess] [testers system:authenticated]")
	(<-ends)()
	for range 3 {
		time.Sleep(10 * time.Millisecond)
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, conn, "hello")
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	waitFor(t, "the backend sees that the client has gone", ended)
}

func expect(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("%q, %v, want %q", got, err, want)
	}
}

// dialSPDY upgrades a POST request to SPDY. The connection ends with the test.
func dialSPDY(t *testing.T, target string) httpstream.Connection {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	carrier, err := spdy.NewRoundTripper(nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: carrier}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	conn, err := carrier.NewConnection(response)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestProxy_UpgradesToSPDY: the proxy carries the SPDY streams of requests such as kubectl
// exec.
func TestProxy_UpgradesToSPDY(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/talk", func(w http.ResponseWriter, req *http.Request) {
		streams := make(chan httpstream.Stream, 1)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, _ <-chan struct{}) error {
			streams <- stream
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		stream := <-streams
		_, _ = io.WriteString(stream, stream.Headers().Get("name")+" ")
		_, _ = io.Copy(stream, stream)
	}))
	b.available(t, s)
	at, err := url.Parse(b.url(s, "/talk"))
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSPDY(t, at.String())
	stream, err := conn.CreateStream(http.Header{"Name": {"first"}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, stream, "first ")
	for range 3 {
		if _, err := io.WriteString(stream, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, stream, "hello")
	}
}

// TestProxy_ClosesAnAbandonedUpgrade: a client that gives up before the backend has
// answered its upgrade does not leave a connection open.
func TestProxy_ClosesAnAbandonedUpgrade(t *testing.T) {
	t.Parallel()
	s := start(t)
	begun, ended := make(chan struct{}), make(chan error, 1)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/talk", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		close(begun)
		_, err = conn.Read(make([]byte, 1))
		ended <- err
	}), http1)
	b.available(t, s)
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(client, "GET /apis/%s/v1/talk HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b.group()); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the backend's connection is closed", ended)
}
