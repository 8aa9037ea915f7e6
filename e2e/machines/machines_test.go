package machines

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/process/pki"
	"byre/e2e/namespaces"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// machine is one of the two. Its supervisor starts byre again, as systemd does.
type machine struct {
	name, address, dir string
	supervisor         *exec.Cmd
	log                string
}

// cluster is both machines, with what their clients need.
type cluster struct {
	first, second *machine
	keys          string
	kubeconfig    string
}

// keepalivedConfig is that of docs/operations/two-machines.md.
func keepalivedConfig(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(programs.Root(), "docs", "operations", "two-machines.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^ *```\n( *global_defs.*?)^ *```$").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no configuration of keepalived")
	}
	return strings.NewReplacer("192.0.2.100", movingAddress).Replace(string(block[1]))
}

// serveBucket serves a bucket at the clients' address, and returns the variables by which byre finds it.
func serveBucket(t *testing.T) []string {
	t.Helper()
	files, _, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Hosts: []string{clientAddress}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(clientAddress, "9000"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: storetest.NewS3(t, "copies"), ReadHeaderTimeout: time.Minute}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.ServeTLS(listener, files.ServingCert, files.ServingKey) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return []string{
		"SSL_CERT_FILE=" + files.CACert, "AWS_ENDPOINT_URL=https://" + net.JoinHostPort(clientAddress, "9000"),
		"AWS_REGION=" + storetest.S3Region,
		"AWS_ACCESS_KEY_ID=" + storetest.S3AccessKey, "AWS_SECRET_ACCESS_KEY=" + storetest.S3SecretKey,
	}
}

// start starts a program on a machine.
func (m *machine) start(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", m.name}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	log, err := os.OpenFile(m.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd
}

// startCluster starts byre and keepalived on both machines.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{keys: t.TempDir()}
	c.first = &machine{name: "first", address: firstAddress, dir: t.TempDir()}
	c.second = &machine{name: "second", address: secondAddress, dir: t.TempDir()}
	bucket, config, tools := serveBucket(t), keepalivedConfig(t), os.Getenv(wanted)
	for _, m := range []*machine{c.first, c.second} {
		m.log = filepath.Join(m.dir, "log")
		m.supervisor = m.start(t, bucket, "bash", "-c", `until "$@"; do sleep 1; done`, "supervisor", programs.Byre.Path(),
			"serve",
			"--data-dir", m.dir, "--cert-dir", c.keys, "--external-hostname", movingAddress,
			"--replicate-to", "s3://copies/cluster-1", "--replicate-sync", "--standby", "--with-controller-manager",
			"--with-scheduler")
		t.Cleanup(func() {
			if text, err := os.ReadFile(m.log); err == nil && t.Failed() {
				t.Logf("log of the %s:\n%s", m.name, text)
			}
		})
		path := filepath.Join(m.dir, "keepalived.conf")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		libraries := tools + "/usr/lib/x86_64-linux-gnu:" + tools + "/lib/x86_64-linux-gnu"
		m.start(t, []string{"LD_LIBRARY_PATH=" + libraries}, tools+"/usr/sbin/keepalived", "--dont-fork", "--log-console",
			"--vrrp",
			"--use-file", path, "--pid", filepath.Join(m.dir, "keepalived.pid"), "--vrrp_pid", filepath.Join(m.dir, "vrrp.pid"))
		if m == c.first {
			storetest.Eventually(t, "the first machine serves", func() bool {
				return strings.Contains(m.text(t), `"Ready" address=`)
			})
		}
	}
	c.second.awaitStandby(t, 0)
	c.kubeconfig = c.writeKubeconfig(t)
	return c
}

// writeKubeconfig writes the administrator's kubeconfig with the address that moves.
func (c *cluster) writeKubeconfig(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(c.first.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range config.Clusters {
		one.Server = "https://" + net.JoinHostPort(movingAddress, "6443")
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func (m *machine) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(m.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// awaitStandby waits until a machine follows with a copy, as its log says after some bytes.
func (m *machine) awaitStandby(t *testing.T, after int) {
	t.Helper()
	storetest.Eventually(t, "the "+m.name+" follows", func() bool {
		return strings.Contains(m.text(t)[after:], "serves, and this server has a copy")
	})
}

// pull pulls the cable of a machine, and plug plugs it in again.
func (m *machine) pull(t *testing.T) {
	t.Helper()
	if err := namespaces.IP("link set " + m.name + " down"); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) plug(t *testing.T) {
	t.Helper()
	if err := namespaces.IP("link set " + m.name + " up"); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl by the address that moves.
func (c *cluster) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Kubectl.Path(), append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, &out)
	}
	return out.String()
}

// writer creates ConfigMaps one after the other.
type writer struct {
	client       kubernetes.Interface
	acknowledged []string
	last         atomic.Int64 // when a write was acknowledged, in Unix nanoseconds
}

// run writes until ctx ends. A client of its own has no connection to a machine that is gone.
func (w *writer) run(ctx context.Context, t *testing.T, c *cluster) {
	for i := 0; ctx.Err() == nil; i++ {
		if w.client == nil {
			w.client = c.client(t)
		}
		name := fmt.Sprint("written-", i)
		one, cancel := context.WithTimeout(ctx, time.Second)
		_, err := w.client.CoreV1().ConfigMaps("default").Create(one,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		cancel()
		if err != nil {
			w.client = nil
			time.Sleep(20 * time.Millisecond)
			continue
		}
		w.acknowledged = append(w.acknowledged, name)
		w.last.Store(time.Now().UnixNano())
	}
}

func (c *cluster) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Error(err)
		return nil
	}
	config.Timeout, config.QPS = 5*time.Second, -1
	// Each client has connections of its own.
	config.Dial = (&net.Dialer{Timeout: time.Second}).DialContext
	return kubernetes.NewForConfigOrDie(config)
}

// goesOn returns how long after a moment the first write was acknowledged.
func (w *writer) goesOn(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	storetest.Eventually(t, "writes go on", func() bool { return w.last.Load() > since.UnixNano() })
	return time.Unix(0, w.last.Load()).Sub(since)
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: example.com/web:IMAGE}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1, annotations: {kwok.x-k8s.io/node: fake}}
status: {capacity: {cpu: 8, memory: 8Gi, pods: 110}, allocatable: {cpu: 8, memory: 8Gi, pods: 110}}
`

// TestMachines_GoOnWhenACableIsPulled: a rollout that has begun before ends, kubectl waits for it, and no
// acknowledged write is lost. The machine follows when it is plugged in again, and takes over in its turn.
func TestMachines_GoOnWhenACableIsPulled(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("make machines-test runs it")
	}
	c := startCluster(t)
	storetest.EventuallyDone(t, "the address leads to a server", func(context.Context) (bool, error) {
		_, err := c.client(t).Discovery().ServerVersion()
		return err == nil, nil //nolint:nilerr // keepalived needs some seconds
	})
	c.kubectl(t, strings.ReplaceAll(deployment, "IMAGE", "1"), "apply", "-f", "-")
	kwok, err := servers.Kwok{Dir: t.TempDir(), Kubeconfig: c.kubeconfig, Address: clientAddress}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kwok.Kill)
	c.kubectl(t, "", "rollout", "status", "deployment/web", "--timeout=5m")

	ctx, stop := context.WithCancel(t.Context())
	var w writer
	var writing sync.WaitGroup
	writing.Go(func() { w.run(ctx, t, c) })
	serves, follows := c.first, c.second
	for _, fault := range []struct {
		name       string
		do, repair func(m *machine)
	}{
		{"the cable is pulled", func(m *machine) { m.pull(t) }, func(m *machine) { m.plug(t) }},
		{"the cable of the other machine is pulled", func(m *machine) { m.pull(t) }, func(m *machine) { m.plug(t) }},
		{"byre is killed, and started again", func(m *machine) { m.kill(t) }, nil},
		{"byre takeover", func(m *machine) { m.takeOver(t) }, func(*machine) {}},
	} {
		w.goesOn(t, time.Now())
		c.kubectl(t, "", "rollout", "restart", "deployment/web")
		var waiting sync.WaitGroup
		waiting.Go(func() { c.kubectl(t, "", "rollout", "status", "deployment/web", "--timeout=5m") })
		time.Sleep(time.Second) // some of ten Pods are replaced
		logged, begin := len(serves.text(t)), time.Now()
		fault.do(serves)
		took := w.goesOn(t, time.Now())
		t.Logf("%s: writes go on %v after it", fault.name, time.Since(begin).Round(100*time.Millisecond))
		if took > time.Minute {
			t.Errorf("%s: writes go on %v after it", fault.name, took)
		}
		waiting.Wait()
		t.Logf("%s: the rollout is complete after %v", fault.name, time.Since(begin).Round(100*time.Millisecond))
		if fault.repair == nil {
			continue // the same machine serves
		}
		fault.repair(serves)
		serves.awaitStandby(t, logged)
		serves, follows = follows, serves
	}
	stop()
	writing.Wait()
	list, err := c.client(t).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, item := range list.Items {
		has[item.Name] = true
	}
	for _, name := range w.acknowledged {
		if !has[name] {
			t.Errorf("%s is lost", name)
		}
	}
	t.Logf("%d writes were acknowledged", len(w.acknowledged))
}

// kill kills byre, which the supervisor starts again.
func (m *machine) kill(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("pkill", "-KILL", "-f",
		"^[^ ]*/byre serve --data-dir "+m.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// takeOver hands over to the other machine.
func (m *machine) takeOver(t *testing.T) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", m.name, programs.Byre.Path(), "takeover", "--replicate-to",
		"s3://copies/cluster-1", "--yes")
	cmd.Env = m.supervisor.Env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("byre takeover: %v: %s", err, out)
	}
}
