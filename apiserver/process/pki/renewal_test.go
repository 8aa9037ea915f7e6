package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"byre/apiserver/process/pki"
)

const day = 24 * time.Hour

func TestInspect_ShowsEachCertificate(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	remove(t, files.FrontProxyCAKey)
	remove(t, files.KubeletClientCert)
	status, err := pki.Inspect(r.Dir, r.Kubeconfig, start.Add(5*day))
	if err != nil {
		t.Fatal(err)
	}
	year, decade := start.Add(365*day), start.Add(3650*day)
	want := []pki.CertificateStatus{
		{Name: "admin.kubeconfig", Subject: "CN=byre-admin,O=kubeadm:cluster-admins", ExpirationDate: year,
			ResidualTimeSeconds: 360 * 86400, CAName: "ca"},
		{
			Name: "apiserver", Subject: "CN=kube-apiserver", Names: []string{"localhost", "127.0.0.1", "10.0.0.1"},
			ExpirationDate: year, ResidualTimeSeconds: 360 * 86400, CAName: "ca",
		},
		{Name: "apiserver-kubelet-client", Missing: true},
		{Name: "front-proxy-client", Subject: "CN=front-proxy-client", ExpirationDate: year, ResidualTimeSeconds: 360 * 86400,
			CAName: "front-proxy-ca", ExternallyManaged: true},
	}
	if diff := cmp.Diff(want, status.Certificates); diff != "" {
		t.Error(diff)
	}
	want = []pki.CertificateStatus{
		{Name: "ca", Subject: "CN=kubernetes", Names: []string{"kubernetes"}, ExpirationDate: decade,
			ResidualTimeSeconds: 3645 * 86400},
		{Name: "front-proxy-ca", Subject: "CN=front-proxy-ca", Names: []string{"front-proxy-ca"}, ExpirationDate: decade,
			ResidualTimeSeconds: 3645 * 86400, ExternallyManaged: true},
	}
	if diff := cmp.Diff(want, status.CertificateAuthorities); diff != "" {
		t.Error(diff)
	}
}

func TestInspect_OfNothingIsMissing(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	status, err := pki.Inspect(r.Dir, r.Kubeconfig, start)
	if err != nil || len(status.Certificates) != 4 ||
		slices.ContainsFunc(status.Certificates, func(c pki.CertificateStatus) bool {
			return !c.Missing
		}) {
		t.Errorf("%+v, %v", status, err)
	}
}

// Renew replaces certificates and keys, and keeps names, subjects and the CA.
func TestRenew_KeepsNamesAndCAs(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	kept := []string{files.CACert, files.CAKey, files.FrontProxyCA, files.FrontProxyCAKey, files.ServiceAccountKey,
		files.ServiceAccount}
	before := contents(t, kept)
	old := cert(t, files.ServingCert)
	r.Now = start.Add(100 * day)
	for _, name := range pki.RenewableNames() {
		if err := pki.Renew(pki.Config{Dir: r.Dir, Kubeconfig: r.Kubeconfig, Now: r.Now}, name); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.EqualFunc(before, contents(t, kept), bytes.Equal) {
		t.Error("a CA or the service account key has changed")
	}
	for _, pair := range [][3]string{
		{files.ServingCert, files.ServingKey, files.CACert}, {files.KubeletClientCert, files.KubeletKey, files.CACert},
		{files.FrontProxyCert, files.FrontProxyKey, files.FrontProxyCA},
	} {
		if _, err := tls.LoadX509KeyPair(pair[0], pair[1]); err != nil {
			t.Error(err)
		}
		renewed := cert(t, pair[0])
		if !renewed.NotAfter.Equal(start.Add(465 * day)) {
			t.Errorf("%s ends on %v", pair[0], renewed.NotAfter)
		}
		verify(t, renewed, cert(t, pair[2]), r.Now, "", x509.ExtKeyUsageAny)
	}
	renewed := cert(t, files.ServingCert)
	if !slices.Equal(renewed.DNSNames, old.DNSNames) || len(renewed.IPAddresses) != len(old.IPAddresses) ||
		renewed.Subject.String() != old.Subject.String() {
		t.Errorf("the serving certificate became one of %s for %v and %v", renewed.Subject, renewed.DNSNames,
			renewed.IPAddresses)
	}
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if certs, err := certutil.ParseCertsPEM(config.CertData); err != nil || !certs[0].NotAfter.Equal(start.Add(465*day)) {
		t.Errorf("the administrator's certificate is %+v, %v", certs, err)
	}
	if _, report := ensure(t, r); len(report.Written) > 0 {
		t.Errorf("the next start writes %v", report.Written)
	}
}

func contents(t *testing.T, paths []string) [][]byte {
	t.Helper()
	var all [][]byte
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	return all
}

func TestRenew_SaysWhatToDoInstead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, of string
		spoil    func(t *testing.T, f pki.Files)
		want     string
	}{
		{"authority", "ca", nil, "ca is not renewed"},
		{"unknown", "etcd-server", nil, `there is no certificate "etcd-server": name one of admin.kubeconfig, apiserver,`},
		{"missing", "apiserver", func(t *testing.T, f pki.Files) { remove(t, f.ServingCert) }, `"byre serve" makes it`},
		{"no key of the CA", "front-proxy-client", func(t *testing.T, f pki.Files) {
			remove(t, f.FrontProxyCAKey)
		}, "renew it where the key is kept"},
		{"of another CA", "apiserver", func(t *testing.T, f pki.Files) {
			rename(t, f.FrontProxyCert, f.ServingCert)
		}, "byre did not issue it"},
		{"no CA", "apiserver", func(t *testing.T, f pki.Files) { remove(t, f.CACert) }, "ca.crt does not exist"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := request(t.TempDir())
			files, _ := ensure(t, r)
			if test.spoil != nil {
				test.spoil(t, files)
			}
			if err := pki.Renew(r, test.of); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
	if err := pki.Renew(request(t.TempDir()), "apiserver"); err == nil ||
		!strings.Contains(err.Error(), "does not exist: name the directory") {
		t.Errorf("without a directory the error is %v", err)
	}
}

// After a crash between the write of a key and the write of its certificate, the next start
// repairs the pair.
func TestEnsure_RepairsAHalfWrittenPair(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(t *testing.T, r pki.Config, f pki.Files){
		"of a first start": func(t *testing.T, _ pki.Config, f pki.Files) { remove(t, f.ServingCert) },
		"of a renewal": func(t *testing.T, r pki.Config, f pki.Files) {
			if err := pki.Renew(r, "apiserver"); err != nil {
				t.Fatal(err)
			}
			rename(t, f.ServingCert+".bak", f.ServingCert)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t.TempDir())
			files, _ := ensure(t, r)
			crash(t, r, files)
			for range 2 { // after the second crash too
				ensure(t, r)
				if _, err := tls.LoadX509KeyPair(files.ServingCert, files.ServingKey); err != nil {
					t.Error(err)
				}
				crash(t, r, files)
			}
		})
	}
}

// A first start may end after each file that it writes. The next one writes the others.
func TestEnsure_CompletesAFirstStart(t *testing.T) {
	t.Parallel()
	_, complete := ensure(t, request(t.TempDir()))
	for n, next := range complete.Written {
		t.Run("before "+next, func(t *testing.T) {
			t.Parallel()
			r := request(t.TempDir())
			files, _ := ensure(t, r)
			path := func(name string) string {
				if name == filepath.Base(r.Kubeconfig) {
					return r.Kubeconfig
				}
				return filepath.Join(r.Dir, name)
			}
			// the certificate of a CA has another name until its key is there
			if stem := strings.TrimSuffix(next, filepath.Ext(next)); strings.HasSuffix(stem, "ca") {
				copyFile(t, path(stem+".crt"), path(stem+".crt.new"))
			}
			if n <= slices.Index(complete.Written, "apiserver.key") {
				remove(t, path("issued.json"))
			}
			for _, name := range complete.Written[n:] {
				remove(t, path(name))
			}
			before := readDir(t, r.Dir)
			ensure(t, r)
			after := readDir(t, r.Dir)
			for _, key := range []string{"ca.key", "front-proxy-ca.key", "sa.key"} {
				if before[key] != nil && !bytes.Equal(before[key], after[key]) {
					t.Errorf("%s was replaced", key)
				}
			}
			expectPairs(t, files)
			if _, report := ensure(t, r); len(report.Written) > 0 {
				t.Errorf("the next start writes %v", report.Written)
			}
			for name := range after {
				if strings.HasSuffix(name, ".new") {
					t.Errorf("%s stays", name)
				}
			}
		})
	}
}

// A certificate for another key does not complete a CA.
func TestEnsure_RefusesTheCertificateOfAnotherKey(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	remove(t, files.CACert)
	rename(t, files.FrontProxyCA, files.CACert+".new")
	if _, _, err := pki.Ensure(r); err == nil || !strings.Contains(err.Error(), "ca.crt does not") {
		t.Errorf("error is %v", err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, contents(t, []string{from})[0], 0o600); err != nil {
		t.Fatal(err)
	}
}

// A program of before has recorded the keys only.
func TestEnsure_RenewsWhatItIssuedBefore(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	ensure(t, r)
	path := filepath.Join(r.Dir, "issued.json")
	text := contents(t, []string{path})[0]
	keys := regexp.MustCompile(`"cert-sha256:[0-9a-f]+",\s*`).ReplaceAll(text, nil)
	if err := os.WriteFile(path, keys, 0o600); err != nil || len(keys) == len(text) {
		t.Fatal(err, string(text))
	}
	r.Now = start.Add(340 * day)
	if _, report := ensure(t, r); len(report.Written) != 7 || len(report.Foreign) > 0 {
		t.Errorf("the report is %+v", report)
	}
	if after := contents(t, []string{path})[0]; !bytes.Contains(after, []byte(`"cert-sha256:`)) {
		t.Errorf("%s", after)
	}
}

func TestNewKubeconfig_IsRefused(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	for _, test := range []struct {
		user   pki.User
		server string
		want   string
	}{
		{pki.User{Lifetime: day}, "", "--user must not be empty"},
		{pki.User{Name: "a", Groups: []string{""}, Lifetime: day}, "", "--group must not be empty"},
		{pki.User{Name: "a"}, "", "--duration must be positive"},
		{pki.User{Name: "a", Lifetime: 4000 * day}, "", "--duration must end before the CA does, on 2036-02-27"},
		{pki.User{Name: "a", Lifetime: day}, "byre.example.com", "--server must be a URL"},
	} {
		r.Server = test.server
		if text, err := pki.NewKubeconfig(r, test.user); err == nil || !strings.Contains(err.Error(), test.want) ||
			text != nil {
			t.Errorf("%+v: %v, want %q", test.user, err, test.want)
		}
	}
	r.Server = ""
	remove(t, files.CAKey)
	if _, err := pki.NewKubeconfig(r, pki.User{Name: "a", Lifetime: day}); err == nil ||
		!strings.Contains(err.Error(), "where the key of the CA is kept") {
		t.Errorf("without the key of the CA the error is %v", err)
	}
}
