package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A server with short timeouts ends what takes longer. It emulates an older release, which is another question to the
// same server.
func TestServe_ShortTimeoutsOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--token-auth-file", hostileTokens(t), "--request-timeout=2s", "--min-request-timeout=2",
		"--emulated-version=1.34", "--runtime-config=networking.k8s.io/v1beta1=true")
	for name, test := range map[string]func(*testing.T, *serverProcess){
		"slow clients": testSlowClients, "watch": testMinRequestTimeout, "older release": testOlderRelease,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// testOlderRelease: a server that emulates an older release has that release's APIs and feature gates.
func testOlderRelease(t *testing.T, server *serverProcess) {
	_, body := server.mustGet(t, "/apis")
	// storagemigration.k8s.io/v1 came with 1.37, and networking.k8s.io/v1beta1 went.
	if strings.Contains(body, "storagemigration.k8s.io") || !strings.Contains(body, "networking.k8s.io/v1beta1") {
		t.Errorf("1.34 serves %s", body)
	}
}

// testMinRequestTimeout: the server ends a watch after --min-request-timeout at the earliest and twice that at the latest.
func testMinRequestTimeout(t *testing.T, server *serverProcess) {
	client, err := rest.HTTPClientFor(server.config(t))
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	status, body, err := fetch(t.Context(), client, server.config(t).Host+configMaps+"?watch=1&resourceVersion=0")
	if took := time.Since(started); err != nil || status != http.StatusOK || took < 2*time.Second || took > 30*time.Second {
		t.Errorf("a watch ended after %v with %d %s, %v", took, status, body, err)
	}
}

// testSlowClients: the server answers a request whose body is sent too slowly. The bound of headers is tested in
// apiserver/process.
func testSlowClients(t *testing.T, server *serverProcess) {
	config := withToken(server.config(t), "admin-secret")
	body, sent := io.Pipe()
	defer sent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+configMaps, io.MultiReader(strings.NewReader(`{"metadata":`), body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer admin-secret")
	request.Header.Set("Content-Type", "application/json")
	response, err := anonymous().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusGatewayTimeout && response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a body that does not end is answered with %s", response.Status)
	}
}
