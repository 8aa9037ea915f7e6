package aggregator_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// get sends a GET request and returns the status, the body and the header of the answer.
func get(t testing.TB, url string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return do(t, req)
}

func do(t testing.TB, req *http.Request) (int, string, http.Header) {
	t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

// TestProxy_SendsTheIdentityOfTheClient: the backend gets the user's identity from this
// server only, which authenticates with its client certificate. Identity headers that the
// client sent are removed.
func TestProxy_SendsTheIdentityOfTheClient(t *testing.T) {
	t.Parallel()
	s := start(t)
	seen := make(chan *http.Request, 1)
	b := newBackend(t, s, "widgets", newAPI("widgets").serve("/widgets/{name}", func(w http.ResponseWriter, req *http.Request) {
		seen <- req
		_, _ = io.WriteString(w, "hello")
	}))
	b.available(t, s)
	status, body, _ := get(t, b.url(s, "/widgets/first?b=2&a=1"),
		"X-Remote-User", "admin", "X-Remote-Uid", "0", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all",
		"x-remote-extra-other", "all", "Audit-ID", "chosen", "X-Other", "kept")
	if status != http.StatusOK || body != "hello" {
		t.Fatalf("%d %s", status, body)
	}
	req := <-seen
	if len(req.TLS.PeerCertificates) == 0 || req.TLS.PeerCertificates[0].Subject.CommonName != "front-proxy-client" {
		t.Error("the server did not show its certificate")
	}
	got := http.Header{}
	for name, values := range req.Header {
		if strings.HasPrefix(name, "X-Remote-") || name == "X-Other" {
			got[name] = values
		}
	}
	want := http.Header{
		"X-Remote-User":         {"tess"},
		"X-Remote-Uid":          {"t-1"},
		"X-Remote-Group":        {"testers", "system:authenticated"},
		"X-Remote-Extra-Scopes": {"a", "b"},
		"X-Remote-Extra-Example.com%2fmixed%20case": {"c"},
		"X-Other": {"kept"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if req.URL.Path != "/apis/widgets.example.com/v1/widgets/first" || req.URL.RawQuery != "a=1&b=2" {
		t.Errorf("asked for %s", req.URL)
	}
}
