package pki_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{usage}})
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
	for _, secret := range []string{files.CAKey, files.ServingKey, files.KubeletKey, files.FrontProxyCAKey,
		files.FrontProxyKey, files.ServiceAccountKey, r.Kubeconfig} {
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
	if bytes.Equal(renewed.AuthInfos["byre-admin"].ClientCertificateData,
		config.AuthInfos["byre-admin"].ClientCertificateData) {
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
		{"another name", func(r *pki.Config) {
			r.Hosts = append(r.Hosts, "byre.example")
		}, []string{"apiserver.crt", "apiserver.key"}},
		{"another address", func(r *pki.Config) {
			r.Hosts = append(r.Hosts, "192.0.2.7")
		}, []string{"apiserver.crt", "apiserver.key"}},
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
		{"key of another authority", func(t *testing.T, f pki.Files) {
			rename(t, f.FrontProxyCAKey, f.CAKey)
		}, "is not the key of"},
		{"key without its authority", func(t *testing.T, f pki.Files) { remove(t, f.CACert) }, "ca.crt does not"},
		{"public key without its private key", func(t *testing.T, f pki.Files) {
			remove(t, f.ServiceAccountKey)
		}, "sa.key does not"},
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

// A pair that byre did not issue is used as it is, whoever signed it: byre writes none of its
// files, and says so.
func TestEnsure_KeepsWhatItDidNotIssue(t *testing.T) {
	t.Parallel()
	leaves := []string{"apiserver.crt", "apiserver-kubelet-client.crt", "front-proxy-client.crt"}
	for name, make := range map[string]func(t *testing.T, r pki.Config) (foreign []string){
		"a serving pair of another CA, before the first start": func(t *testing.T, r pki.Config) []string {
			other, _ := ensure(t, request(t.TempDir()))
			copyFiles(t, r.Dir, other.ServingCert, other.ServingKey)
			return leaves[:1]
		},
		"a serving pair of another CA, later": func(t *testing.T, r pki.Config) []string {
			ensure(t, r)
			other, _ := ensure(t, request(t.TempDir()))
			copyFiles(t, r.Dir, other.ServingCert, other.ServingKey)
			return leaves[:1]
		},
		"a certificate of another CA for byre's key": func(t *testing.T, r pki.Config) []string {
			own, _ := ensure(t, r)
			other, _ := ensure(t, request(t.TempDir()))
			signByAnother(t, own, other)
			return leaves[:1]
		},
		// As kubeadm leaves it: every leaf is signed by the CA whose key is there.
		"all files of another program": func(t *testing.T, r pki.Config) []string {
			ensure(t, r)
			remove(t, filepath.Join(r.Dir, "issued.json"))
			remove(t, r.Kubeconfig)
			return leaves
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(t.TempDir())
			foreign := make(t, r)
			ensure(t, r)
			before := readDir(t, r.Dir)
			r.Hosts = append(r.Hosts, "another.example")
			for _, r.Now = range []time.Time{start, start.Add(340 * day), start.Add(400 * day)} {
				_, report := ensure(t, r)
				if !slices.Equal(report.Foreign, foreign) {
					t.Errorf("foreign are %v, want %v", report.Foreign, foreign)
				}
				if stale := slices.Contains(report.NotRenewable, foreign[0]); stale != r.Now.After(start) {
					t.Errorf("on %v not renewable are %v", r.Now, report.NotRenewable)
				}
			}
			after := readDir(t, r.Dir)
			for _, file := range foreign {
				for _, file := range []string{file, strings.TrimSuffix(file, "crt") + "key"} {
					if !bytes.Equal(before[file], after[file]) || after[file+".bak"] != nil {
						t.Errorf("%s was written", file)
					}
				}
				expectNotRenewed(t, r, strings.TrimSuffix(file, ".crt"))
			}
			if len(foreign) == len(leaves) && len(after) != len(before) {
				t.Errorf("there are %d files, and were %d", len(after), len(before))
			}
		})
	}
}

// signByAnother replaces the serving certificate by one that another CA has signed for its key.
func signByAnother(t *testing.T, own, other pki.Files) {
	t.Helper()
	signer, err := tls.LoadX509KeyPair(other.CACert, other.CAKey)
	if err != nil {
		t.Fatal(err)
	}
	template := cert(t, own.ServingCert)
	der, err := x509.CreateCertificate(rand.Reader, template, cert(t, other.CACert), template.PublicKey, signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own.ServingCert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		0o644); err != nil {
		t.Fatal(err)
	}
}

func expectNotRenewed(t *testing.T, r pki.Config, name string) {
	t.Helper()
	status, err := pki.Inspect(r.Dir, r.Kubeconfig, r.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range status.Certificates {
		if c.Name == name && !c.ExternallyManaged {
			t.Errorf("%s is not externally managed", name)
		}
	}
	if err := pki.Renew(r, name); err == nil || !strings.Contains(err.Error(), "byre did not issue it") {
		t.Errorf("renew %s: %v", name, err)
	}
}

// A file that byre did not write is not completed to a pair: it may be waiting for the other.
func TestEnsure_RefusesHalfAPairOfAnother(t *testing.T) {
	t.Parallel()
	other, _ := ensure(t, request(t.TempDir()))
	for _, file := range []string{other.ServingKey, other.ServingCert} {
		r := request(t.TempDir())
		copyFiles(t, r.Dir, file)
		before := readDir(t, r.Dir)
		if _, _, err := pki.Ensure(r); err == nil ||
			!strings.Contains(err.Error(), "are not a pair, and byre did not issue them") {
			t.Errorf("%s alone: %v", file, err)
		}
		if after := readDir(t, r.Dir); !bytes.Equal(before[filepath.Base(file)], after[filepath.Base(file)]) {
			t.Errorf("%s was written", file)
		}
	}
}

// The administrator's own credentials in the kubeconfig stay.
func TestKubeconfig_KeepsAnotherCertificate(t *testing.T) {
	t.Parallel()
	r, other := request(t.TempDir()), request(t.TempDir())
	ensure(t, r)
	ensure(t, other)
	text, err := pki.NewKubeconfig(other, pki.User{Name: "byre-admin", Lifetime: day})
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.NewKubeconfig(other, pki.User{Name: "mine", Lifetime: day})
	if err != nil {
		t.Fatal(err)
	}
	// A certificate of the name byre-admin is byre's, and another CA's is replaced.
	for kubeconfig, replaced := range map[string]bool{string(text): true,
		strings.ReplaceAll(string(own), "name: mine\n", "name: byre-admin\n"): false} {
		if err := os.WriteFile(r.Kubeconfig, []byte(kubeconfig), 0o600); err != nil {
			t.Fatal(err)
		}
		ensure(t, r)
		after, err := os.ReadFile(r.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		key := kubeconfig[strings.Index(kubeconfig, "client-key-data"):]
		if kept := bytes.Contains(after, []byte(strings.TrimSpace(key))); kept == replaced {
			t.Errorf("kept is %v of\n%s", kept, kubeconfig)
		}
	}
}

// What a renewal replaces stays beside it, also for its owner only.
func TestRenew_KeepsWhatItReplaces(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	paths := []string{files.ServingCert, files.ServingKey, r.Kubeconfig}
	before := contents(t, paths)
	if err := errors.Join(pki.Renew(r, "apiserver"), pki.Renew(r, "admin.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		kept, err := os.ReadFile(path + ".bak")
		if err != nil || !bytes.Equal(kept, before[i]) {
			t.Errorf("%s.bak is not what was replaced (%v)", path, err)
		}
		info, err := os.Stat(path)
		backup, backupErr := os.Stat(path + ".bak")
		if err != nil || backupErr != nil || info.Mode() != backup.Mode() {
			t.Errorf("the modes are %v and %v", info, backup)
		}
	}
}

// A renewal writes over no file with the suffix .bak that another has made: the user's own key may
// have been moved there.
func TestRenew_KeepsTheBackupsOfAnother(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	paths := []string{files.ServingKey, r.Kubeconfig}
	const own = "the user's own"
	for _, path := range paths {
		if err := os.WriteFile(path+".bak", []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		before := contents(t, paths)
		if err := errors.Join(pki.Renew(r, "apiserver"), pki.Renew(r, "admin.kubeconfig")); err != nil {
			t.Fatal(err)
		}
		for i, path := range paths {
			after := contents(t, []string{path + ".bak", path + ".bak.1"})
			if string(after[0]) != own || !bytes.Equal(after[1], before[i]) {
				t.Errorf("%s.bak is %q, and %[1]s.bak.1 %q", path, after[0], after[1])
			}
			if _, err := os.Stat(path + ".bak.2"); err == nil {
				t.Errorf("%s.bak.2 exists", path)
			}
		}
	}
}

// A running server renews before the expiry, and makes no CA in place of one that is gone.
func TestRun_RenewsBeforeTheExpiry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := request(dir)
		r.Now = time.Now().Add(-335*day + 90*time.Minute) // to be renewed in 90 minutes
		files, _ := ensure(t, r)
		before := cert(t, files.ServingCert)
		r.Now = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var reports []pki.Report
		var errs []error
		go func() {
			_ = pki.Run(ctx, r, time.Now, func(report pki.Report, err error) {
				reports, errs = append(reports, report), append(errs, err)
			})
		}()
		time.Sleep(3*time.Hour + time.Second)
		if len(reports) != 3 || len(reports[0].Written) != 0 || len(reports[1].Written) != 7 || len(reports[2].Written) != 0 {
			t.Errorf("the reports are %+v, %v", reports, errs)
		}
		if after := cert(t, files.ServingCert); !after.NotAfter.After(before.NotAfter) {
			t.Errorf("the certificate ends on %v", after.NotAfter)
		}
		remove(t, files.CACert)
		time.Sleep(time.Hour)
		if _, err := os.Stat(files.CACert); err == nil || errs[3] == nil {
			t.Errorf("without the CA: %v", errs)
		}
	})
}

// The wall clock is set after the start, and back, while the ticker goes on. Within a minute the certificates are valid
// by it.
func TestRun_FollowsTheWallClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		r := request(dir)
		r.Now = now()
		files, _ := ensure(t, r)
		ahead.Store(int64(395 * day))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		written := 0
		go func() {
			_ = pki.Run(ctx, r, now, func(report pki.Report, err error) {
				written += len(report.Written)
				if err != nil {
					t.Error(err)
				}
			})
		}()
		for i, by := range []time.Duration{395 * day, 395 * day, 30 * time.Minute, 0} {
			ahead.Store(int64(by))
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
			if want := []int{7, 7, 14, 21}[i]; written != want {
				t.Errorf("with a clock that is %v ahead %d files were written, want %d", by, written, want)
			}
			verify(t, cert(t, files.ServingCert), cert(t, files.CACert), now(), "localhost", x509.ExtKeyUsageServerAuth)
		}
	})
}

// With its CA about to expire, a certificate can't last longer, and is not renewed again and
// again.
func TestEnsure_RenewsOnceBeforeTheCAExpires(t *testing.T) {
	t.Parallel()
	r := request(t.TempDir())
	files, _ := ensure(t, r)
	end := cert(t, files.CACert).NotAfter
	r.Now = end.Add(-20 * day)
	ensure(t, r)
	if _, report := ensure(t, r); len(report.Written) > 0 {
		t.Errorf("%v were written again", report.Written)
	}
	verify(t, cert(t, files.ServingCert), cert(t, files.CACert), end.Add(-time.Minute), "localhost",
		x509.ExtKeyUsageServerAuth)
}

func copyFiles(t *testing.T, dir string, from ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, data := range contents(t, from) {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(from[i])), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// readDir returns the content of each file.
func readDir(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		files[entry.Name()] = contents(t, []string{filepath.Join(dir, entry.Name())})[0]
	}
	return files
}

// The kubeconfig verifies the server by the CA of the certificate that is served, and expects
// a name that it has.
func TestKubeconfig_VerifiesACertificateOfAnotherCA(t *testing.T) {
	t.Parallel()
	r, elsewhere := request(t.TempDir()), request(t.TempDir())
	elsewhere.Hosts = []string{"byre.example.com"}
	other, _ := ensure(t, elsewhere)
	own := pki.Paths(r.Dir)
	for _, test := range []struct{ cert, ca, trusted, name string }{
		{other.ServingCert, other.CACert, other.CACert, "byre.example.com"},
		{"", "", own.CACert, ""},
		{other.ServingCert, other.CACert, other.CACert, "byre.example.com"},
		{other.ServingCert, "", own.CACert, "byre.example.com"},
	} {
		r.ServingCert, r.RootCA = test.cert, test.ca
		_, report := ensure(t, r)
		config, err := clientcmd.LoadFromFile(r.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		cluster := config.Clusters["byre"]
		if verified := report.Unverified == nil; verified != (test.cert == "" || test.ca != "") ||
			cluster.TLSServerName != test.name ||
			!bytes.Equal(cluster.CertificateAuthorityData, contents(t, []string{test.trusted})[0]) {
			t.Errorf("%+v: the name is %q, unverified %v", test, cluster.TLSServerName, report.Unverified)
		}
	}
}
