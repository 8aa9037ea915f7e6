package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"byre/apiserver/process/pki"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// singleNode is byre with one node of kwok's, on which one Pod runs.
type singleNode struct {
	*servers.Server
	// log is the file that the kubelet takes for the log of every container.
	log string
	// address is the node's, and the Pod's: it has the host's network.
	address string
	// port is that of a web server on the node, which the Pod has.
	port string
}

func startSingleNode(t *testing.T, db database) *singleNode {
	t.Helper()
	dir := t.TempDir()
	address, err := servers.MachineAddress()
	if err != nil {
		t.Fatal(err)
	}
	f := &singleNode{log: filepath.Join(dir, "log"), address: address}
	f.say(t, "first", "second")
	f.port = serveHello(t, f.address)

	kubelet, _, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), Hosts: []string{f.address}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	f.Server = startByre(t, db, "--kubelet-certificate-authority", kubelet.CACert)
	config, err := os.ReadFile(filepath.Join("testdata", "kwok.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(dir, "kwok.yaml")
	text := strings.NewReplacer("DIR", dir, "PORT", serveHello(t, "127.0.0.1")).Replace(string(config))
	if err := os.WriteFile(written, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kwok, err := servers.Kwok{
		Dir: dir, Kubeconfig: f.Kubeconfig, Config: written, Address: f.address,
		CertFile: kubelet.ServingCert, KeyFile: kubelet.ServingKey,
	}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kwok.Kill()
		kwok.Report(t)
	})
	f.populate(t)
	return f
}

// serveHello serves until the test ends, on a port that it returns.
func serveHello(t *testing.T, address string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_, _ = fmt.Fprintf(w, "%s %s %s", req.Method, req.URL, body) // the client may be gone
		}),
	}}
	server.Start()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// populate makes the node, the Pod and a Service before it, and waits for kwok.
func (f *singleNode) populate(t *testing.T) {
	t.Helper()
	c := client(t, f.Server)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
		Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}}}
	if _, err := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	port := intstr.Parse(f.port).IntVal
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}, Spec: corev1.PodSpec{
		NodeName: "node-1", HostNetwork: true, AutomountServiceAccountToken: &no,
		Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: port}}}},
	}}
	storetest.EventuallySucceeds(t, "the default service account", func() error {
		_, err := c.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(port)}},
	}}
	if _, err := c.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: f.address,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0"}}},
		Ports: []corev1.EndpointPort{{Name: "http", Port: port}},
	}}}
	if _, err := c.CoreV1().Endpoints("default").Create(t.Context(), endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runKubectl(t, f.Server, "wait", "--for=condition=Ready", "node/node-1", "pod/web-0", "--timeout=300s")
}

// say appends to the log, in the form in which container runtimes write it.
func (f *singleNode) say(t *testing.T, lines ...string) {
	t.Helper()
	file, err := os.OpenFile(f.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, line := range lines {
		if _, err := fmt.Fprintf(file, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), line); err != nil {
			t.Fatal(err)
		}
	}
}

// command returns a kubectl with additional environment variables.
func (f *singleNode) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := kubectlCommand(t, f.Server, args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}
