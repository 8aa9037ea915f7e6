package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"byre/apiserver/process"
)

// The queues of Certificates that a test makes and never runs are upstream's: they live from their making on.
func TestMain(m *testing.M) {
	const queue = "k8s.io/client-go/util/workqueue."
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(queue+"(*delayingType[...]).waitingLoop"),
		goleak.IgnoreTopFunction(queue+"(*Typed[...]).updateUnfinishedWorkLoop"))
}

func serve(t *testing.T, handler http.HandlerFunc) *process.LoopbackTransport {
	t.Helper()
	transport := new(process.LoopbackTransport)
	transport.Serve(handler)
	t.Cleanup(func() {
		transport.Close()
		transport.Wait()
	})
	return transport
}

func newRequest(ctx context.Context, t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://loopback"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTransport_RoundTrips(t *testing.T) {
	t.Parallel()
	transport := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Method", r.Method)
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Late", "not sent")
		fmt.Fprintf(w, "%s %s", r.RequestURI, body)
	})
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodPut, "/a/b?c=d", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusTeapot || response.Header.Get("X-Method") != http.MethodPut ||
		response.Header.Get("X-Late") != "" {
		t.Errorf("status %d, header %v", response.StatusCode, response.Header)
	}
	if string(body) != "/a/b?c=d hello" {
		t.Errorf("body is %q", body)
	}
}

func TestTransport_Streams(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	transport := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		for line := range next {
			fmt.Fprintln(w, line)
		}
	})
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/watch", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for _, want := range []string{"one", "two"} {
		next <- want // blocks forever if the transport waits for the end of the response
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q, %v, want %q", lines.Text(), lines.Err(), want)
		}
	}
	close(next)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the end: %q, %v", lines.Text(), lines.Err())
	}
}

func TestTransport_HidesTheCallersContextValues(t *testing.T) {
	t.Parallel()
	type key struct{}
	transport := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Value(key{}) != nil {
			t.Error("the handler sees a value of its caller")
		}
	})
	ctx := context.WithValue(t.Context(), key{}, "value")
	response, err := transport.RoundTrip(newRequest(ctx, t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
}

// endless is a handler that runs until its context ends and then closes ended.
func endless(started, ended chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		close(started)
		<-r.Context().Done()
		close(ended)
	}
}

func TestTransport_CancelEndsTheHandler(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	transport := serve(t, endless(started, ended))
	ctx, cancel := context.WithCancel(t.Context())
	response, err := transport.RoundTrip(newRequest(ctx, t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	<-started
	cancel()
	<-ended
	if _, err := io.ReadAll(response.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("reading on gives %v", err)
	}
}

func TestTransport_ClosingTheBodyEndsTheHandler(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	transport := serve(t, endless(started, ended))
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	<-started
	response.Body.Close()
	<-ended
}

func TestTransport_CloseEndsHandlers(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	transport := serve(t, endless(started, ended))
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	<-started
	transport.Close()
	transport.Wait()
	<-ended
	if _, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", "")); !errors.Is(err,
		process.ErrLoopbackClosed) {
		t.Errorf("a request after Close gives %v", err)
	}
}

func TestTransport_SlowReaderBlocksTheWriter(t *testing.T) {
	t.Parallel()
	const size = 3 * process.MaxBufferedBytes
	written := make(chan struct{})
	transport := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(written)
		chunk := make([]byte, 1<<10)
		for range size / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				t.Error(err)
			}
		}
	})
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-written:
		t.Error("the handler wrote everything although nobody reads")
	default:
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err != nil || n != size-10 {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestAuthenticator_KnowsOnlyLoopbackRequests(t *testing.T) {
	t.Parallel()
	authenticator := process.LoopbackAuthenticator()
	transport := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		response, ok, err := authenticator.AuthenticateRequest(r)
		if err != nil || !ok || response.User.GetName() != process.LoopbackUserName {
			t.Errorf("in process: %v, %v, %v", response, ok, err)
		}
	})
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if _, ok, _ := authenticator.AuthenticateRequest(newRequest(t.Context(), t, http.MethodGet, "/", "")); ok {
		t.Error("a request from elsewhere passes as the server's own")
	}
}

func TestTransport_PanicIsAnError(t *testing.T) {
	t.Parallel()
	transport := serve(t, func(http.ResponseWriter, *http.Request) { panic("no") })
	response, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusInternalServerError {
		t.Errorf("status is %d", response.StatusCode)
	}
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the body of a handler that panicked looks whole")
	}
}

func TestTransport_FailsBeforeServe(t *testing.T) {
	t.Parallel()
	transport := new(process.LoopbackTransport)
	if _, err := transport.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/", "")); err == nil {
		t.Error("a request before Serve succeeds")
	}
}

// TestConfig_AuthenticatesAsItsUser: the requests of a client are those of the user that it was
// made for, and those of other clients are the server's own. A request from the network is
// nobody's, whatever its headers say.
func TestConfig_AuthenticatesAsItsUser(t *testing.T) {
	t.Parallel()
	authenticate := process.LoopbackAuthenticator()
	transport := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if who, ok, err := authenticate.AuthenticateRequest(r); ok && err == nil {
			fmt.Fprint(w, who.User.GetName(), who.User.GetGroups())
		}
	})
	self := process.LoopbackConfig(transport)
	ann := process.LoopbackAs(self, transport, &user.DefaultInfo{Name: "ann", Groups: []string{"g"}})
	for config, want := range map[*rest.Config]string{self: "system:apiserver[system:masters system:authenticated]",
		ann: "ann[g]"} {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(newRequest(t.Context(), t, http.MethodGet, "/", ""))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("%s, %v; want %s", body, err, want)
		}
	}
	if _, ok, _ := authenticate.AuthenticateRequest(newRequest(t.Context(), t, http.MethodGet, "/", "")); ok {
		t.Error("a request that did not come over the transport is authenticated")
	}
}
