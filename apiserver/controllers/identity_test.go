package controllers

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// accounts are the service accounts that the controllers are.
var accounts = map[string]string{
	"bootstrap-signer-controller":                                    "bootstrap-signer",
	"certificatesigningrequest-approving-controller":                 "certificate-controller",
	"certificatesigningrequest-cleaner-controller":                   "certificate-controller",
	"certificatesigningrequest-signing-controller":                   "certificate-controller",
	"clusterrole-aggregation-controller":                             "clusterrole-aggregation-controller",
	"cronjob-controller":                                             "cronjob-controller",
	"daemonset-controller":                                           "daemon-set-controller",
	"deployment-controller":                                          "deployment-controller",
	"device-taint-eviction-controller":                               "device-taint-eviction-controller",
	"disruption-controller":                                          "disruption-controller",
	"endpoints-controller":                                           "endpoint-controller",
	"endpointslice-controller":                                       "endpointslice-controller",
	"endpointslice-mirroring-controller":                             "endpointslicemirroring-controller",
	"ephemeral-volume-controller":                                    "ephemeral-volume-controller",
	"garbage-collector-controller":                                   "generic-garbage-collector",
	"horizontal-pod-autoscaler-controller":                           "horizontal-pod-autoscaler",
	"job-controller":                                                 "job-controller",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": "kube-apiserver-serving-clustertrustbundle-publisher",
	"legacy-serviceaccount-token-cleaner-controller":                 "legacy-service-account-token-cleaner",
	"namespace-controller":                                           "namespace-controller",
	"node-lifecycle-controller":                                      "node-controller",
	"persistentvolume-attach-detach-controller":                      "attachdetach-controller",
	"persistentvolume-binder-controller":                             "persistent-volume-binder",
	"persistentvolume-expander-controller":                           "expand-controller",
	"persistentvolume-protection-controller":                         "pv-protection-controller",
	"persistentvolumeclaim-protection-controller":                    "pvc-protection-controller",
	"pod-garbage-collector-controller":                               "pod-garbage-collector",
	"podcertificaterequest-cleaner-controller":                       "podcertificaterequestcleaner",
	"replicaset-controller":                                          "replicaset-controller",
	"replicationcontroller-controller":                               "replication-controller",
	"resourceclaim-controller":                                       "resource-claim-controller",
	"resourcequota-controller":                                       "resourcequota-controller",
	"root-ca-certificate-publisher-controller":                       "root-ca-cert-publisher",
	"service-cidr-controller":                                        "service-cidrs-controller",
	"serviceaccount-controller":                                      "service-account-controller",
	"statefulset-controller":                                         "statefulset-controller",
	"storage-version-migrator-controller":                            "storage-version-migrator-controller",
	"taint-eviction-controller":                                      "node-controller",
	"token-cleaner-controller":                                       "token-cleaner",
	"ttl-after-finished-controller":                                  "ttl-after-finished-controller",
	"ttl-controller":                                                 "ttl-controller",
	"validatingadmissionpolicy-status-controller":                    "validatingadmissionpolicy-status-controller",
	"volumeattributesclass-protection-controller":                    "volumeattributesclass-protection-controller",
}

// TestControllers_AreTheirServiceAccounts builds each controller and records whose clients upstream's
// constructor asks for. The bootstrap policy binds a role to each of the accounts. The controller
// that makes tokens is kube-controller-manager.
func TestControllers_AreTheirServiceAccounts(t *testing.T) {
	t.Parallel()
	var bound []string
	for _, binding := range bootstrappolicy.ControllerRoleBindings() {
		for _, subject := range binding.Subjects {
			if subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == metav1.NamespaceSystem {
				bound = append(bound, subject.Name)
			}
		}
	}
	// These have Roles of their own in kube-system and kube-public.
	bound = append(bound, "bootstrap-signer", "token-cleaner")
	certificate, key, err := certutil.GenerateSelfSignedCertKey("ca", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := Files{CACert: filepath.Join(t.TempDir(), "ca.crt"), CAKey: filepath.Join(t.TempDir(), "ca.key")}
	block, _ := pem.Decode(certificate) // without its CA
	certificate = pem.EncodeToMemory(block)
	for path, content := range map[string][]byte{files.CACert: certificate, files.CAKey: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api := fake.NewClientset()
	// The resource quota controller reads discovery when it is built.
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	defer empty.Close()
	for name, d := range descriptors() {
		want := "system:kube-controller-manager"
		if account, ok := accounts[name]; ok {
			want = "system:serviceaccount:kube-system:" + account
			if !slices.Contains(bound, account) {
				t.Errorf("%s is %s, to which no role is bound", name, account)
			}
		}
		var asked []string
		config := &Config{Files: files, ClientConfig: func(_ string, who user.Info) *rest.Config {
			asked = append(asked, who.GetName())
			return &rest.Config{Host: empty.URL}
		}}
		root := clients{kube: api}
		shared := newSharedInformers(root)
		cc, err := config.newContext(root, shared)
		if err != nil {
			t.Fatal(err)
		}
		if d.own != nil {
			d.own = &ownController{d.own.account, func(context.Context, *controllerContext) (func(context.Context), error) {
				return nil, nil
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := d.construct(ctx, name, &cc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		shared.Shutdown()
		if slices.Sort(asked); !slices.Equal(slices.Compact(asked), []string{want}) {
			t.Errorf("%s asks for the clients of %v, want %s", name, asked, want)
		}
	}
}

// TestClients_AreOfTheServiceAccount: a controller's clients are its service account, which is
// created, with upstream's user agent.
func TestClients_AreOfTheServiceAccount(t *testing.T) {
	t.Parallel()
	var who user.Info
	c := Config{ClientConfig: func(component string, u user.Info) *rest.Config {
		who = u
		return &rest.Config{UserAgent: component + "/v1 (os/arch) kubernetes/abc"}
	}}
	api := fake.NewClientset()
	// The resource quota controller reads discovery when it is built.
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	defer empty.Close()
	const account = "system:serviceaccount:kube-system:deployment-controller"
	for range 2 { // the second finds the account
		own, err := c.newControllerClients(t.Context(), clients{kube: api}, "deployment-controller")
		if err != nil {
			t.Fatal(err)
		}
		groups := []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
		if who.GetName() != account || !slices.Equal(who.GetGroups(), groups) {
			t.Errorf("the controller is %s in %v", who.GetName(), who.GetGroups())
		}
		if want := "kube-controller-manager/v1 (os/arch) kubernetes/abc/" + account; own.config.UserAgent != want {
			t.Errorf("user agent %q, want %q", own.config.UserAgent, want)
		}
	}
	if _, err := api.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), "deployment-controller",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestDefaultSettings_AreThoseOfTheFlags compares the settings of each controller with those of a
// kube-controller-manager that is started without flags. Some have their defaults from the flags only.
func TestDefaultSettings_AreThoseOfTheFlags(t *testing.T) {
	t.Parallel()
	settings, err := defaultSettings()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	upstream.Flags(nil, nil, nil) // sets defaults
	compared := 0
	for field, o := range reflect.ValueOf(upstream).Elem().Fields() {
		got := reflect.ValueOf(settings).FieldByName(field.Name)
		if !got.IsValid() || field.Name == "Generic" || field.Name == "KubeCloudShared" ||
			field.Name == "GarbageCollectorController" {
			continue // byre reads none of these
		}
		compared++
		// Each type of options embeds the pointer to its settings.
		if diff := cmp.Diff(o.Elem().Field(0).Elem().Interface(), got.Interface()); diff != "" {
			t.Errorf("%s (-kube-controller-manager +byre):\n%s", field.Name, diff)
		}
	}
	if compared < 25 {
		t.Errorf("%d kinds of settings were compared", compared)
	}
}
