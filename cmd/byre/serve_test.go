package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/ptr"

	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// databases returns the flags of a server on each database.
func databases() map[string]func(t *testing.T) []string {
	return map[string]func(t *testing.T) []string{
		"sqlite":   func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string { return []string{"--endpoint", pgtest.DSN(t)} },
	}
}

// onDatabases runs a test with the flags of each database.
func onDatabases(t *testing.T, test func(t *testing.T, flags ...string)) {
	t.Helper()
	for name, flags := range databases() {
		t.Run(name, func(t *testing.T) { test(t, flags(t)...) })
	}
}

func TestServe_DeletesANamespace(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	makeAndDeleteNamespace(t, kubernetes.NewForConfigOrDie(server.config(t)), "deleted-by-a-controller")
}

func TestServe_RefusesWrongArguments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("not a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	if err := os.WriteFile(foreign, []byte(strings.Repeat("another program's data ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"serve", "--no-such-flag"}, "unknown flag: --no-such-flag"},
		{"wrong value", []string{"serve", "--secure-port=https"}, "--secure-port"},
		{"wrong port", []string{"serve", "--secure-port=70000"}, "--secure-port must be between 0 and 65535"},
		{"argument", []string{"serve", "please"}, `unknown command "please"`},
		{"etcd", []string{"serve", "--etcd-servers=http://127.0.0.1:2379"},
			"--etcd-servers is not supported: objects are kept in SQLite or PostgreSQL: use --endpoint"},
		{"unwritable directory", []string{"serve", "--data-dir", filepath.Join(file, "data")}, "--data-dir"},
		{"bad endpoint", []string{"serve", "--data-dir", t.TempDir(), "--endpoint=etcd://localhost"},
			"--endpoint: want sqlite:///path or postgres://"},
		{"no database there",
			[]string{"serve", "--data-dir", t.TempDir(), "--endpoint=postgres://u:secret@127.0.0.1:1/db?connect_timeout=1"},
			"127.0.0.1"},
		{"database of another program", []string{"serve", "--data-dir", t.TempDir(), "--endpoint=sqlite://" + foreign},
			"foreign.db"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := command(t, "", test.args...)
			if status := p.wait(t); status != 1 {
				t.Errorf("exit status is %d", status)
			}
			out := strings.TrimSpace(p.log.String())
			if !strings.Contains(out, test.want) || strings.Contains(out, "secret") {
				t.Errorf("output is %q, want %q", out, test.want)
			}
			if lines := strings.Split(out, "\n"); len(lines) != 1 {
				t.Errorf("%d lines of output: %q", len(lines), lines)
			}
		})
	}
}

func TestServe_RefusesASecondServer(t *testing.T) {
	t.Parallel()
	first := sharedServer(t, "sqlite")
	t.Run("on the same database", func(t *testing.T) {
		second := command(t, first.dir, serveArgs(first.dir)...)
		if status := second.wait(t); status != 1 {
			t.Errorf("exit status is %d", status)
		}
		if out := second.log.String(); !strings.Contains(out, "byre.db") || !strings.Contains(out, "another byre") {
			t.Errorf("output is %q", out)
		}
	})
	t.Run("on the same port", func(t *testing.T) {
		address := strings.TrimPrefix(first.config(t).Host, "https://")
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		second := command(t, "", "serve", "--data-dir", t.TempDir(), "--bind-address=127.0.0.1", "--secure-port="+port)
		if status := second.wait(t); status != 1 {
			t.Errorf("exit status is %d", status)
		}
		if out := second.log.String(); !strings.Contains(out, address+" is in use by another program") {
			t.Errorf("output is %q", out)
		}
	})
	if status, body := first.mustGet(t, "/readyz"); status != http.StatusOK {
		t.Errorf("the first server says %d %s", status, body)
	}
}

// TestServe_NewInstallNeedsCredentials: the first start of a new installation serves TLS
// only, requires credentials, and writes secrets that only their owner can read.
func TestServe_NewInstallNeedsCredentials(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	config := server.config(t)
	t.Run("plain HTTP", func(t *testing.T) {
		response, err := http.Get("http://" + strings.TrimPrefix(config.Host, "https://") + "/api")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); response.StatusCode != http.StatusBadRequest || err != nil {
			t.Errorf("%s %s, %v", response.Status, body, err)
		}
	})
	t.Run("no credentials", func(t *testing.T) {
		for path, want := range map[string]int{
			"/api": http.StatusForbidden, "/apis": http.StatusForbidden, "/api/v1/namespaces": http.StatusForbidden,
			"/api/v1/secrets": http.StatusForbidden,
			"/openapi/v3":     http.StatusForbidden, "/metrics": http.StatusForbidden, "/debug/pprof/": http.StatusForbidden,
			"/debug/pprof/heap": http.StatusForbidden,
			"/debug/flags/v":    http.StatusForbidden, "/debug/api_priority_and_fairness/dump_requests": http.StatusForbidden,
			"/nowhere": http.StatusForbidden,
			// kube-apiserver answers these without credentials too.
			"/livez": http.StatusOK, "/readyz": http.StatusOK, "/version": http.StatusOK,
		} {
			if status, body, err := fetch(t.Context(), anonymous(), config.Host+path); err != nil || status != want {
				t.Errorf("%s: %d %s, %v, want %d", path, status, body, err, want)
			}
		}
	})
	t.Run("an administrator", func(t *testing.T) {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap?debug=1",
			"/debug/api_priority_and_fairness/dump_requests", "/metrics"} {
			if status, body := server.mustGet(t, path); status != http.StatusOK {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
	})
	t.Run("insecure port", func(t *testing.T) {
		if strings.Contains(server.log.String(), "without credentials") {
			t.Error("the insecure port is on")
		}
	})
	t.Run("files", func(t *testing.T) { checkModes(t, server.dir) })
}

// checkModes checks the mode of every file: certificates and public keys are readable by
// all users, other files by their owner only.
func checkModes(t *testing.T, dir string) {
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory, which the server has made, has mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, "byre.db-reserve")); err != nil || info.Size() != 32<<20 {
		t.Errorf("the reserve is %v, %v", info, err)
	}
	secret := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server works meanwhile
		} else if err != nil {
			return err
		}
		public := strings.HasSuffix(path, ".crt") || strings.HasSuffix(path, ".pub")
		if mode := info.Mode().Perm(); !public && mode&0o077 != 0 || mode&0o022 != 0 {
			t.Errorf("%s has mode %v", path, mode)
		}
		if !public {
			secret++
		}
		return nil
	})
	if err != nil || secret < 5 {
		t.Errorf("%d files with secrets, %v", secret, err)
	}
}

// TestServe_RunsAsAnyUser runs the server as a user who owns only the data directory.
func TestServe_RunsAsAnyUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("this user is one, and every other test runs as it")
	}
	// (Other users cannot enter a test's own directories.)
	dir, err := os.MkdirTemp("", "byre-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, data := filepath.Join(dir, "byre"), filepath.Join(dir, "data")
	if out, err := exec.Command("cp", executable, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	p := start(t, data, &exec.Cmd{
		Path:        program,
		Args:        []string{"byre", "serve", "--data-dir", data, "--bind-address=127.0.0.1", "--secure-port=0"},
		Env:         []string{asProgram + "=1"},
		Dir:         data,
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
	})
	awaitReady(t, p)
	if status, body := p.mustGet(t, "/api/v1/namespaces/default"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status := p.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
}

// TestServe_ControlPlaneFlags starts one server with kube-apiserver's flags of the control
// plane and checks the effect of each.
func TestServe_ControlPlaneFlags(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "debug.sock")
	server := startServer(t, dir,
		"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
		"--coordinated-leadership-lease-duration=3s", "--coordinated-leadership-renew-deadline=2s",
		"--coordinated-leadership-retry-period=500ms",
		"--peer-advertise-ip=192.0.2.9", "--peer-advertise-port=7443",
		"--advertise-address=192.0.2.8", "--endpoint-reconciler-type=none", "--kubernetes-service-node-port=30443",
		"--enable-garbage-collector=false", "--delete-collection-workers=3", "--livez-grace-period=1m",
		"--debug-socket-path="+socket, "--contention-profiling",
	)
	client := kubernetes.NewForConfigOrDie(server.config(t))
	t.Run("identity", func(t *testing.T) { checkIdentity(t, client) })
	t.Run("legacy tokens", func(t *testing.T) { checkTokenTracking(t, server, client) })
	t.Run("election", func(t *testing.T) { checkElection(t, client) })
	t.Run("service", func(t *testing.T) { checkService(t, client) })
	t.Run("garbage collector", func(t *testing.T) { checkNoGarbageCollection(t, client) })
	t.Run("debug socket", func(t *testing.T) { checkDebugSocket(t, socket) })
	t.Run("flagz", func(t *testing.T) { checkFlagz(t, server) })
	if status := server.stop(t); status != 0 {
		t.Errorf("exit status is %d", status)
	}
}

func checkIdentity(t *testing.T, client kubernetes.Interface) {
	var lease coordinationv1.Lease
	storetest.EventuallyDone(t, "the identity Lease", func(ctx context.Context) (bool, error) {
		list, err := client.CoordinationV1().Leases("kube-system").List(ctx,
			metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil || len(list.Items) != 1 {
			return false, err
		}
		lease = list.Items[0]
		return true, nil
	})
	if !strings.HasPrefix(lease.Name, "apiserver-") || lease.Labels[corev1.LabelHostname] == "" ||
		lease.Annotations[corev1.AnnotationPeerAdvertiseAddress] != "192.0.2.9:7443" ||
		!strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Name+"_") ||
		ptr.Deref(lease.Spec.LeaseDurationSeconds, 0) != 3600 {
		t.Errorf("the identity Lease is %+v", lease)
	}
}

// checkTokenTracking checks that the ConfigMap names the day since which the use of legacy
// tokens is recorded, and that a use is recorded.
func checkTokenTracking(t *testing.T, server *serverProcess, client kubernetes.Interface) {
	storetest.EventuallyDone(t, "the ConfigMap of legacy tokens", func(ctx context.Context) (bool, error) {
		config, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx,
			"kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, err = time.Parse("2006-01-02", config.Data["since"])
		return true, err
	})
	token := makeLegacyToken(t, server, client)
	config := rest.AnonymousClientConfig(server.config(t))
	config.BearerToken = token
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:serviceaccount:default:legacy" {
		t.Fatalf("the token's user is %+v, %v", review, err)
	}
	secret, err := client.CoreV1().Secrets("default").Get(t.Context(), "legacy-token", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse("2006-01-02", secret.Labels[serviceaccount.LastUsedLabelKey]); err != nil {
		t.Errorf("the token was used, and its Secret has the labels %v", secret.Labels)
	}
}

// makeLegacyToken creates a service account with a token in a Secret, as
// kube-controller-manager's tokens controller does.
func makeLegacyToken(t *testing.T, server *serverProcess, client kubernetes.Interface) string {
	t.Helper()
	core := client.CoreV1()
	account, err := core.ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "legacy"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "legacy-token", Namespace: "default",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: account.Name,
				corev1.ServiceAccountUIDKey: string(account.UID)},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(server.dir, "pki", "sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		t.Fatal(err)
	}
	public, private := serviceaccount.LegacyClaims(*account, secret)
	token, err := issuer.GenerateToken(t.Context(), public, private)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	if _, err := core.Secrets("default").Create(t.Context(), &secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return token
}

// checkElection registers a candidate and waits until it gets the Lease.
func checkElection(t *testing.T, client kubernetes.Interface) {
	now := metav1.NowMicro()
	candidate := &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Name: "candidate-1"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "elected", BinaryVersion: "1.37.0", EmulationVersion: "1.37.0",
			Strategy: coordinationv1.OldestEmulationVersion, RenewTime: &now,
		},
	}
	candidates := client.CoordinationV1beta1().LeaseCandidates("default")
	if _, err := candidates.Create(t.Context(), candidate, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storetest.EventuallyDone(t, "the elected leader", func(ctx context.Context) (bool, error) {
		// A candidate answers a ping by renewing its Lease.
		if c, err := candidates.Get(ctx, "candidate-1", metav1.GetOptions{}); err == nil && c.Spec.PingTime != nil &&
			c.Spec.RenewTime.Before(c.Spec.PingTime) {
			renewed := metav1.NowMicro()
			c.Spec.RenewTime = &renewed
			if _, err := candidates.Update(ctx, c, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
				return false, err
			}
		}
		lease, err := client.CoordinationV1().Leases("default").Get(ctx, "elected", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return ptr.Deref(lease.Spec.HolderIdentity, "") == "candidate-1", nil
	})
}

func checkService(t *testing.T, client kubernetes.Interface) {
	service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.Type != corev1.ServiceTypeNodePort || service.Spec.Ports[0].NodePort != 30443 {
		t.Errorf("the kubernetes Service is %+v", service.Spec)
	}
	if _, err := client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the kubernetes Service has endpoints: %v", err)
	}
}

// checkNoGarbageCollection checks that an owner is deleted at once, though its deletion is
// to wait for its dependents.
func checkNoGarbageCollection(t *testing.T, client kubernetes.Interface) {
	configs := client.CoreV1().ConfigMaps("default")
	if _, err := configs.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configs.Delete(t.Context(), "owner",
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	if _, err := configs.Get(t.Context(), "owner", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted owner: %v", err)
	}
}

func checkDebugSocket(t *testing.T, socket string) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/block?debug=1", "/debug/flags"} {
		if status, body, err := fetch(t.Context(), client, "http://debug"+path); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d %s, %v", path, status, body, err)
		}
	}
}

func checkFlagz(t *testing.T, server *serverProcess) {
	_, body := server.mustGet(t, "/flagz")
	values := map[string]string{}
	for line := range strings.Lines(body) {
		// Upstream chooses the delimiter at random, to keep clients from parsing this.
		if i := strings.IndexAny(line, ":= "); i > 0 {
			values[line[:i]] = strings.TrimSpace(line[i+1:])
		}
	}
	for name, want := range map[string]string{"delete-collection-workers": "3", "enable-garbage-collector": "false",
		"endpoint": "CLASSIFIED"} {
		if got := values[name]; got != want {
			t.Errorf("/flagz says that --%s is %q, not %q", name, got, want)
		}
	}
	if value, there := values["etcd-servers"]; there {
		t.Errorf("/flagz has --etcd-servers, which can't be set: %q", value)
	}
}

// TestServe_RefusesWrongFeatureGates: a feature gate that cannot have the given value is
// refused with one line.
func TestServe_RefusesWrongFeatureGates(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"--feature-gates=CoordinatedLeaderElection=true":                                          "--feature-gates=CoordinatedLeaderElection=true needs --runtime-config=coordination.k8s.io/v1beta1=true: candidates are kept in that API",
		"--emulated-version=1.34 --feature-gates=DisableAllocatorDualWrite=false":                 "the feature gate DisableAllocatorDualWrite must be on: cluster IPs are kept as IPAddresses only",
		"--emulation-forward-compatible":                                                          "ServerRunOptions.EmulationForwardCompatible cannot be set to true if the emulation version is the same as the binary version",
		"--runtime-config-emulation-forward-compatible":                                           "ServerRunOptions.RuntimeConfigEmulationForwardCompatible cannot be set to true if the emulation version is the same as the binary version",
		"--feature-gates=UnknownVersionInteroperabilityProxy=false --peer-advertise-ip=192.0.2.1": "--peer-advertise-ip needs the feature gate UnknownVersionInteroperabilityProxy",
	} {
		dir := t.TempDir()
		p := command(t, dir,
			append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"},
				strings.Fields(flags)...)...)
		if status := p.wait(t); status != 1 || !strings.HasSuffix(p.log.String(), "byre: "+want+"\n") {
			t.Errorf("%s: exit status %d, output %q, want %q", flags, status, p.log.String(), want)
		}
	}
}

// TestZPages_AreForMonitoringOnly: the group system:monitoring may read the pages, also in
// their structured form; other users are refused.
func TestZPages_AreForMonitoringOnly(t *testing.T) {
	t.Parallel()
	server := sharedServer(t, "sqlite")
	client := kubernetes.NewForConfigOrDie(server.config(t))
	for _, page := range []string{"statusz", "flagz"} {
		if status, _, err := fetch(t.Context(), anonymous(), server.config(t).Host+"/"+page); err != nil ||
			status != http.StatusForbidden {
			t.Errorf("/%s for anybody: %d, %v", page, status, err)
		}
		for _, as := range []struct {
			group string
			want  bool
		}{{"system:monitoring", true}, {"users", false}} {
			config := server.config(t)
			config.Impersonate.UserName, config.Impersonate.Groups = "somebody", []string{as.group}
			_, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().AbsPath("/" + page).Do(t.Context()).Raw()
			if as.want != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("/%s for %s: %v", page, as.group, err)
			}
		}
		kind := strings.ToUpper(page[:1]) + page[1:]
		raw, err := client.RESTClient().Get().AbsPath("/"+page).
			SetHeader("Accept", fmt.Sprintf("application/json;v=v1beta1;g=config.k8s.io;as=%s", kind)).Do(t.Context()).Raw()
		var answer struct{ Kind, APIVersion string }
		if err != nil || json.Unmarshal(raw, &answer) != nil || answer.Kind != kind ||
			answer.APIVersion != "config.k8s.io/v1beta1" {
			t.Errorf("/%s in JSON: %.300s, %v", page, raw, err)
		}
	}
}

// A server with short timeouts ends what takes longer. It emulates an older release, which is another question to the
// same server.
func TestServe_ShortTimeoutsOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir(), "--token-auth-file", hostileTokens(t), "--request-timeout=2s",
		"--min-request-timeout=2",
		"--emulated-version=1.34", "--runtime-config=networking.k8s.io/v1beta1=true")
	for name, test := range map[string]func(*testing.T, *serverProcess){
		"slow clients": testSlowClients, "watch": testMinRequestTimeout, "older release": testOlderRelease,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// testOlderRelease: a server that emulates an older release has that release's APIs and feature gates.
func testOlderRelease(t *testing.T, server *serverProcess) {
	_, body := server.mustGet(t, "/apis")
	// storagemigration.k8s.io/v1 came with 1.37, and networking.k8s.io/v1beta1 went.
	if strings.Contains(body, "storagemigration.k8s.io") || !strings.Contains(body, "networking.k8s.io/v1beta1") {
		t.Errorf("1.34 serves %s", body)
	}
}

// testMinRequestTimeout: the server ends a watch after --min-request-timeout at the earliest and twice that at the
// latest.
func testMinRequestTimeout(t *testing.T, server *serverProcess) {
	client, err := rest.HTTPClientFor(server.config(t))
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	status, body, err := fetch(t.Context(), client, server.config(t).Host+configMaps+"?watch=1&resourceVersion=0")
	if took := time.Since(started); err != nil || status != http.StatusOK || took < 2*time.Second ||
		took > 30*time.Second {
		t.Errorf("a watch ended after %v with %d %s, %v", took, status, body, err)
	}
}

// testSlowClients: the server answers a request whose body is sent too slowly. The bound of headers is tested in
// apiserver/process.
func testSlowClients(t *testing.T, server *serverProcess) {
	config := withToken(server.config(t), "admin-secret")
	body, sent := io.Pipe()
	defer sent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+configMaps,
		io.MultiReader(strings.NewReader(`{"metadata":`), body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer admin-secret")
	request.Header.Set("Content-Type", "application/json")
	response, err := anonymous().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusGatewayTimeout && response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a body that does not end is answered with %s", response.Status)
	}
}

// The feature gates that docs/operations says to change nothing exist, and nothing here reads them.
func TestFeatureGates_ThatChangeNothing(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(packaged(t, "docs/operations/one-host.md"), "\n### Feature gates\n")
	section, _, _ = strings.Cut(section, "\n## ")
	gates := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1)
	if len(gates) == 0 {
		t.Fatal("no gates")
	}
	known := utilfeature.DefaultFeatureGate.DeepCopy().GetAll()
	for _, gate := range gates {
		if _, isKnown := known[featuregate.Feature(gate[1])]; !isKnown {
			t.Errorf("there is no gate %s", gate[1])
		}
	}
	root := filepath.Join("..", "..")
	for _, dir := range []string{"aggregator", "apiserver", "cmd", "crd"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, gate := range gates {
				if strings.Contains(string(text), "features."+gate[1]) {
					t.Errorf("%s reads %s", path, gate[1])
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}
