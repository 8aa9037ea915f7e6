package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"byre/apiserver/process/pki"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func request(dir string) pki.Config {
	return pki.Config{
		Dir:        filepath.Join(dir, "pki"),
		Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
		Server:     "https://127.0.0.1:6443",
		Hosts:      []string{"localhost", "127.0.0.1", "10.0.0.1"},
		Now:        start,
	}
}

func ensure(t *testing.T, r pki.Config) (pki.Files, pki.Report) {
	t.Helper()
	files, report, err := pki.Ensure(r)
	if err != nil {
		t.Fatal(err)
	}
	return files, report
}

func cert(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	certs, err := certutil.CertsFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func verify(t *testing.T, leaf, authority *x509.Certificate, at time.Time, host string, usage x509.ExtKeyUsage) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		t.Errorf("%s for %q: %v", leaf.Subject, host, err)
	}
}

func TestEnsure_FirstStartIssuesEverything(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, report := ensure(t, r)
	if info, err := os.Stat(r.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v, want mode 0700", info, err)
	}
	if len(report.Written) != 13 || len(report.NotRenewable) != 0 {
		t.Errorf("report is %+v, want 13 files made and none stale", report)
	}
	root := cert(t, files.CACert)
	serving := cert(t, files.ServingCert)
	for _, host := range r.Hosts {
		verify(t, serving, root, start, host, x509.ExtKeyUsageServerAuth)
	}
	verify(t, cert(t, files.KubeletClientCert), root, start, "", x509.ExtKeyUsageClientAuth)
	if got := cert(t, files.KubeletClientCert).Subject.String(); got != "CN=kube-apiserver-kubelet-client" {
		t.Errorf("the client of kubelets is %s", got)
	}
	verify(t, cert(t, files.FrontProxyCert), cert(t, files.FrontProxyCA), start, "", x509.ExtKeyUsageClientAuth)
	expectPairs(t, files)
	for _, secret := range []string{files.CAKey, files.ServingKey, files.KubeletKey, files.FrontProxyCAKey, files.FrontProxyKey, files.ServiceAccountKey, r.Kubeconfig} {
		info, err := os.Stat(secret)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %v, want 0600", secret, mode)
		}
	}
}

// expectPairs checks that each certificate has its key, and that its CA has signed it.
func expectPairs(t *testing.T, files pki.Files) {
	t.Helper()
	for _, pair := range [][3]string{
		{files.CACert, files.CAKey, files.CACert}, {files.FrontProxyCA, files.FrontProxyCAKey, files.FrontProxyCA},
		{files.ServingCert, files.ServingKey, files.CACert}, {files.KubeletClientCert, files.KubeletKey, files.CACert},
		{files.FrontProxyCert, files.FrontProxyKey, files.FrontProxyCA},
	} {
		if _, err := tls.LoadX509KeyPair(pair[0], pair[1]); err != nil {
			t.Error(err)
		}
		verify(t, cert(t, pair[0]), cert(t, pair[2]), start, "", x509.ExtKeyUsageAny)
	}
}

func TestKubeconfig_IsWritten(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != r.Server {
		t.Errorf("server is %s, want %s", config.Host, r.Server)
	}
	certs, err := certutil.ParseCertsPEM(config.CertData)
	if err != nil {
		t.Fatal(err)
	}
	verify(t, certs[0], cert(t, files.CACert), start, "", x509.ExtKeyUsageClientAuth)
	if got := certs[0].Subject.Organization; !slices.Equal(got, []string{"kubeadm:cluster-admins"}) {
		t.Errorf("groups are %v", got)
	}

	r.Server = "https://127.0.0.1:7443"
	if _, report := ensure(t, r); !slices.Equal(report.Written, []string{"admin.kubeconfig"}) {
		t.Errorf("after a change of port %v were made, want the kubeconfig only", report.Written)
	}
}

// TestKubeconfig_KeepsItsGroupsWhenItIsRenewed: the administrator of an older kubeconfig, or of a
// server without RBAC, stays in system:masters.
func TestKubeconfig_KeepsItsGroupsWhenItIsRenewed(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	r.AdminGroup = "system:masters"
	ensure(t, r)
	r.AdminGroup = ""
	renewed := r
	renewed.Now = start.Add(358 * 24 * time.Hour)
	for _, step := range []func() error{
		func() error { return nil },
		func() error { ensure(t, renewed); return nil },
		func() error { return pki.Renew(renewed, "admin.kubeconfig") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		certs, err := certutil.ParseCertsPEM(config.CertData)
		if err != nil {
			t.Fatal(err)
		}
		if got := certs[0].Subject.Organization; !slices.Equal(got, []string{"system:masters"}) {
			t.Errorf("groups are %v", got)
		}
	}
}

// Changes that the kubeconfig's owner made stay, even when its certificate is renewed.
func TestKubeconfig_KeepsItsOwnersChanges(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	ensure(t, r)
	config, err := clientcmd.LoadFromFile(r.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Clusters["byre"].Server = "https://byre.example.com"
	config.Clusters["other"] = &api.Cluster{Server: "https://192.0.2.1"}
	config.Contexts["mine"] = &api.Context{Cluster: "byre", AuthInfo: "byre-admin", Namespace: "team"}
	delete(config.Contexts, "byre-admin@byre")
	config.CurrentContext = "mine"
	if err := clientcmd.WriteToFile(*config, r.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(r.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, report := ensure(t, r); len(report.Written) > 0 {
		t.Errorf("at the next start %v were made", report.Written)
	}
	if after, err := os.ReadFile(r.Kubeconfig); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v, the kubeconfig became\n%s", err, after)
	}
	r.Now = start.Add(358 * 24 * time.Hour)
	ensure(t, r)
	renewed, err := clientcmd.LoadFromFile(r.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(renewed.AuthInfos["byre-admin"].ClientCertificateData, config.AuthInfos["byre-admin"].ClientCertificateData) {
		t.Error("the certificate was not renewed")
	}
	if len(renewed.Clusters) != 2 || len(renewed.Contexts) != 1 || renewed.CurrentContext != "mine" ||
		renewed.Contexts["mine"].Namespace != "team" || renewed.Clusters["byre"].Server != "https://byre.example.com" {
		t.Errorf("after the renewal it is %+v", renewed)
	}
}

func TestEnsure_LaterStartsReuseAndRenew(t *testing.T) {
	t.Parallel()
	renewed := []string{
		"admin.kubeconfig",
		"apiserver-kubelet-client.crt", "apiserver-kubelet-client.key", "apiserver.crt", "apiserver.key",
		"front-proxy-client.crt", "front-proxy-client.key",
	}
	tests := []struct {
		name   string
		change func(*pki.Config)
		made   []string
	}{
		{"nothing changed", func(*pki.Config) {}, nil},
		{"fewer names", func(r *pki.Config) { r.Hosts = r.Hosts[:1] }, nil},
		{"another name", func(r *pki.Config) { r.Hosts = append(r.Hosts, "byre.example") }, []string{"apiserver.crt", "apiserver.key"}},
		{"another address", func(r *pki.Config) { r.Hosts = append(r.Hosts, "192.0.2.7") }, []string{"apiserver.crt", "apiserver.key"}},
		{"eleven months later", func(r *pki.Config) { r.Now = start.Add(330 * day) }, nil},
		{"a week before expiry", func(r *pki.Config) { r.Now = start.Add(358 * day) }, renewed},
		{"years after expiry", func(r *pki.Config) { r.Now = start.Add(900 * day) }, renewed},
		{"after the clock was thirteen months ahead", func(r *pki.Config) {
			ahead := *r
			ahead.Now = start.Add(395 * day)
			ensure(t, ahead)
		}, renewed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t.TempDir())
			files, _ := ensure(t, r)
			before := cert(t, files.CACert)
			test.change(&r)
			_, report := ensure(t, r)
			slices.Sort(report.Written)
			if !slices.Equal(report.Written, test.made) {
				t.Errorf("made %v, want %v", report.Written, test.made)
			}
			if !before.Equal(cert(t, files.CACert)) {
				t.Error("the authority was replaced")
			}
			for _, host := range r.Hosts {
				verify(t, cert(t, files.ServingCert), before, r.Now, host, x509.ExtKeyUsageServerAuth)
			}
		})
	}
}

// A clock of before the CA is not right yet: what is issued by it would end too soon.
func TestEnsure_RenewsNothingBeforeItsCAIsValid(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	ensure(t, r)
	r.Now = start.Add(-900 * day)
	if _, report := ensure(t, r); len(report.Written) > 0 {
		t.Errorf("%v were written", report.Written)
	}
}

func TestEnsure_ServersShareADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := request(dir), request(dir)
	one.Hosts = append(one.Hosts, "192.0.2.1", "one.example")
	two.Hosts = append(two.Hosts, "192.0.2.2", "two.example")
	one.Kubeconfig, two.Kubeconfig = "", ""
	var group sync.WaitGroup
	for _, r := range []pki.Config{one, two} {
		group.Go(func() {
			if _, _, err := pki.Ensure(r); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, r := range []pki.Config{one, two} {
		files, report := ensure(t, r)
		if len(report.Written) != 0 {
			t.Errorf("%v had to be made again", report.Written)
		}
		for _, host := range r.Hosts {
			verify(t, cert(t, files.ServingCert), cert(t, files.CACert), start, host, x509.ExtKeyUsageServerAuth)
		}
	}
}

func TestEnsure_WorksWithoutTheCAKey(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	for _, key := range []string{files.CAKey, files.FrontProxyCAKey} {
		if err := os.Remove(key); err != nil {
			t.Fatal(err)
		}
	}
	if _, report := ensure(t, r); len(report.Written)+len(report.NotRenewable) != 0 {
		t.Errorf("report is %+v, want nothing to do", report)
	}
	r.Now = start.Add(358 * 24 * time.Hour)
	_, report := ensure(t, r)
	want := []string{"apiserver.crt", "apiserver-kubelet-client.crt", "front-proxy-client.crt", "admin.kubeconfig"}
	if !slices.Equal(report.NotRenewable, want) || len(report.Written) != 0 {
		t.Errorf("report is %+v, want these stale: %v", report, want)
	}
	r.Now = start.Add(400 * 24 * time.Hour)
	if _, report = ensure(t, r); !slices.Equal(report.NotRenewable, want) {
		t.Errorf("after expiry the report is %+v", report)
	}
	remove(t, files.ServingKey)
	if _, _, err := pki.Ensure(r); err == nil || !strings.Contains(err.Error(), "no key of ca.crt here") {
		t.Errorf("without a serving key the error is %v", err)
	}
}

// A pair that can't be replaced is used as it is, and a kubeconfig that can't be read stays.
func TestEnsure_UsesWhatItCannotReplace(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	r.Now = start.Add(340 * day)
	var inTheWay []string // of what is kept of the files that are replaced
	for _, file := range []string{files.ServingCert, files.KubeletKey, files.FrontProxyCert} {
		inTheWay = append(inTheWay, file+".bak")
		if err := os.Mkdir(file+".bak", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.Kubeconfig, []byte("users: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	_, report := ensure(t, r)
	for _, name := range append(inTheWay, r.Kubeconfig) {
		if report.Failed == nil || !strings.Contains(report.Failed.Error(), name) {
			t.Errorf("the error is %v, want one of %s", report.Failed, name)
		}
	}
	expectPairs(t, files)
	for _, name := range append(inTheWay, r.Kubeconfig) {
		remove(t, name)
	}
	if _, again := ensure(t, r); len(report.Written) != 0 || len(again.Written) != 7 || again.Failed != nil {
		t.Errorf("the reports are %+v and %+v", report, again)
	}
}

func TestEnsure_RefusesBrokenFiles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, f pki.Files)
		want  string
	}{
		{"key of another authority", func(t *testing.T, f pki.Files) { rename(t, f.FrontProxyCAKey, f.CAKey) }, "is not the key of"},
		{"key without its authority", func(t *testing.T, f pki.Files) { remove(t, f.CACert) }, "ca.crt does not"},
		{"public key without its private key", func(t *testing.T, f pki.Files) { remove(t, f.ServiceAccountKey) }, "sa.key does not"},
		{"not a certificate", func(t *testing.T, f pki.Files) { rename(t, f.CAKey, f.ServingCert) }, "apiserver.crt"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t.TempDir())
			files, _ := ensure(t, r)
			test.spoil(t, files)
			if _, _, err := pki.Ensure(r); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestEnsure_ReportsAnUnwritableDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, fs.FileMode(0o600)); err != nil {
		t.Fatal(err)
	}
	r := request(t.TempDir())
	r.Dir = filepath.Join(file, "pki")
	if _, _, err := pki.Ensure(r); err == nil || !strings.Contains(err.Error(), "certificate directory") {
		t.Errorf("error is %v", err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
