package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// cluster is byre with a control plane and nodes.
type cluster struct {
	// replicas are byre's processes. server is the one address of all of them.
	replicas []*replica
	server   *servers.Server
	client   kubernetes.Interface
	// components are the programs that are clients of the server. None of them may exit.
	components map[string]*servers.Process
	// lost keeps the node lostNode; killing it ends that node's heartbeats.
	lost *servers.Process
}

// replica is a process of byre, which keeps its port and its files when it is started
// again.
type replica struct {
	config servers.Byre
	server *servers.Server
}

// The nodes. The generic ones take any Pod; a tainted one takes Pods that tolerate its
// name.
const (
	genericNodes = 4
	smallNode    = "small" // of one processor
	lostNode     = "lost"  // whose heartbeats stop
	nodeLabel    = "for"
)

// TestControlPlane_RunsACluster runs the scenarios on each kind of database.
func TestControlPlane_RunsACluster(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name      string
		replicas  int
		openStore func(*testing.T) string
	}{
		{"SQLite", 1, func(*testing.T) string { return "" }},
		{"two replicas on PostgreSQL", 2, func(t *testing.T) string { return pgtest.DSN(t) }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, kind.openStore(t), kind.replicas)
			t.Run("scenarios", func(t *testing.T) {
				for _, scenario := range scenarios {
					t.Run(scenario.name, func(t *testing.T) {
						t.Parallel()
						scenario.run(t, c)
					})
				}
			})
			t.Run("killed servers", func(t *testing.T) { testKilledServers(t, c) })
			for name, p := range c.components {
				select {
				case <-p.Done():
					t.Errorf("%s ended; its log ends with:\n%s", name, p.LogTail())
				default:
				}
			}
		})
	}
}

func startCluster(t *testing.T, endpoint string, replicas int) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{components: map[string]*servers.Process{}}
	c.startReplicas(t, dir, endpoint, replicas)
	c.startComponents(t, dir)
	for i := range genericNodes {
		c.createNode(t, fmt.Sprintf("node-%d", i), "fake", "64", false)
	}
	c.createNode(t, smallNode, "fake", "1", true)
	c.createNode(t, lostNode, lostNode, "64", true)
	storetest.EventuallySucceeds(t, "the nodes are ready", func() error {
		nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes.Items {
			if !isReady(&node) || hasTaint(&node, corev1.TaintNodeNotReady) {
				return fmt.Errorf("%s is not ready", node.Name)
			}
		}
		return nil
	})
	return c
}

// startReplicas starts byre, on ports that it keeps, behind one address.
func (c *cluster) startReplicas(t *testing.T, dir, endpoint string, n int) {
	t.Helper()
	var addresses []string
	for i := range n {
		r := &replica{config: servers.Byre{Dir: filepath.Join(dir, fmt.Sprintf("byre-%d", i)), Endpoint: endpoint}}
		if *inProcess {
			r.config.Args = []string{"--with-scheduler", "--with-controller-manager"}
		}
		if i > 0 { // replicas share their keys
			from := filepath.Join(c.replicas[0].config.Dir, "pki")
			if err := os.CopyFS(filepath.Join(r.config.Dir, "pki"), os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
		}
		c.replicas = append(c.replicas, r)
		r.start(t)
		r.config.Port = r.server.URL[strings.LastIndex(r.server.URL, ":")+1:]
		addresses = append(addresses, strings.TrimPrefix(r.server.URL, "https://"))
		t.Cleanup(func() {
			if err := r.server.Stop(); err != nil {
				t.Errorf("byre ended with: %v", err)
			}
			r.server.Report(t)
		})
	}
	balancer, err := servers.StartBalancer(t.Context(), addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = balancer.Close() }) // the listener has nothing to lose
	first := *c.replicas[0].server
	first.Process, first.URL, first.Kubeconfig = nil, balancer.URL(), filepath.Join(dir, "kubeconfig")
	if err := first.WriteKubeconfig(first.Kubeconfig, servers.AdminToken, "default"); err != nil {
		t.Fatal(err)
	}
	c.server = &first
	if c.client, err = kubernetes.NewForConfig(first.Config(servers.AdminToken)); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) start(t *testing.T) {
	t.Helper()
	var err error
	if r.server, err = r.config.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// election are flags that lengthen the leaders' Leases: with the defaults a leader that
// cannot renew its Lease for ten seconds exits, which happens on a loaded machine.
var election = []string{"--leader-elect-lease-duration=90s", "--leader-elect-renew-deadline=80s",
	"--leader-elect-retry-period=1s"}

func (c *cluster) startComponents(t *testing.T, dir string) {
	t.Helper()
	keep := func(p *servers.Process, err error) *servers.Process {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			p.Report(t)
		})
		return p
	}
	start := func(name string, p *servers.Process, err error) { c.components[name] = keep(p, err) }
	if !*inProcess {
		pki := filepath.Join(filepath.Dir(c.server.CAFile), "ca.")
		manager, err := servers.ControllerManager{Dir: dir, Server: c.server, Args: append([]string{
			"--cluster-signing-cert-file", pki + "crt", "--cluster-signing-key-file", pki + "key",
			"--node-monitor-grace-period=30s", "--horizontal-pod-autoscaler-sync-period=1s",
		}, election...)}.Start(t.Context())
		start("kube-controller-manager", manager, err)
		scheduler, err := servers.Scheduler{Dir: dir, Server: c.server, Args: election}.Start(t.Context())
		start("kube-scheduler", scheduler, err)
	}
	kwok, err := servers.Kwok{Dir: dir, Kubeconfig: c.server.Kubeconfig, Address: "127.0.0.1"}.Start(t.Context())
	start("kwok", kwok, err)
	lost, err := servers.Kwok{Dir: filepath.Join(dir, lostNode), Nodes: lostNode, Kubeconfig: c.server.Kubeconfig,
		Address: "127.0.0.1"}.Start(t.Context())
	c.lost = keep(lost, err)
}

func (c *cluster) createNode(t *testing.T, name, kept, processors string, isTainted bool) {
	t.Helper()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(processors), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("1000"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{servers.KwokAnnotation: kept},
			Labels: map[string]string{nodeLabel: name, corev1.LabelHostname: name},
		},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if isTainted {
		node.Spec.Taints = []corev1.Taint{{Key: nodeLabel, Value: name, Effect: corev1.TaintEffectNoSchedule}}
	}
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// namespace makes a namespace for one scenario.
func (c *cluster) namespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallySucceeds(t, "the default service account", func() error {
		_, err := c.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// kubectl runs kubectl, which must succeed, and returns what it prints.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--kubeconfig", c.server.Kubeconfig, "--cache-dir", filepath.Join(t.TempDir(), "cache")},
		args...)
	cmd := exec.CommandContext(t.Context(), kubectlPath, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasTaint(node *corev1.Node, key string) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key {
			return true
		}
	}
	return false
}
