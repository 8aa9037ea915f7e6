package pki_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/process/pki"
)

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
	if err := os.WriteFile(own.ServingCert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
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
		if _, _, err := pki.Ensure(r); err == nil || !strings.Contains(err.Error(), "are not a pair, and byre did not issue them") {
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
	for kubeconfig, replaced := range map[string]bool{string(text): true, strings.ReplaceAll(string(own), "name: mine\n", "name: byre-admin\n"): false} {
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

// The wall clock is set after the start, and back, while the ticker goes on. Within a minute the certificates are valid by it.
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
	verify(t, cert(t, files.ServingCert), cert(t, files.CACert), end.Add(-time.Minute), "localhost", x509.ExtKeyUsageServerAuth)
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
		if verified := report.Unverified == nil; verified != (test.cert == "" || test.ca != "") || cluster.TLSServerName != test.name ||
			!bytes.Equal(cluster.CertificateAuthorityData, contents(t, []string{test.trusted})[0]) {
			t.Errorf("%+v: the name is %q, unverified %v", test, cluster.TLSServerName, report.Unverified)
		}
	}
}
