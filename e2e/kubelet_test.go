package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestKubelet_IsReachedThroughByre uses all that byre forwards to kubelets and Pods: logs,
// exec, attach, port-forward and the proxies.
func TestKubelet_IsReachedThroughByre(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startSingleNode(t, openDatabase(t, name))
			t.Run("logs", f.testLogs)
			t.Run("proxies", f.testProxies)
			t.Run("kubectl proxy", f.testKubectlProxy)
			// kubectl speaks WebSocket first, and SPDY where it is told to.
			for protocol, env := range map[string]string{"websocket": "true", "spdy": "false"} {
				env := []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + env, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + env}
				t.Run("exec by "+protocol, func(t *testing.T) { f.testExec(t, env) })
				t.Run("attach by "+protocol, func(t *testing.T) { f.testAttach(t, env) })
				t.Run("port-forward by "+protocol, func(t *testing.T) { f.testPortForward(t, env) })
			}
			t.Run("terminal", f.testTerminal)
			f.checkStreamsCounted(t)
		})
	}
}

func (f *singleNode) testLogs(t *testing.T) {
	if got := runKubectl(t, f.Server, "logs", "web-0"); got != "first\nsecond\n" {
		t.Errorf("logs: %q", got)
	}
	if got := runKubectl(t, f.Server, "logs", "web-0", "-c", "c", "--tail=1", "--timestamps"); !strings.HasSuffix(got,
		"Z second\n") || strings.Contains(got, "first") {
		t.Errorf("the last line: %q", got)
	}
	lines := followKubectl(t, f.command(t, nil, "logs", "web-0", "--follow", "--tail=1"))
	expectLine(t, lines, "^second$")
	for _, line := range []string{"third", "fourth"} {
		f.say(t, line)
		expectLine(t, lines, "^"+line+"$")
	}
}

// testExec sends input to a command and gets it back. The command goes on until the test has
// all of its output: what it did not read, when it ends, makes the kubelet's end of the
// connection be reset, and then upstream's proxy drops the output that is on its way.
func (f *singleNode) testExec(t *testing.T, env []string) {
	// kwok neither ends a command's input when the client's ends, nor tells which
	// exit status it had other than 0.
	cmd := f.command(t, env, "exec", "-i", "web-0", "--", "sh", "-c",
		"head -c 200000; echo whisper >&2; read line; exit 1")
	sent := strings.Repeat("abc\n", 50_000)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(stdin, sent)
		written <- err
	}()
	out := make([]byte, len(sent))
	if n, err := io.ReadFull(stdout, out); err != nil || string(out) != sent {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	complaints := bufio.NewReader(stderr)
	if line, err := complaints.ReadString('\n'); line != "whisper\n" {
		t.Errorf("standard error: %q, %v", line, err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(stdin, "line\n"); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(stdout); len(rest) > 0 || err != nil {
		t.Errorf("%q came back after what was sent, %v", rest, err)
	}
	if _, err := io.Copy(io.Discard, complaints); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // the exit status is looked at
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status %d", code)
	}
}

func (f *singleNode) testAttach(t *testing.T, env []string) {
	lines := followKubectl(t, f.command(t, env, "attach", "web-0"))
	// Nothing says when kubectl is attached, and lines written before are not shown.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(storetest.Patience)
	for {
		select {
		case line, open := <-lines:
			if line != "hear me" {
				t.Errorf("attached to %q, %v", line, open)
			}
			return
		case <-tick.C:
			f.say(t, "hear me")
		case <-timeout:
			t.Fatal("kubectl attach printed nothing")
		}
	}
}

func (f *singleNode) testPortForward(t *testing.T, env []string) {
	lines := followKubectl(t, f.command(t, env, "port-forward", "web-0", ":80", "--address", "127.0.0.1"))
	match := expectLine(t, lines, `^Forwarding from (127\.0\.0\.1:\d+) -> 80`)
	for i := range 3 {
		path := fmt.Sprintf("/%d?a=b", i)
		if code, body := ask(t, http.MethodPost, "http://"+match[1]+path,
			strings.Repeat("x", 100_000)); code != http.StatusOK || body != "POST "+path+" "+strings.Repeat("x", 100_000) {
			t.Errorf("%s: %d, %d bytes", path, code, len(body))
		}
	}
}

// ask sends a request over a new connection, so that kubectl forwards each request by a
// stream of its own.
func ask(t *testing.T, method, address, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (f *singleNode) testProxies(t *testing.T) {
	port := runKubectl(t, f.Server, "get", "node", "node-1", "-o",
		"jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}")
	for path, want := range map[string]string{
		"/api/v1/nodes/node-1/proxy/healthz":                                    "ok",
		"/api/v1/nodes/https:node-1:" + port + "/proxy/healthz":                 "ok",
		"/api/v1/nodes/http:node-1:" + f.port + "/proxy/a?b=c":                  "GET /a?b=c ",
		"/api/v1/namespaces/default/pods/web-0/proxy/a/b?c=d":                   "GET /a/b?c=d ",
		"/api/v1/namespaces/default/pods/http:web-0:" + f.port + "/proxy/":      "GET / ",
		"/api/v1/namespaces/default/pods/https:web-0:" + port + "/proxy/readyz": "ok",
		"/api/v1/namespaces/default/services/web:http/proxy/a":                  "GET /a ",
		"/api/v1/namespaces/default/services/http:web:80/proxy/a%20b?c=%2F":     "GET /a%20b?c=%2F ",
	} {
		if got := runKubectl(t, f.Server, "get", "--raw", path); got != want {
			t.Errorf("%s answers %q", path, got)
		}
	}
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte(`{"a":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runKubectl(t, f.Server, "create", "--raw", "/api/v1/namespaces/default/services/web:80/proxy/made", "-f",
		body); !strings.HasPrefix(got, `POST /made {"a":1}`) {
		t.Errorf("a POST answers %q", got)
	}
}

// testKubectlProxy sends requests through "kubectl proxy", with several filters.
func (f *singleNode) testKubectlProxy(t *testing.T) {
	const pods, services = "/api/v1/namespaces/default/pods/", "/api/v1/namespaces/default/services/"
	type request struct {
		method, path string
		code         int
		want         string
	}
	for name, test := range map[string]struct {
		flags    []string
		requests []request
	}{
		"as it is": {nil, []request{
			{http.MethodGet, pods + "web-0/proxy/a?b=c", http.StatusOK, "GET /a?b=c "},
			{http.MethodPost, services + "web:http/proxy/a", http.StatusOK, "POST /a "},
			{http.MethodGet, "/api/v1/nodes/node-1/proxy/healthz", http.StatusOK, "ok"},
			{http.MethodGet, pods + "web-0/log?limitBytes=5", http.StatusOK, "first"},
			// Its own default: whoever reaches the proxy should not run commands.
			{http.MethodPost, pods + "web-0/exec?command=id&stdout=true", http.StatusForbidden, "Forbidden"},
			{http.MethodGet, pods + "web-0/attach", http.StatusForbidden, "Forbidden"},
		}},
		"some methods": {[]string{"--reject-methods=POST,PUT,PATCH,DELETE"}, []request{
			{http.MethodGet, pods + "web-0", http.StatusOK, `"name":"web-0"`},
			{http.MethodPost, services + "web:http/proxy/a", http.StatusForbidden, "Forbidden"},
			{http.MethodDelete, pods + "web-0", http.StatusForbidden, "Forbidden"},
		}},
		"some paths": {[]string{"--accept-paths=^/api/v1/namespaces/default/services",
			"--reject-paths=^/api/.*/proxy/secret"}, []request{
			{http.MethodGet, services + "web", http.StatusOK, `"name":"web"`},
			{http.MethodGet, services + "web:http/proxy/open", http.StatusOK, "GET /open "},
			{http.MethodGet, services + "web:http/proxy/secret", http.StatusForbidden, "Forbidden"},
			{http.MethodGet, pods + "web-0/proxy/a", http.StatusForbidden, "Forbidden"},
			{http.MethodGet, "/version", http.StatusForbidden, "Forbidden"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lines := followKubectl(t, f.command(t, nil, append([]string{"proxy", "--port", "0"}, test.flags...)...))
			match := expectLine(t, lines, `^Starting to serve on (127\.0\.0\.1:\d+)`)
			for _, r := range test.requests {
				if code, body := ask(t, r.method, "http://"+match[1]+r.path, ""); code != r.code ||
					!strings.Contains(body, r.want) {
					t.Errorf("%s %s: %d %s", r.method, r.path, code, body)
				}
			}
		})
	}
}

// untilResized prints the size of its terminal when that is the wanted one, or
// after two minutes.
const untilResized = `n=0
while [ "$(stty size)" != "33 77" ] && [ $n -lt 1200 ]; do sleep 0.1; n=$((n+1)); done
stty size; read line`

// testTerminal runs a command on a terminal and changes the terminal's size.
func (f *singleNode) testTerminal(t *testing.T) {
	config := f.Config(servers.AdminToken)
	request := client(t,
		f.Server).CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("web-0").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Command: []string{"sh", "-c", untilResized}, Stdin: true, Stdout: true, TTY: true,
		}, scheme.ParameterCodec)
	websocket := func(at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
	}
	spdy := func(at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
	}
	for protocol, connect := range map[string]func(*url.URL) (remotecommand.Executor, error){"websocket": websocket, "spdy": spdy} {
		executor, err := connect(request.URL())
		if err != nil {
			t.Fatal(err)
		}
		input, typed := io.Pipe()
		shown, output := io.Pipe()
		size := &resize{sent: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			ended <- executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin: input, Stdout: output, Tty: true, TerminalSizeQueue: size,
			})
			output.Close()
		}()
		lines := bufio.NewScanner(shown)
		write := func(line string) {
			if _, err := io.WriteString(typed, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		<-size.sent
		if !lines.Scan() || lines.Text() != "33 77" {
			t.Errorf("%s: the size is %q", protocol, lines.Text())
		}
		write("end")
		for lines.Scan() {
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// resize is a terminal that is resized once.
type resize struct {
	asked int
	sent  chan struct{}
}

func (r *resize) Next() *remotecommand.TerminalSize {
	r.asked++
	if r.asked == 1 {
		return &remotecommand.TerminalSize{Width: 77, Height: 33}
	}
	close(r.sent) // it asks for the next one after the first was sent
	return nil
}

// checkStreamsCounted checks that the metrics count the streams by WebSocket: the command
// on a terminal and the forwarded port, both of which ended without an error.
func (f *singleNode) checkStreamsCounted(t *testing.T) {
	t.Helper()
	storetest.EventuallySucceeds(t, "the streams that ended are counted", func() error {
		metrics := runKubectl(t, f.Server, "get", "--raw", "/metrics")
		for _, want := range []string{
			`apiserver_stream_translator_requests_total{code="200"} 1`,
			`apiserver_stream_tunnel_requests_total{code="101"} 1`,
		} {
			if !strings.Contains(metrics, want+"\n") {
				return errors.New("no " + want)
			}
		}
		return nil
	})
}
