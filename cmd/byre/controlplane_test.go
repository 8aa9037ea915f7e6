package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/ptr"

	"byre/sqlstore/storetest"
)

// TestServe_ControlPlaneFlags starts one server with kube-apiserver's flags of the control
// plane and checks the effect of each.
func TestServe_ControlPlaneFlags(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "debug.sock")
	server := startServer(t, dir,
		"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
		"--coordinated-leadership-lease-duration=3s", "--coordinated-leadership-renew-deadline=2s", "--coordinated-leadership-retry-period=500ms",
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
		list, err := client.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil || len(list.Items) != 1 {
			return false, err
		}
		lease = list.Items[0]
		return true, nil
	})
	if !strings.HasPrefix(lease.Name, "apiserver-") || lease.Labels[corev1.LabelHostname] == "" ||
		lease.Annotations[corev1.AnnotationPeerAdvertiseAddress] != "192.0.2.9:7443" ||
		!strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Name+"_") || ptr.Deref(lease.Spec.LeaseDurationSeconds, 0) != 3600 {
		t.Errorf("the identity Lease is %+v", lease)
	}
}

// checkTokenTracking checks that the ConfigMap names the day since which the use of legacy
// tokens is recorded, and that a use is recorded.
func checkTokenTracking(t *testing.T, server *serverProcess, client kubernetes.Interface) {
	storetest.EventuallyDone(t, "the ConfigMap of legacy tokens", func(ctx context.Context) (bool, error) {
		config, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, err = time.Parse("2006-01-02", config.Data["since"])
		return true, err
	})
	token := makeLegacyToken(t, server, client)
	config := rest.AnonymousClientConfig(server.config(t))
	config.BearerToken = token
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
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
	account, err := core.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "legacy"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "legacy-token", Namespace: "default",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: account.Name, corev1.ServiceAccountUIDKey: string(account.UID)},
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
		if c, err := candidates.Get(ctx, "candidate-1", metav1.GetOptions{}); err == nil && c.Spec.PingTime != nil && c.Spec.RenewTime.Before(c.Spec.PingTime) {
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
	if _, err := client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the kubernetes Service has endpoints: %v", err)
	}
}

// checkNoGarbageCollection checks that an owner is deleted at once, though its deletion is
// to wait for its dependents.
func checkNoGarbageCollection(t *testing.T, client kubernetes.Interface) {
	configs := client.CoreV1().ConfigMaps("default")
	if _, err := configs.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configs.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
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
	for name, want := range map[string]string{"delete-collection-workers": "3", "enable-garbage-collector": "false", "endpoint": "CLASSIFIED"} {
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
		p := command(t, dir, append([]string{"serve", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0"}, strings.Fields(flags)...)...)
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
		if status, _, err := fetch(t.Context(), anonymous(), server.config(t).Host+"/"+page); err != nil || status != http.StatusForbidden {
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
		if err != nil || json.Unmarshal(raw, &answer) != nil || answer.Kind != kind || answer.APIVersion != "config.k8s.io/v1beta1" {
			t.Errorf("/%s in JSON: %.300s, %v", page, raw, err)
		}
	}
}
