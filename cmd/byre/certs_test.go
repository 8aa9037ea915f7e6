package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"byre/sqlstore/storetest"
)

// TestCerts_RenewUnderARunningServer: without a restart, new connections get the new
// serving certificate and aggregated servers see the new client certificate of the front
// proxy. The administrator's old certificate stays valid beside the new one.
func TestCerts_RenewUnderARunningServer(t *testing.T) {
	t.Parallel()
	backend := newProxiedServer(t)
	dir := t.TempDir()
	server := startServer(t, dir, "--controllers=")
	t.Run("metric", func(t *testing.T) { testCertificateExpiryOfEachRequest(t, server) })
	before := server.config(t)
	backend.register(t, before)
	proxied := func() *big.Int {
		if status, body := server.mustGet(t, "/apis/proxied.example.com/v1/things"); status != http.StatusOK {
			t.Logf("the aggregated server answers %d %s", status, body)
		}
		return backend.clientSerial()
	}
	storetest.Eventually(t, "the aggregated server is reached", func() bool { return proxied() != nil })
	oldServing, oldProxy := servingSerial(t, before.Host), proxied()

	status, out, errOut := call("certs", "renew", "all", "--data-dir", dir)
	if want := "admin.kubeconfig renewed\napiserver renewed\napiserver-kubelet-client renewed\nfront-proxy-client renewed\n"; status != 0 || out != want {
		t.Fatalf("renew: status %d, %q, %s", status, out, errOut)
	}
	storetest.Eventually(t, "new connections see the renewed certificate", func() bool { return servingSerial(t, before.Host).Cmp(oldServing) != 0 })
	storetest.Eventually(t, "the aggregated server sees the renewed certificate", func() bool { return proxied().Cmp(oldProxy) != 0 })
	for _, line := range errorLine.FindAllString(server.log.String(), -1) {
		t.Errorf("the renewal is an error to the server: %s", line)
	}
	for name, config := range map[string]*kubernetes.Clientset{
		"old": kubernetes.NewForConfigOrDie(before), "new": kubernetes.NewForConfigOrDie(server.config(t)),
	} {
		if _, err := config.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("with the administrator's %s certificate: %v", name, err)
		}
	}
	t.Run("of another key", func(t *testing.T) { testCertificateOfAnotherKey(t, server) })
}

// errorLine matches a line of a log at the level ERROR.
var errorLine = regexp.MustCompile(`(?m)^E[0-9]{4} .*$`)

// testCertificateOfAnotherKey: a certificate whose key does not follow is an error, once, and
// the pair of before is in use.
func testCertificateOfAnotherKey(t *testing.T, server *serverProcess) {
	old := servingSerial(t, server.config(t).Host)
	in := func(name string) string { return filepath.Join(server.dir, "pki", name) }
	other, err := os.ReadFile(in("front-proxy-client.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("apiserver.key"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the server logs the wrong pair", func() bool { return errorLine.MatchString(server.log.String()) })
	if line := errorLine.FindString(server.log.String()); !strings.Contains(line, in("apiserver.crt")) || !strings.Contains(line, "private key does not match") {
		t.Error(line)
	}
	if got := servingSerial(t, server.config(t).Host); got.Cmp(old) != 0 {
		t.Error("another certificate is served")
	}
}

// testCertificateExpiryOfEachRequest: 51 requests with a client certificate are 51
// observations, as on a stock server.
func testCertificateExpiryOfEachRequest(t *testing.T, server *serverProcess) {
	count := func() int {
		_, metrics := server.mustGet(t, "/metrics")
		for line := range strings.Lines(metrics) {
			if number, ok := strings.CutPrefix(line, "apiserver_client_certificate_expiration_seconds_count "); ok {
				var n int
				if _, err := fmt.Sscan(number, &n); err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatal("there is no such metric")
		return 0
	}
	before := count()
	for range 50 {
		if status, _ := server.mustGet(t, "/version"); status != http.StatusOK {
			t.Fatal(status)
		}
	}
	if n := count() - before; n != 51 { // with the one for the metrics
		t.Errorf("51 requests are %d observations", n)
	}
}

// servingSerial returns the serial number of the certificate that a new connection sees.
func servingSerial(t *testing.T, address string) *big.Int {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber
}

// proxiedServer is an aggregated API server that records the client certificate of each
// request.
type proxiedServer struct {
	*httptest.Server
	mu     sync.Mutex
	serial *big.Int
}

func newProxiedServer(t *testing.T) *proxiedServer {
	s := new(proxiedServer)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if strings.HasPrefix(r.URL.Path, "/apis/proxied.example.com/v1/things") && len(r.TLS.PeerCertificates) > 0 {
			s.serial = r.TLS.PeerCertificates[0].SerialNumber
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"proxied.example.com/v1","resources":[]}`))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *proxiedServer) clientSerial() *big.Int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serial
}

// register registers the server for an APIService. Its Service has an external name,
// because endpoints cannot have loopback addresses.
func (s *proxiedServer) register(t *testing.T, config *rest.Config) {
	t.Helper()
	address, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "proxied"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	number := int32(port)
	aggregated := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.proxied.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "proxied.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "proxied", Port: &number},
		},
	}
	if _, err := clientset.NewForConfigOrDie(config).ApiregistrationV1().APIServices().Create(t.Context(), aggregated, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestCerts_StatusInEachFormat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{"status"}, {"renew", "all"}, {"renew", "apiserver"}} {
		wrong := filepath.Join(dir, "wrong")
		status, out, errOut := call(append([]string{"certs", args[0], "--data-dir", wrong}, args[1:]...)...)
		if status != 1 || out != "" || !strings.Contains(errOut, wrong) || !strings.Contains(errOut, "name the directory of a server that has been started") {
			t.Errorf("%v of a wrong directory: status %d, %q, %q", args, status, out, errOut)
		}
		if _, err := os.Stat(wrong); !os.IsNotExist(err) {
			t.Errorf("%v has made the directory: %v", args, err)
		}
	}
	dir = sharedServer(t, "sqlite").dir
	expectFailure(t, `there is no certificate "typo"`, "certs", "renew", "--data-dir", dir, "apiserver", "typo") // it renews none
	status, out, _ := call("certs", "status", "--data-dir", dir)
	lines := strings.Split(out, "\n")
	if status != 0 || len(lines) != 10 || !strings.HasPrefix(lines[0], "CERTIFICATE") || !strings.Contains(lines[2], "364d") || !strings.Contains(lines[2], "localhost,kubernetes,") {
		t.Errorf("status %d\n%s", status, out)
	}
	if status, out, _ := call("certs", "status", "--data-dir", dir, "-o", "json"); status != 0 || !strings.Contains(out, `"name": "front-proxy-client"`) {
		t.Errorf("in JSON: status %d\n%s", status, out)
	}
	if status, _, errOut := call("certs", "status", "-o", "xml"); status != 1 || errOut != "byre: --output must be text, json or yaml, not \"xml\"\n" {
		t.Errorf("in XML: status %d, %q", status, errOut)
	}
}

// TestKubeconfig_IsAUserOfRBAC: the printed kubeconfig authenticates its user, who has no
// rights until a RoleBinding grants some to the group.
func TestKubeconfig_IsAUserOfRBAC(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	dir, namespace := server.dir, server.makeNamespace(t)
	admin := kubernetes.NewForConfigOrDie(server.config(t))
	status, out, errOut := call("kubeconfig", "--data-dir", dir, "--user=alice", "--group=developers", "--group=staff", "--duration=1h")
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %s", status, errOut)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	alice := kubernetes.NewForConfigOrDie(config)
	review, err := alice.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), new(authenticationv1.SelfSubjectReview), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := review.Status.UserInfo
	slices.Sort(user.Groups) // the groups of a certificate have no order
	if user.Username != "alice" || strings.Join(user.Groups, ",") != "developers,staff,system:authenticated" {
		t.Errorf("the user is %+v", user)
	}
	if _, err := alice.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("before there is a binding: %v", err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "developers"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "developers"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the binding counts", func(ctx context.Context) (bool, error) {
		_, err := alice.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil, err
	})
	if err := alice.CoreV1().Pods(namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what the role does not allow: %v", err)
	}
}

func TestKubeconfig_WarnsAndRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if status, _, errOut := call("kubeconfig", "--user=alice", "--data-dir", dir); status != 1 || !strings.Contains(errOut, "name the directory of a server that has been started") {
		t.Errorf("without a CA: status %d, %q", status, errOut)
	}
	dir = sharedServer(t, "sqlite").dir
	if status, out, errOut := call("kubeconfig", "--data-dir", dir); status != 1 || out != "" || errOut != "byre: --user must not be empty\n" {
		t.Errorf("without a user: status %d, %q, %q", status, out, errOut)
	}
	status, out, errOut := call("kubeconfig", "--user=root", "--group=system:masters", "--server=https://byre.example.com", "--data-dir", dir)
	if status != 0 || !strings.HasPrefix(errOut, "warning: the group system:masters may do everything") || !strings.Contains(out, "server: https://byre.example.com\n") {
		t.Errorf("an administrator: status %d, %q", status, errOut)
	}
}
