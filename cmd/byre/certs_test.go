package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	stdsql "database/sql"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
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
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	signertesting "k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin/testing/v1"

	"byre/apiserver/process/pki"
	"byre/apiserver/storage"
	"byre/migrations"
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
	storetest.Eventually(t, "new connections see the renewed certificate", func() bool {
		return servingSerial(t, before.Host).Cmp(oldServing) != 0
	})
	storetest.Eventually(t, "the aggregated server sees the renewed certificate", func() bool {
		return proxied().Cmp(oldProxy) != 0
	})
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
	storetest.Eventually(t, "the server logs the wrong pair", func() bool {
		return errorLine.MatchString(server.log.String())
	})
	if line := errorLine.FindString(server.log.String()); !strings.Contains(line, in("apiserver.crt")) ||
		!strings.Contains(line, "private key does not match") {
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
		_, _ = w.Write(
			[]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"proxied.example.com/v1","resources":[]}`))
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
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "proxied"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Services("default").Create(t.Context(), service,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	number := int32(port)
	aggregated := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.proxied.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "proxied.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "proxied", Port: &number},
		},
	}
	if _, err := clientset.NewForConfigOrDie(config).ApiregistrationV1().APIServices().Create(t.Context(), aggregated,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestCerts_StatusInEachFormat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{"status"}, {"renew", "all"}, {"renew", "apiserver"}} {
		wrong := filepath.Join(dir, "wrong")
		status, out, errOut := call(append([]string{"certs", args[0], "--data-dir", wrong}, args[1:]...)...)
		if status != 1 || out != "" || !strings.Contains(errOut, wrong) ||
			!strings.Contains(errOut, "name the directory of a server that has been started") {
			t.Errorf("%v of a wrong directory: status %d, %q, %q", args, status, out, errOut)
		}
		if _, err := os.Stat(wrong); !os.IsNotExist(err) {
			t.Errorf("%v has made the directory: %v", args, err)
		}
	}
	dir = sharedServer(t, "sqlite").dir
	// it renews none
	expectFailure(t, `there is no certificate "typo"`, "certs", "renew", "--data-dir", dir, "apiserver", "typo")
	status, out, _ := call("certs", "status", "--data-dir", dir)
	lines := strings.Split(out, "\n")
	if status != 0 || len(lines) != 10 || !strings.HasPrefix(lines[0], "CERTIFICATE") ||
		!strings.Contains(lines[2], "364d") || !strings.Contains(lines[2], ".cluster.local,localhost,") {
		t.Errorf("status %d\n%s", status, out)
	}
	if status, out, _ := call("certs", "status", "--data-dir", dir, "-o", "json"); status != 0 ||
		!strings.Contains(out, `"name": "front-proxy-client"`) {
		t.Errorf("in JSON: status %d\n%s", status, out)
	}
	if status, _, errOut := call("certs", "status", "-o", "xml"); status != 1 ||
		errOut != "byre: --output must be text, json or yaml, not \"xml\"\n" {
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
	status, out, errOut := call("kubeconfig", "--data-dir", dir, "--user=alice", "--group=developers", "--group=staff",
		"--duration=1h")
	if status != 0 || errOut != "" {
		t.Fatalf("status %d, %s", status, errOut)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	alice := kubernetes.NewForConfigOrDie(config)
	review, err := alice.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		new(authenticationv1.SelfSubjectReview), metav1.CreateOptions{})
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
	if err := alice.CoreV1().Pods(namespace).Delete(t.Context(), "p",
		metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what the role does not allow: %v", err)
	}
}

func TestKubeconfig_WarnsAndRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if status, _, errOut := call("kubeconfig", "--user=alice", "--data-dir", dir); status != 1 ||
		!strings.Contains(errOut, "name the directory of a server that has been started") {
		t.Errorf("without a CA: status %d, %q", status, errOut)
	}
	dir = sharedServer(t, "sqlite").dir
	if status, out, errOut := call("kubeconfig", "--data-dir", dir); status != 1 || out != "" ||
		errOut != "byre: --user must not be empty\n" {
		t.Errorf("without a user: status %d, %q, %q", status, out, errOut)
	}
	status, out, errOut := call("kubeconfig", "--user=root", "--group=system:masters", "--server=https://byre.example.com",
		"--data-dir", dir)
	if status != 0 || !strings.HasPrefix(errOut, "warning: the group system:masters may do everything") ||
		!strings.Contains(out, "server: https://byre.example.com\n") {
		t.Errorf("an administrator: status %d, %q", status, errOut)
	}
}

// otherAuthority creates a CA and a client certificate for a user in system:masters, and
// returns their files.
func otherAuthority(t *testing.T) pki.Files {
	t.Helper()
	files, _, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Hosts: []string{"127.0.0.1", "localhost"}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A server with a serving certificate, and clients, of another CA. Its own administrator is known too. Without
// --root-ca-file it warns.
func TestServe_FilesOfAnotherCA(t *testing.T) {
	t.Parallel()
	other := otherAuthority(t)
	dir := t.TempDir()
	server := command(t, dir, serveArgs(dir, "--client-ca-file", other.CACert,
		"--tls-cert-file", other.ServingCert, "--tls-private-key-file", other.ServingKey,
		"--tls-min-version=VersionTLS13")...)
	config := waitForConfig(t, server)
	config.CAFile, config.CAData = other.CACert, nil
	// At the first start RBAC forbids all until it has its roles.
	storetest.EventuallyDone(t, "an answer with the given certificate", func(ctx context.Context) (bool, error) {
		status, _, err := get(ctx, config, "/livez")
		return status == http.StatusOK, err
	})
	// The metric of certificates knows the given one, and those of byre.
	storetest.EventuallyDone(t, "metrics with the given certificate", func(ctx context.Context) (bool, error) {
		status, metrics, err := get(ctx, config, "/metrics")
		const metric = "byre_certificate_expiration_timestamp_seconds"
		return status == http.StatusOK && strings.Contains(metrics, metric+`{name="tls-cert-file"} `) &&
			strings.Contains(metrics, metric+`{name="ca"} `), err
	})
	if log := server.log.String(); !strings.Contains(log, "name the CA of the certificate with --root-ca-file") {
		t.Error("there is no warning that nothing verifies the certificate")
	}
	client := rest.AnonymousClientConfig(config)
	client.CertFile, client.KeyFile = other.KubeletClientCert, other.KubeletKey
	status, body, err := get(t.Context(), client, "/apis")
	if err != nil || status != http.StatusOK {
		t.Errorf("a user of the given CA gets %d %s, %v", status, body, err)
	}
	client.CertFile, client.KeyFile = other.FrontProxyCert, other.FrontProxyKey
	if status, _, err := get(t.Context(), client, "/apis"); err != nil || status != http.StatusUnauthorized &&
		status != http.StatusForbidden {
		t.Errorf("a user of a CA that was not given gets %d, %v", status, err)
	}
}

func TestServe_TokenAuthFile(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	for token, want := range map[string]int{sharedAdmin: http.StatusOK, sharedAlice: http.StatusForbidden,
		"wrong": http.StatusUnauthorized} {
		config := rest.AnonymousClientConfig(server.config(t))
		config.BearerToken = token
		status, body, err := get(t.Context(), config, "/api/v1/nodes")
		if err != nil || status != want {
			t.Errorf("token %s gets %d, want %d: %s, %v", token, status, want, strings.TrimSpace(body), err)
		}
	}
}

// TestServe_KubeletIsRestricted: with the default flags, a kubelet may register its Node
// and may not create a Pod with a service account.
func TestServe_KubeletIsRestricted(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := server.config(t)
	admin := kubernetes.NewForConfigOrDie(config)
	namespace, node := server.makeNamespace(t), "restricted"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerful"}}
	if _, err := admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node,
		Groups: []string{"system:nodes", "system:authenticated"}}
	kubelet := kubernetes.NewForConfigOrDie(config)
	if _, err := kubelet.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}); err != nil {
		t.Errorf("a kubelet registers its node: %v", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "made"},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "powerful",
			Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
	}
	if _, err := kubelet.CoreV1().Pods(namespace).Create(t.Context(), pod,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet creates a Pod with a service account: %v", err)
	}
}

// TestServe_KubeletClientMayUseKubelets: a kubelet that asks the server whether its client
// certificate may use it is answered with yes. The certificate gives no other rights.
func TestServe_KubeletClientMayUseKubelets(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := rest.AnonymousClientConfig(server.config(t))
	config.CertFile, config.KeyFile = filepath.Join(server.dir, "pki", "apiserver-kubelet-client.crt"),
		filepath.Join(server.dir, "pki", "apiserver-kubelet-client.key")
	reviews := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SelfSubjectAccessReviews()
	for _, test := range []struct {
		verb, resource, subresource string
		want                        bool
	}{
		{"create", "nodes", "proxy", true}, {"get", "nodes", "log", true}, {"get", "nodes", "stats", true},
		{"get", "secrets", "", false}, {"create", "pods", "", false},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: test.verb, Resource: test.resource,
				Subresource: test.subresource},
		}}
		review, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != test.want {
			t.Errorf("%s %s/%s: %+v, %v", test.verb, test.resource, test.subresource, review.Status, err)
		}
	}
}

// A server whose pki/ was lost reports it, and can continue with new keys.
func TestTrust_LostKeysAreReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startServer(t, dir).stop(t)
	if err := os.RemoveAll(filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	expectRefusedKeys(t, dir)
	startServer(t, dir, "--accept-new-keys").stop(t)
	startServer(t, dir)
}

// A replica with other keys does not join.
func TestTrust_ReplicaWithOtherKeysIsRefused(t *testing.T) {
	t.Parallel()
	expectRefusedKeys(t, t.TempDir(), "--endpoint", sharedServer(t, "postgres").endpoint)
}

// TestTrust_FollowsARotationByReloads: a CA is replaced in steps while the server runs, and then the server starts
// again.
func TestTrust_FollowsARotationByReloads(t *testing.T) {
	t.Parallel()
	newCA := func(name string) []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: ca.Raw})
	}
	before, after := newCA("before"), newCA("after")
	dir, file := t.TempDir(), writeFile(t, string(before))
	server := startServer(t, dir, "--client-ca-file", file, "--requestheader-client-ca-file", file,
		"--requestheader-allowed-names=front")
	if log := server.log.String(); !strings.Contains(log, "by --proxy-client-cert-file") {
		t.Errorf("no warning that the server's own front proxy is not trusted: %s", log)
	}
	database, err := stdsql.Open("sqlite", migrations.SQLiteDSN(filepath.Join(dir, "byre.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	expectPublished(t, server, string(before))
	for _, authorities := range [][]byte{slices.Concat(before, after), after} {
		count := strings.Count(string(authorities), "BEGIN")
		if err := os.WriteFile(file, authorities, 0o600); err != nil {
			t.Fatal(err)
		}
		storetest.EventuallyDone(t, "the keys are recorded", func(ctx context.Context) (bool, error) {
			var recorded int
			err := database.QueryRowContext(ctx,
				`SELECT json_array_length(value, '$.clientCAs') FROM objects WHERE resource = 'trusts' AND name = 'trust'`).Scan(
				&recorded)
			return recorded == count, err
		})
		expectPublished(t, server, string(after))
	}
	server.stop(t)
	startServer(t, dir, "--client-ca-file", file)
}

// expectPublished waits for the CA in what extension API servers read. Without a reload that is written once a minute.
func expectPublished(t *testing.T, server *serverProcess, ca string) {
	t.Helper()
	maps := kubernetes.NewForConfigOrDie(server.config(t)).CoreV1().ConfigMaps("kube-system")
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			published, err := maps.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
			return err == nil && strings.Contains(published.Data["client-ca-file"], ca) &&
				strings.Contains(published.Data["requestheader-client-ca-file"], ca), nil
		})
	if err != nil {
		t.Errorf("the CA is not published: %v", err)
	}
}

func expectRefusedKeys(t *testing.T, dir string, args ...string) {
	t.Helper()
	args = append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, args...)
	p := command(t, dir, args...)
	status := p.wait(t)
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	said := lines[len(lines)-1]
	if status != 1 ||
		!strings.HasPrefix(said,
			"byre: there is no "+filepath.Join(dir, "pki", "ca.crt")+", and the database was served with the key sha256:") ||
		!strings.Contains(said, filepath.Join(dir, "pki")) || !strings.Contains(said, "--accept-new-keys") {
		t.Errorf("status %d, %s", status, said)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "pki", "*")); len(made) > 0 {
		t.Errorf("a start that is refused has made %q", made)
	}
}

// A serving pair of another CA in pki/ is served and not replaced. With --root-ca-file
// admin.kubeconfig, Pods and "byre status" verify the server by it.
func TestOwnFiles_AServingPairOfAnotherCA(t *testing.T) {
	t.Parallel()
	other, dir := newAuthority(t, "byre.example.com"), t.TempDir()
	own := filepath.Join(dir, "pki")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	pair := map[string]string{other.ServingCert: "apiserver.crt", other.ServingKey: "apiserver.key"}
	for from, name := range pair {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		replaceFile(t, filepath.Join(own, name), string(data))
	}
	// The server is ready once admin.kubeconfig verifies it, though it is reached at 127.0.0.1.
	server := startServer(t, dir, "--root-ca-file", other.CACert)
	for from, name := range pair {
		expectSameFile(t, from, filepath.Join(own, name))
	}
	expectRootCA(t, server, other.CACert)
	if status, out, _ := call("certs", "status", "--data-dir", dir); status != 0 ||
		!externallyManaged(out, "apiserver ") || externallyManaged(out, "front-proxy-client ") {
		t.Errorf("certs status: %d\n%s", status, out)
	}
	if status, out, errOut := call("certs", "renew", "all", "--data-dir", dir); status != 0 ||
		!strings.Contains(out, "apiserver not renewed: it is externally managed\n") ||
		!strings.Contains(out, "front-proxy-client renewed\n") {
		t.Errorf("certs renew: %d, %q, %q", status, out, errOut)
	}
	if _, out, errOut := call("status", "--data-dir", dir); !strings.Contains(out, ", ready,") {
		t.Errorf("status: %q, %q", out, errOut)
	}
	if log := server.log.String(); !strings.Contains(log,
		`byre did not issue and does not renew" directory="`+own+`" files=["apiserver.crt"]`) {
		t.Error("the log does not say that the certificate is another's")
	}
}

func externallyManaged(table, name string) bool {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name) {
			return strings.Contains(line, "yes")
		}
	}
	return false
}

func expectSameFile(t *testing.T, one, other string) {
	t.Helper()
	a, err := os.ReadFile(one)
	b, otherErr := os.ReadFile(other)
	if err != nil || otherErr != nil || !bytes.Equal(a, b) {
		t.Errorf("%s has not the content of %s (%v, %v)", other, one, err, otherErr)
	}
}

func expectRootCA(t *testing.T, server *serverProcess, file string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(server.config(t))
	storetest.EventuallyDone(t, "the root CA is published", func(ctx context.Context) (bool, error) {
		published, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil && published.Data["ca.crt"] == string(want), err
	})
}

// A root CA that does not verify the certificate is refused before anything is written.
func TestOwnFiles_TheChainIsChecked(t *testing.T) {
	t.Parallel()
	other, dir := newAuthority(t, "127.0.0.1"), filepath.Join(t.TempDir(), "new")
	pair := []string{"--tls-cert-file", other.ServingCert, "--tls-private-key-file", other.ServingKey}
	wrong := newAuthority(t, "127.0.0.1")
	p := command(t, dir, serveArgs(dir, append(pair, "--root-ca-file", wrong.CACert)...)...)
	if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "byre: --root-ca-file: ") {
		t.Errorf("status %d, %s", status, p.log)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// A first start that fails leaves no keys in the database: a server with others may start.
func TestOwnFiles_AStartThatFailsRecordsNoKeys(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flags(t)
			if name == "sqlite" {
				flags = []string{"--endpoint", "sqlite://" + filepath.Join(t.TempDir(), "byre.db")}
			}
			file := filepath.Join(t.TempDir(), "policy.yaml")
			replaceFile(t, file, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
			first := t.TempDir()
			// The log can't be made, which is found after the database was opened.
			p := command(t, first,
				serveArgs(first, append(flags, "--audit-policy-file", file, "--audit-log-path", filepath.Join(file, "log"))...)...)
			if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "--audit-log-path") {
				t.Fatalf("status %d, %s", status, p.log)
			}
			startServer(t, t.TempDir(), flags...)
		})
	}
}

// A wrong encryption configuration is found before the database is made.
func TestOwnFiles_AWrongEncryptionConfigWritesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	p := command(t, dir, serveArgs(dir, "--encryption-provider-config=/nonexistent")...)
	if status := p.wait(t); status != 1 || !strings.Contains(p.log.String(), "--encryption-provider-config") {
		t.Errorf("status %d, %s", status, p.log)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

// What root's commands leave in the directory of another user belongs to that user.
func TestOwnFiles_OfRootBelongToTheOwnerOfTheDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const other = 65534
	dir := t.TempDir()
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, dir)
	succeed(t, "backup", "--data-dir", dir, filepath.Join(t.TempDir(), "backup.zst"))
	succeed(t, "certs", "renew", "all", "--data-dir", dir)
	expectOwners(t, dir, other)
	server.stop(t)
	backup, snapshot := filepath.Join(t.TempDir(), "backup.zst"), filepath.Join(t.TempDir(), "etcd.db")
	succeed(t, "backup", "--data-dir", dir, backup)
	succeed(t, "export", "etcd", snapshot, "--data-dir", dir)
	succeed(t, "restore", backup, "--data-dir", filepath.Join(dir, "new", "restored"))
	succeed(t, "import", "etcd", snapshot, "--data-dir", filepath.Join(dir, "imported"))
	expectOwners(t, dir, other)
}

func expectOwners(t *testing.T, dir string, want uint32) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		seen++
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != want || owner.Gid != want {
			t.Errorf("%s belongs to %d and group %d", path, owner.Uid, owner.Gid)
		}
		return nil
	})
	if err != nil || seen < 15 {
		t.Errorf("%d files, %v", seen, err)
	}
}

// An object that was stored with other feature gates has the defaults of the present ones, as
// on a stock server.
func TestEncoding_AFeatureGateThatIsTurnedOn(t *testing.T) {
	t.Parallel()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, flags := t.TempDir(), flags(t)
			server := startServer(t, dir, append(flags, "--feature-gates=MaxUnavailableStatefulSet=false")...)
			labels := map[string]string{"app": "set"}
			set := &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "set"},
				Spec: appsv1.StatefulSetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: labels},
						Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
					},
				},
			}
			client := kubernetes.NewForConfigOrDie(server.config(t))
			made, err := client.AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{})
			if err != nil || made.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable != nil {
				t.Fatalf("with the gate off: %+v, %v", made.Spec.UpdateStrategy, err)
			}
			if status := server.stop(t); status != 0 {
				t.Errorf("exit status after SIGTERM is %d", status)
			}
			server = startServer(t, dir, append(flags, "--feature-gates=MaxUnavailableStatefulSet=true")...)
			client = kubernetes.NewForConfigOrDie(server.config(t))
			got, err := client.AppsV1().StatefulSets("default").Get(t.Context(), "set", metav1.GetOptions{})
			if err != nil || got.UID != made.UID || got.ResourceVersion != made.ResourceVersion {
				t.Fatalf("after a restart it is %+v, %v; want %+v", got, err, made)
			}
			if most := got.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; most == nil || most.IntValue() != 1 {
				t.Errorf("with the gate on maxUnavailable is %v", most)
			}
		})
	}
}

// An allocatable that is there and empty is defaulted when it is read, as on a stock server.
func TestEncoding_AnEmptyAllocatable(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(sharedServer(t, "sqlite").config(t))
	body := []byte(
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"empty-allocatable"},"status":{"capacity":{"cpu":"4"},"allocatable":{}}}`)
	answer, err := client.CoreV1().RESTClient().Post().AbsPath("/api/v1/nodes").SetHeader("Content-Type",
		"application/json").Body(body).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(answer), `"allocatable":{"cpu":"4"}`) {
		t.Errorf("the answer of the create is %s, %v", answer, err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "empty-allocatable", metav1.GetOptions{})
	if err != nil || node.Status.Allocatable.Cpu().String() != "4" {
		t.Errorf("allocatable is %v, %v", node.Status.Allocatable, err)
	}
}

// The encoding of what is stored has the patch level of Kubernetes. The test of the package itself
// has no build information to take it from.
func TestEncoding_NamesThePatchLevel(t *testing.T) {
	t.Parallel()
	name := storage.Program(compatibility.DefaultBuildEffectiveVersion())
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+`).MatchString(name) {
		t.Errorf("the program is %s", name)
	}
}

// TestExternalSigner_SignsTokens: another process signs service account tokens. The server
// verifies them with that process's keys and limits their lifetime to what the process
// allows.
func TestExternalSigner_SignsTokens(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "signer") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // best effort, it is a temporary directory
	socket := filepath.Join(dir, "s")
	signer := signertesting.NewMockSigner(t, socket)
	t.Cleanup(signer.CleanUp)
	public, err := x509.MarshalPKIXPublicKey(&signer.SigningKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	signer.SetSupportedKeys(map[string]signertesting.KeyT{signer.SigningKeyID: {Key: public}})

	server := startServer(t, t.TempDir(), "--service-account-signing-endpoint", socket)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	awaitAccount(t, client, "default")
	hour := int64(3600)
	request, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var header struct{ Kid string }
	var claims struct{ Exp, Iat int64 }
	for i, into := range []any{&header, &claims} {
		part, err := base64.RawURLEncoding.DecodeString(strings.Split(request.Status.Token, ".")[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(part, into); err != nil {
			t.Fatal(err)
		}
	}
	if header.Kid != signer.SigningKeyID {
		t.Errorf("the token was signed by %q, not by the signer's %q", header.Kid, signer.SigningKeyID)
	}
	if life := claims.Exp - claims.Iat; life != signer.MaxTokenExpirationSeconds {
		t.Errorf("the token lives for %d s, the signer allows %d", life, signer.MaxTokenExpirationSeconds)
	}
	config := rest.AnonymousClientConfig(server.config(t))
	config.BearerToken = request.Status.Token
	if status, body, err := get(t.Context(), config, "/api"); err != nil || status != http.StatusOK {
		t.Errorf("the token is answered with %d %s, %v", status, body, err)
	}
	if status, body := server.mustGet(t, "/openid/v1/jwks"); status != http.StatusOK ||
		!strings.Contains(body, signer.SigningKeyID) {
		t.Errorf("the published keys: %d %s", status, body)
	}
}
