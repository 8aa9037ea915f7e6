package packages

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/envtest/standin"
	"byre/e2e/operator"
	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestReplicas_RunAsTheirDeploymentSays types the commands of docs/operations/install.md on a cluster,
// which is byre too, and then does what a kubelet would do with the Pods of the Deployment: it
// starts byre with the arguments, variables and mounted files of three Pods, and probes it. With
// "make packages-test" the Deployment is the chart's, else that of the kustomize base.
func TestReplicas_RunAsTheirDeploymentSays(t *testing.T) {
	t.Parallel()
	database, err := pgtest.Start(t.Context())
	if err != nil {
		t.Skip(err)
	}
	isStopped := false
	t.Cleanup(func() {
		if !isStopped {
			_ = database.Stop() // the exit status is that of the signal
		}
	})
	if err := database.Exec(t.Context(), "CREATE DATABASE byre"); err != nil {
		t.Fatal(err)
	}
	endpoint, err := url.Parse(database.DSN("byre"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(endpoint.Query().Get("host"), 0o711); err != nil { // the container's user connects there
		t.Fatal(err)
	}
	deployment, secrets := deploy(t, endpoint.String())
	var pods []*pod
	for i := range *deployment.Spec.Replicas {
		pods = append(pods, startPod(t, fmt.Sprintf("byre-%d", i), deployment, secrets))
	}
	for _, p := range pods {
		container := p.container
		p.mustAnswer(t, "startup", container.StartupProbe)
		p.mustAnswer(t, "readiness", container.ReadinessProbe)
		p.mustAnswer(t, "liveness", container.LivenessProbe)
	}

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}
	if _, err := pods[0].client(t).CoreV1().ConfigMaps("default").Create(t.Context(), object,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if _, err := p.client(t).CoreV1().ConfigMaps("default").Get(t.Context(), "shared", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		if os.Getuid() == 0 { // replicas are told apart by the names of their hosts
			if out := mustRun(t, programs.Byre.Path(), "status", "--data-dir", pods[0].data); !strings.Contains(out,
				p.name+" apiserver-") {
				t.Errorf("%s is not among the replicas:\n%s", p.name, out)
			}
		}
	}

	// A Pod without its database is not ready, and it is not restarted.
	isStopped = true
	_ = database.Stop() // the exit status is that of the signal
	for _, p := range pods {
		storetest.EventuallySucceeds(t, p.name+" is not ready", func() error {
			if p.probe(p.container.ReadinessProbe) == nil {
				return errors.New("it is")
			}
			return nil
		})
		p.mustAnswer(t, "liveness", p.container.LivenessProbe)
	}
}

// deploy types the commands of the page on a cluster and returns the Deployment and the Secrets
// that are then in it.
func deploy(t *testing.T, endpoint string) (*appsv1.Deployment, map[string]*corev1.Secret) {
	t.Helper()
	cluster, err := servers.Byre{Dir: filepath.Join(t.TempDir(), "cluster")}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Kill()
	page := operator.Commands(t, "install.md", "In a cluster, on PostgreSQL", 3)
	h := operator.NewHost(t, "workstation", "postgres://byre:PASSWORD@db.example.com/byre", endpoint)
	h.Setenv("KUBECONFIG", cluster.Kubeconfig)
	if err := os.CopyFS(filepath.Join(h.Home(), "packaging"),
		os.DirFS(filepath.Join(repository, "packaging"))); err != nil {
		t.Fatal(err)
	}
	// What the first start of a byre creates.
	if err := os.CopyFS(filepath.Join(h.Home(), "first", "pki"), os.DirFS(filepath.Dir(cluster.CAFile))); err != nil {
		t.Fatal(err)
	}
	h.Type(t, page[0])
	if os.Getenv("E2E_PACKAGES") == "" {
		h.Type(t, page[2])
	} else {
		if err := programs.Build(t.Context(), programs.Helm); err != nil {
			t.Fatal(err)
		}
		h.Type(t, page[1])
	}

	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	deployment, err := client.AppsV1().Deployments("byre").Get(t.Context(), "byre", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Secrets("byre").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]*corev1.Secret{}
	for i, secret := range list.Items {
		secrets[secret.Name] = &list.Items[i]
	}
	return deployment, secrets
}

// pod is a byre that runs as the container of a Pod would.
type pod struct {
	name, port string
	container  corev1.Container
	// data is the directory in place of /var/lib/byre.
	data string
}

// startPod mounts the volumes of the Deployment's only container and starts its command.
func startPod(t *testing.T, name string, deployment *appsv1.Deployment, secrets map[string]*corev1.Secret) *pod {
	t.Helper()
	spec := deployment.Spec.Template.Spec
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "pod") // the container's user may not enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	p := &pod{name: name, port: port, container: spec.Containers[0], data: filepath.Join(root, "var/lib/byre")}
	address, err := servers.MachineAddress()
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{}
	for _, v := range p.container.Env {
		switch from := v.ValueFrom; {
		case from == nil:
			variables[v.Name] = v.Value
		case from.SecretKeyRef != nil:
			variables[v.Name] = string(secrets[from.SecretKeyRef.Name].Data[from.SecretKeyRef.Key])
		case from.FieldRef != nil:
			variables[v.Name] = map[string]string{"status.podIP": address,
				"metadata.namespace": deployment.Namespace}[from.FieldRef.FieldPath]
		}
		if variables[v.Name] == "" {
			t.Errorf("%s is empty", v.Name)
		}
	}
	for _, mount := range p.container.VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		mountVolume(t, filepath.Join(root, mount.MountPath), mount, spec.Volumes[i], secrets)
	}
	var args []string
	for _, arg := range p.container.Args {
		arg = strings.ReplaceAll(arg, "/var/lib/byre", p.data)
		for key, value := range variables {
			arg = strings.ReplaceAll(arg, "$("+key+")", value)
		}
		args = append(args, arg)
	}
	args = append(args, "--secure-port="+port)
	p.start(t, root, spec.SecurityContext, args, variables)
	return p
}

// mountVolume makes an empty directory, or a file of a Secret.
func mountVolume(
	t *testing.T, path string, mount corev1.VolumeMount, volume corev1.Volume, secrets map[string]*corev1.Secret,
) {
	t.Helper()
	if volume.EmptyDir != nil {
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o777)); err != nil {
			t.Fatal(err)
		}
		return
	}
	content, ok := secrets[volume.Secret.SecretName].Data[mount.SubPath]
	if !ok {
		t.Fatalf("the Secret %s has no %s", volume.Secret.SecretName, mount.SubPath)
	}
	if err := os.WriteFile(path, content, os.FileMode(*volume.Secret.DefaultMode)); err != nil {
		t.Fatal(err)
	}
}

// start starts the container's command. As root it runs as the container's user, on a host that
// has the Pod's name.
func (p *pod) start(
	t *testing.T, root string, security *corev1.PodSecurityContext, args []string, variables map[string]string,
) {
	t.Helper()
	program := filepath.Join(root, "byre")
	mustRun(t, "cp", programs.Byre.Path(), program) // the container's user may not enter its directory
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		mustRun(t, "chmod", "755", root)
		mustRun(t, "chgrp", "-R", fmt.Sprint(*security.FSGroup), root)
		user, group := fmt.Sprint(*security.RunAsUser), fmt.Sprint(*security.RunAsGroup)
		cmd = exec.Command("sh", append([]string{"-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, p.name,
			"setpriv", "--pdeathsig=KILL", "--reuid=" + user, "--regid=" + group, "--clear-groups", program}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUTS}
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + filepath.Join(root, "tmp")}
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	log := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its end waits for --shutdown-delay-duration otherwise
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s %q logged:\n%s", p.name, args, log)
		}
	})
}

// probe asks as a kubelet does, without a look at the certificate.
func (p *pod) probe(probe *corev1.Probe) error {
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		Timeout:   time.Duration(probe.TimeoutSeconds) * time.Second,
	}
	i := slices.IndexFunc(p.container.Ports, func(port corev1.ContainerPort) bool {
		return port.Name == probe.HTTPGet.Port.StrVal
	})
	if i < 0 || p.container.Ports[i].ContainerPort != 6443 { // where byre serves without --secure-port
		return fmt.Errorf("the probe asks port %v of %v", probe.HTTPGet.Port, p.container.Ports)
	}
	response, err := client.Get(strings.ToLower(string(probe.HTTPGet.Scheme)) + "://127.0.0.1:" +
		p.port + probe.HTTPGet.Path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// mustAnswer waits until a probe succeeds.
func (p *pod) mustAnswer(t *testing.T, name string, probe *corev1.Probe) {
	t.Helper()
	storetest.EventuallySucceeds(t, p.name+"'s "+name+" probe", func() error { return p.probe(probe) })
}

// client is a client with the kubeconfig that byre writes.
func (p *pod) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.data, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}
