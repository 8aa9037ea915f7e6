package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"
)

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
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
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
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
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
