package auth

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func TestOptions_Validate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flags []string
		want  string // the first error; empty: none
	}{
		{"defaults", nil, ""},
		{"unknown mode", []string{"--authorization-mode=Node,Magic"},
			`authorization-mode "Magic" is not a valid mode`},
		{"mode twice", []string{"--authorization-mode=RBAC,RBAC"},
			`authorization-mode ["RBAC" "RBAC"] has mode specified more than once`},
		{"no mode", []string{"--authorization-mode="}, "at least one authorization-mode must be passed"},
		{"webhook without file", []string{"--authorization-mode=Webhook"},
			"authorization-mode Webhook's authorization config file not passed"},
		{"file without webhook", []string{"--authorization-webhook-config-file=f"},
			"cannot specify --authorization-webhook-config-file without mode Webhook"},
		{"abac without policy", []string{"--authorization-mode=ABAC"},
			"authorization-mode ABAC's authorization policy file not passed"},
		{"config and mode", []string{"--authorization-config=f", "--authorization-mode=RBAC"},
			"--authorization-config f: --authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined"},
		{"half of oidc", []string{"--oidc-client-id=c"},
			"oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"},
		{"config and oidc", []string{"--authentication-config=f", "--oidc-client-id=c"},
			"authentication-config file and oidc-* flags are mutually exclusive"},
		{"issuer twice", []string{"--service-account-issuer=a", "--service-account-issuer=a"},
			`service-account-issuer "a" is already specified`},
		{"short-lived tokens", []string{"--service-account-max-token-expiration=1m"},
			"--service-account-max-token-expiration must be between 1 hour and 2^32 seconds, not 1m0s"},
		{"jwks without tls", []string{"--service-account-jwks-uri=http://x"},
			"service-account-jwks-uri requires https scheme, parsed as: http://x"},
		{"signer and key", []string{"--service-account-signing-endpoint=s", "--service-account-signing-key-file=f"},
			"--service-account-signing-endpoint excludes --service-account-signing-key-file and --service-account-key-file"},
		{"signer alone", []string{"--service-account-signing-endpoint=s"}, ""},
		{"signer and public key", []string{"--service-account-signing-endpoint=s", "--service-account-key-file=f"},
			"--service-account-signing-endpoint excludes --service-account-signing-key-file and --service-account-key-file"},
		{"signer of a bad name", []string{"--service-account-signing-endpoint=@/s"},
			`--service-account-signing-endpoint "@/s" is not the name of an abstract socket`},
		{"signing key alone", []string{"--service-account-signing-key-file=f"},
			"either `--service-account-key-file` or `--service-account-signing-endpoint` must be set"},
		{"empty header", []string{"--requestheader-username-headers= "}, `empty value in "requestheader-username-headers"`},
		{"uid header", []string{"--requestheader-uid-headers=Who"},
			"--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := NewOptions()
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.Authentication.AddFlags(fs)
			o.Authorization.AddFlags(fs)
			if err := fs.Parse(test.flags); err != nil {
				t.Fatal(err)
			}
			o.Complete(PKIFiles{ServiceAccountKey: "sa.key", ServiceAccountPub: "sa.pub"})
			var got string
			if errs := o.Validate(); len(errs) > 0 {
				got = errs[0].Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Without the feature gate, UIDs in headers are neither read nor asked for, as in kube-apiserver.
func TestOptions_UIDHeadersNeedTheFeatureGate(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.RemoteRequestHeaderUID, false)
	o := NewOptions()
	o.Complete(PKIFiles{FrontProxyCA: "front"})
	if headers := o.Authentication.RequestHeader.UIDHeaders; len(headers) > 0 {
		t.Errorf("UIDs are read from %v", headers)
	}
	o.Authentication.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	if err := errors.Join(o.Validate()...); !strings.Contains(err.Error(), "--requestheader-uid-headers requires the") {
		t.Errorf("--requestheader-uid-headers is accepted: %v", err)
	}
}

// TestOptions_RefuseASharedCAWithoutNames: one CA for users and front proxies is refused
// unless the names of the proxies are listed.
func TestOptions_RefuseASharedCAWithoutNames(t *testing.T) {
	t.Parallel()
	file := write(t, "ca.crt", newAuthority(t, "ca").pem())
	o := NewOptions()
	o.Authentication.ClientCert.ClientCA, o.Authentication.RequestHeader.ClientCAFile = file, file
	if err := o.Authentication.validateOverlap(); err == nil {
		t.Error("accepted")
	}
	o.Authentication.RequestHeader.AllowedNames = []string{"front"}
	if err := o.Authentication.validateOverlap(); err != nil {
		t.Error(err)
	}
}

// TestOptions_OwnCACountsAsAUsersCA: the server's own CA is a CA of users whatever
// --client-ca-file says, even if it is made after the flags were checked.
func TestOptions_OwnCACountsAsAUsersCA(t *testing.T) {
	t.Parallel()
	own := newAuthority(t, "own").pem()
	file := filepath.Join(t.TempDir(), "ca.crt")
	for _, clients := range []string{"", write(t, "users.crt", newAuthority(t, "users").pem())} {
		o := NewOptions()
		o.Authentication.ClientCert.ClientCA = clients
		o.Authentication.RequestHeader.ClientCAFile = file
		o.Complete(PKIFiles{ClientCA: file, FrontProxyCA: "front-proxy-ca.crt", FrontProxyUserName: "front-proxy-client"})
		if err := os.WriteFile(file, own, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := o.Authentication.validateOverlap(); err == nil {
			t.Errorf("with --client-ca-file=%q: accepted by Validate", clients)
		}
		if err := new(Auth).loadClientCA(&o.Authentication); err == nil {
			t.Errorf("with --client-ca-file=%q: accepted when the files are loaded", clients)
		}
		o.Authentication.RequestHeader.AllowedNames = []string{"front"}
		if err := o.Authentication.validateOverlap(); err != nil {
			t.Error(err)
		}
	}
}

func TestOptions_Complete(t *testing.T) {
	t.Parallel()
	files := PKIFiles{ClientCA: "ca", FrontProxyCA: "front", FrontProxyUserName: "front-proxy-client",
		ServiceAccountKey: "key", ServiceAccountPub: "pub"}
	o := NewOptions()
	o.Complete(files)
	a := o.Authentication
	if a.ClientCert.ClientCA != "ca" || a.RequestHeader.ClientCAFile != "front" || a.SigningKeyFile != "key" ||
		!slices.Equal(a.ServiceAccounts.KeyFiles, []string{"pub"}) ||
		!slices.Equal(a.ServiceAccounts.Issuers, []string{DefaultIssuer}) ||
		!slices.Equal(a.RequestHeader.AllowedNames, []string{"front-proxy-client"}) || !a.Anonymous.Allow {
		t.Errorf("got %+v", a)
	}

	o = NewOptions()
	o.Authentication.ClientCert.ClientCA, o.Authentication.SigningKeyFile = "mine", "mine"
	o.Authorization.Modes = []string{"AlwaysAllow"}
	o.Complete(files)
	a = o.Authentication
	if a.ClientCert.ClientCA != "mine" || a.SigningKeyFile != "mine" || len(a.ServiceAccounts.KeyFiles) != 0 {
		t.Errorf("what was given was replaced: %+v", a)
	}
	if a.Anonymous.Allow {
		t.Error("anonymous requests would be allowed anything")
	}
}
