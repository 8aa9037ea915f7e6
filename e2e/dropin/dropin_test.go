package dropin_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/certs"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/controlplane"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/kubeconfig"
	kubeadmconfig "k8s.io/kubernetes/cmd/kubeadm/app/util/config"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Byre, programs.Kubectl))
}

// clusterConfiguration is a configuration of kubeadm; %[1]s is a directory, %[2]s the port.
// docs/envtest.md tells an operator to add the first of the two arguments.
const clusterConfiguration = `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.10, bindPort: %[2]s}
nodeRegistration: {name: node, criSocket: "unix:///run/containerd/containerd.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: ` + programs.KubernetesVersion + `
controlPlaneEndpoint: 127.0.0.1:%[2]s
certificatesDir: %[1]s/pki
apiServer:
  extraArgs:
  - {name: data-dir, value: "%[1]s/data"}
  - {name: runtime-config, value: api/v1}
`

// cluster is what "kubeadm init" creates before it starts kube-apiserver: certificates, and
// kubeconfigs of administrators.
type cluster struct {
	dir, port string
	config    *kubeadmapi.InitConfiguration
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{dir: t.TempDir(), port: port}
	c.config, err = kubeadmconfig.BytesToInitConfiguration(fmt.Appendf(nil, clusterConfiguration, c.dir, port), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := certs.CreatePKIAssets(c.config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"admin.conf", "super-admin.conf"} {
		if err := kubeconfig.CreateKubeConfigFile(name, c.dir, c.config); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// start starts byre under the name kube-apiserver.
func (c cluster) start(t *testing.T, args []string) *servers.Server {
	t.Helper()
	s, err := servers.InPlace{
		Dir: c.dir, Name: "kube-apiserver", Args: args, Kubeconfig: filepath.Join(c.dir, "super-admin.conf"),
	}.Start(t.Context())
	if err != nil {
		t.Fatalf("kube-apiserver %q: %v", args, err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("it ended with: %v", err)
		}
		s.Report(t)
	})
	return s
}

// kubectl runs kubectl as an administrator.
func (c cluster) kubectl(t *testing.T, conf string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Kubectl.Path(),
		append([]string{"--kubeconfig", filepath.Join(c.dir, conf)}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// tryCluster checks that nodes, credentials and objects work.
func (c cluster) tryCluster(t *testing.T) {
	t.Helper()
	if got := c.kubectl(t, "super-admin.conf", "get", "--raw", "/readyz"); got != "ok" {
		t.Errorf("/readyz: %s", got)
	}
	manifest := filepath.Join(c.dir, "node.yaml")
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: node}\n"
	if err := os.WriteFile(manifest, []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "super-admin.conf", "create", "-f", manifest)
	if got := c.kubectl(t, "super-admin.conf", "get", "nodes", "-o", "name"); got != "node/node\n" {
		t.Errorf("get nodes: %s", got)
	}
	c.kubectl(t, "super-admin.conf", "create", "serviceaccount", "robot")
	if got := c.kubectl(t, "super-admin.conf", "create", "token", "robot"); strings.Count(got, ".") != 2 {
		t.Errorf("create token: %s", got)
	}
}

func TestKubeadm_StaticPodStartsByre(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pod := controlplane.GetStaticPodSpecs(&c.config.ClusterConfiguration, &c.config.LocalAPIEndpoint,
		nil)["kube-apiserver"]
	container := pod.Spec.Containers[0]
	if container.Command[0] != "kube-apiserver" {
		t.Fatalf("the command is %q", container.Command)
	}
	s := c.start(t, container.Command[1:])
	for _, ignored := range []string{"--etcd-cafile", "--etcd-certfile", "--etcd-keyfile"} {
		if !strings.Contains(s.LogTail(), ignored) {
			t.Errorf("the log does not say that %s is ignored", ignored)
		}
	}
	c.tryCluster(t)
	// What the kubelet asks, without credentials.
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe, container.StartupProbe} {
		checkProbe(t, s.URL+probe.HTTPGet.Path)
	}
	// The next step of "kubeadm init": admin.conf gets its rights from super-admin.conf.
	local := &kubeadmapi.APIEndpoint{AdvertiseAddress: "127.0.0.1", BindPort: c.config.LocalAPIEndpoint.BindPort}
	if _, err := kubeconfig.EnsureAdminClusterRoleBinding(c.dir, local, nil); err != nil {
		t.Error(err)
	}
	c.kubectl(t, "admin.conf", "get", "nodes")
}

// checkProbe sends the requests of the kubelet's probes: without credentials, and without
// verifying the server's certificate.
func checkProbe(t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", url, res.Status)
	}
}

// localUp prints the command line that hack/local-up-cluster.sh starts kube-apiserver by, each
// argument ended by NUL. It runs the script's own assignments and its start_apiserver; what
// would start or wait for other programs does nothing.
const localUp = `
kube::util::find-binary() { :; }
eval "$(grep -E '^(export )?[A-Z_]+=' "$SCRIPT")"
eval "$(sed -n '/^function start_apiserver {/,/^}/p' "$SCRIPT")"
kube::util::write_client_kubeconfig() { :; }
chown() { :; }
cp() { :; }
run() { if [ "$1" = kube-apiserver ]; then shift 3; printf '%s\0' "$@" >&3; fi; }
DRY_RUN=1
ETCD_HOST=127.0.0.1
CONTROLPLANE_SUDO=
KUBECTL=true
GO_OUT=/unused
start_apiserver 3>&1 >/dev/null
wait
`

func (c cluster) localUpArgs(t *testing.T, etcdPort string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", localUp)
	cmd.Env = append(os.Environ(),
		"SCRIPT="+filepath.Join(storetest.ModuleDir(t, "k8s.io/kubernetes"), "hack", "local-up-cluster.sh"),
		"CERT_DIR="+filepath.Join(c.dir, "certs"), "TMP_DIR="+c.dir, "LOG_DIR="+c.dir, "REUSE_CERTS=true",
		"API_SECURE_PORT="+c.port, "ETCD_PORT="+etcdPort, "RUNTIME_CONFIG=api/v1", "ALLOW_PRIVILEGED=true",
		"SERVICE_ACCOUNT_LOOKUP=true", // the script's default, which it sets in another function
		"SERVICE_ACCOUNT_KEY="+filepath.Join(c.dir, "pki", "sa.key"),
		"CLUSTER_SIGNING_CERT_FILE="+filepath.Join(c.dir, "pki", "ca.crt"),
	)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(args) < 30 {
		t.Fatalf("hack/local-up-cluster.sh gives kube-apiserver %d arguments: %q", len(args), args)
	}
	return args
}

func TestLocalUpCluster_FlagsStartByre(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// The script's certificates, under its names, are those that kubeadm has made.
	if err := os.Mkdir(filepath.Join(c.dir, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for theirs, ours := range map[string]string{
		"client-ca.crt": "ca.crt", "request-header-ca.crt": "front-proxy-ca.crt",
		"client-kube-apiserver.crt":  "apiserver-kubelet-client.crt",
		"client-kube-apiserver.key":  "apiserver-kubelet-client.key",
		"serving-kube-apiserver.crt": "apiserver.crt", "serving-kube-apiserver.key": "apiserver.key",
		"client-auth-proxy.crt": "front-proxy-client.crt", "client-auth-proxy.key": "front-proxy-client.key",
	} {
		if err := os.Symlink(filepath.Join(c.dir, "pki", ours), filepath.Join(c.dir, "certs", theirs)); err != nil {
			t.Fatal(err)
		}
	}
	etcdPort, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(c.dir, "etcd-data")
	etcd, err := servers.InPlace{Dir: c.dir, Name: "etcd", Args: []string{
		"--advertise-client-urls", "http://127.0.0.1:" + etcdPort, "--data-dir", data,
		"--listen-client-urls", "http://127.0.0.1:" + etcdPort, "--log-level=warn",
	}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Kill)
	c.start(t, c.localUpArgs(t, etcdPort))
	c.tryCluster(t)
	if _, err := os.Stat(filepath.Join(data, "byre", "registry", "byre.db")); err != nil {
		t.Errorf("the objects are not beside etcd's: %v", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "super-admin.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Get(t.Context(), "node",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
