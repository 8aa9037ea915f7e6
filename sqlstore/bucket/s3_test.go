package bucket

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// A body that stops fails; one that is slow, in either direction, does not.
func TestTransport_FailsAfterAStall(t *testing.T) {
	t.Parallel()
	const stall = time.Second
	trickle := func(step func() bool) {
		for begun := time.Now(); time.Since(begun) < 2*stall; time.Sleep(stall / 10) {
			if !step() {
				return
			}
		}
	}
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stall":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("a part"))
			_ = http.NewResponseController(w).Flush()
			<-release
		case "/slow":
			trickle(func() bool {
				_, err := w.Write([]byte("."))
				return err == nil && http.NewResponseController(w).Flush() == nil
			})
		default:
			_, _ = io.Copy(w, r.Body)
		}
	}))
	defer server.Close()
	defer close(release)
	transport, err := newTransport(false, stall)
	if err != nil {
		t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	read := func(method, path string, body io.Reader) ([]byte, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		return io.ReadAll(res.Body)
	}
	if got, err := read(http.MethodGet, "/stall", nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a body that stops: %q, %v", got, err)
	}
	if got, err := read(http.MethodGet, "/slow", nil); err != nil || len(got) < 5 {
		t.Errorf("a slow body: %q, %v", got, err)
	}
	reader, writer := io.Pipe()
	go func() {
		trickle(func() bool {
			_, err := writer.Write(bytes.Repeat([]byte("x"), 100))
			return err == nil
		})
		writer.Close()
	}()
	if got, err := read(http.MethodPut, "/upload", reader); err != nil || len(got) < 500 {
		t.Errorf("a slow upload: %d bytes, %v", len(got), err)
	}
}
