package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"byre/e2e/servers"
)

// The reference servers are processes of this program, started with one of these flags.
const (
	bareProxyFlag   = "bare-proxy"
	emptyServerFlag = "empty-server"
)

// bareProxy forwards requests over TLS and HTTP/2 and does nothing else. Every proxy in Go
// has at least its cost.
func bareProxy(to string) (http.Handler, error) {
	target, err := url.Parse(to)
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
		FlushInterval: -1,
	}, err
}

// emptyServer reads a request and answers with a fixed number of bytes, and sends an event to each
// watch for each PATCH. Every server in Go has at least its cost.
type emptyServer struct {
	body []byte
	mu   sync.Mutex
	// watches are the events to send, by watch.
	watches map[chan []byte]bool
}

func newEmptyServer(size string) (http.Handler, error) {
	n, err := strconv.Atoi(size)
	return &emptyServer{body: []byte(strings.Repeat("x", max(n, 0))), watches: make(map[chan []byte]bool)}, err
}

func (s *emptyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", jsonType)
	if r.URL.Query().Has("watch") {
		s.watch(w, r)
		return
	}
	if r.Method == http.MethodPatch {
		s.publish(body)
	}
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	// A client that has disconnected needs no answer.
	_, _ = w.Write(s.body)
}

// publish sends what a PATCH says to all watches, but to those whose clients don't read.
func (s *emptyServer) publish(patch []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for events := range s.watches {
		select {
		case events <- patch:
		default:
		}
	}
}

// watch sends events of the size of those that a real server sends in the wanted format.
func (s *emptyServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, 4*eventsPerSecond)
	s.mu.Lock()
	s.watches[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, events)
	}()
	isProtobuf := r.Header.Get("Accept") == protobufType
	event := bytes.Repeat([]byte("x"), jsonEventSize)
	event[len(event)-1] = '\n'
	if isProtobuf {
		event = event[:protobufEventSize]
		binary.BigEndian.PutUint32(event, protobufEventSize-4)
	}
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case patch := <-events:
			copy(event[4:len(event)-1], patch)
			if _, err := w.Write(event); err != nil {
				return
			}
			flusher.Flush()
		}
	}
}

// serveReference serves until in ends. It first writes its URL to out.
func serveReference(handler http.Handler, in io.Reader, out io.Writer) error {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	if _, err := fmt.Fprintln(out, server.URL); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// reference is a running reference server.
type reference struct {
	client *client
	cmd    *exec.Cmd
	in     io.Closer
}

func startReference(ctx context.Context, flag, argument string) (_ *reference, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &reference{cmd: exec.CommandContext(ctx, program, "-"+flag, argument)}
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	r.client, err = newClientOf(&rest.Config{
		Host: strings.TrimSpace(address), BearerToken: servers.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	return r, err
}

func (r *reference) stop() error { return errors.Join(r.in.Close(), r.cmd.Wait()) }

func (r *reference) pid() int { return r.cmd.Process.Pid }
