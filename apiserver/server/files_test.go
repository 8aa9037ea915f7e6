package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
)

// notRead are flags whose files Complete does not read, with who does.
var notRead = map[string]string{
	"encryption-provider-config": "the assembly reads it before it opens the database",
}

// with are the flags without which another one is refused, or has no effect.
var with = map[string][]string{
	"authorization-policy-file":         {"--authorization-mode=ABAC"},
	"authorization-webhook-config-file": {"--authorization-mode=Webhook"},
	"kubelet-client-certificate":        {"--kubelet-client-key=FILE"},
	"kubelet-client-key":                {"--kubelet-client-certificate=FILE"},
	"oidc-ca-file":                      {"--oidc-issuer-url=https://issuer.example", "--oidc-client-id=byre"},
	"proxy-client-cert-file":            {"--proxy-client-key-file=FILE"},
	"proxy-client-key-file":             {"--proxy-client-cert-file=FILE"},
	"service-account-key-file":          {"--service-account-signing-key-file=FILE"},
	"service-account-signing-key-file":  {"--service-account-key-file=FILE"},
	"tls-cert-file":                     {"--tls-private-key-file=FILE"},
	"tls-private-key-file":              {"--tls-cert-file=FILE"},
}

// TestOptions_AWrongFileIsFoundBeforeAnythingIsWritten: for each flag that names a file,
// Complete fails if the file is missing or holds something else. The flags are those whose
// usage says so.
func TestOptions_AWrongFileIsFoundBeforeAnythingIsWritten(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("{garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	tested := 0
	for _, set := range server.NewOptions().Flags().FlagSets {
		set.VisitAll(func(flag *pflag.Flag) {
			if !namesAFile(flag) || flag.Value.Type() == "refused" || notRead[flag.Name] != "" {
				return
			}
			tested++
			for _, file := range []string{garbage, filepath.Join(dir, "missing")} {
				value := file
				if flag.Name == "tls-sni-cert-key" {
					value += "," + file
				}
				args := []string{"--data-dir=" + data, "--" + flag.Name + "=" + value}
				for _, companion := range with[flag.Name] {
					args = append(args, strings.Replace(companion, "FILE", file, 1))
				}
				o, err := parse(args...)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--"+flag.Name) {
					t.Errorf("%v: %v", args, err)
				}
			}
		})
	}
	if tested < 20 {
		t.Errorf("found %d flags, which can't be all", tested)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

func namesAFile(flag *pflag.Flag) bool {
	return strings.HasSuffix(flag.Name, "-file") || strings.Contains(flag.Usage, "File with ") || strings.HasPrefix(flag.Usage, "Kubeconfig file") ||
		strings.HasPrefix(flag.Usage, "CSV file") || strings.HasPrefix(flag.Usage, "Private key of") || strings.Contains(flag.Usage, "lient certificate shown") ||
		strings.Contains(flag.Usage, "certificate and key file") || strings.HasPrefix(flag.Usage, "Client certificate by which")
}

// A flag may name a file that the server makes when it starts for the first time.
func TestOptions_AFileThatTheServerMakesMayBeMissing(t *testing.T) {
	dir := t.TempDir()
	files := pki.Paths(filepath.Join(dir, "pki"))
	o, err := parse("--data-dir="+dir, "--client-ca-file="+files.CACert, "--service-account-key-file="+files.ServiceAccount,
		"--service-account-signing-key-file="+files.ServiceAccountKey, "--kubelet-client-certificate="+files.KubeletClientCert,
		"--kubelet-client-key="+files.KubeletKey, "--root-ca-file="+files.CACert)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Complete(); err != nil {
		t.Error(err)
	}
}

// A serving certificate that has expired, or is not valid yet, keeps no server from starting. One of another CA does.
func TestOptions_TheRootCAVerifiesACertificateAtItsTime(t *testing.T) {
	ensure := func(now time.Time) pki.Files {
		dir := t.TempDir()
		files, _, err := pki.Ensure(pki.Config{Dir: dir, Server: "https://127.0.0.1:6443", Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	other := ensure(time.Now())
	for _, now := range []time.Time{time.Now().AddDate(-1, 0, -1), time.Now().AddDate(0, 0, 1)} {
		files := ensure(now)
		for ca, isVerified := range map[string]bool{files.CACert: true, other.CACert: false} {
			o, err := parse("--data-dir="+t.TempDir(), "--tls-cert-file="+files.ServingCert, "--tls-private-key-file="+files.ServingKey, "--root-ca-file="+ca)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := o.Complete(); (err == nil) != isVerified {
				t.Errorf("a certificate of %v, with its CA %v: %v", now, isVerified, err)
			}
		}
	}
}

// A misspelt or invalid field of --authentication-config may be a restriction that would not hold.
func TestOptions_AWrongAuthenticationConfigurationIsFoundToo(t *testing.T) {
	for field, want := range map[string]string{
		"anonymus: {enabled: false}":                      `unknown field "anonymus"`,
		"jwt: [{issuer: {url: 'http://issuer.example'}}]": "URL scheme must be https",
	} {
		file := filepath.Join(t.TempDir(), "authentication.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+field+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parse("--authentication-config=" + file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--authentication-config: ") ||
			!strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", field, err, want)
		}
	}
}

// A file that --admission-control-config-file names for a plugin is found too, relative to it. One for a plugin that is
// off is not read.
func TestOptions_AMissingFileOfAnAdmissionPluginIsFoundToo(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for plugin, want := range map[string]string{
		"{name: ResourceQuota, path: quota.yaml}":                      "plugin ResourceQuota: open " + filepath.Join(dir, "quota.yaml"),
		"{name: ResourceQuota, path: /nonexistent}":                    "plugin ResourceQuota: open /nonexistent",
		"{name: ResourceQuota, path: there}":                           "",
		"{name: ResourceQuota, path: /nonexistent, configuration: {}}": "",
		"{name: ImagePolicyWebhook, path: /nonexistent}":               "",
	} {
		file := filepath.Join(dir, "admission.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: ["+plugin+"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parse("--admission-control-config-file=" + file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Complete(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "--admission-control-config-file: "+file+": "+want) {
			t.Errorf("%s: error is %v, want %q", plugin, err, want)
		}
	}
}
