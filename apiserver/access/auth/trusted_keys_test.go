package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"byre/apiserver/process/pki"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// A server starts if it accepts the tokens that the previous one issued and the previous
// one accepts its own: keys can be rotated in steps.
func TestTrustedKeys_AcceptsKeysBothWaysWhileRotating(t *testing.T) {
	t.Parallel()
	keys := func(names string) []string { return strings.Fields(names) }
	store := runStore(t)
	for _, step := range []struct {
		what    string
		own     trustedKeys
		accept  bool
		refused string
	}{
		{"the first start", trustedKeys{keys("ca"), keys("a"), "a"}, false, ""},
		{"the second", trustedKeys{keys("ca"), keys("a"), "a"}, false, ""},
		{"another CA", trustedKeys{keys("other"), keys("a"), "a"}, false,
			"the CA has the key other, the CA that the database was served with has ca"},
		{"another service account key", trustedKeys{keys("ca"), keys("b"), "b"}, false, "would be signed by b"},
		{"a new key that nobody else verifies yet", trustedKeys{keys("ca"), keys("a b"), "b"}, false, "would be signed by b"},
		{"a new key that verifies", trustedKeys{keys("ca"), keys("a b"), "a"}, false, ""},
		{"a new key that signs", trustedKeys{keys("ca"), keys("a b"), "b"}, false, ""},
		{"a replica that is late", trustedKeys{keys("ca"), keys("a"), "a"}, false, "signed by b"},
		{"without the old key", trustedKeys{keys("ca"), keys("b"), "b"}, false, ""},
		{"a CA that is added", trustedKeys{keys("ca2 ca"), keys("b"), "b"}, false, ""},
		{"a CA that is dropped", trustedKeys{keys("ca2"), keys("b"), "b"}, false, ""},
		{"the dropped CA", trustedKeys{keys("ca"), keys("b"), "b"}, false, "the CA has the key"},
		{"new keys on purpose", trustedKeys{keys("new"), keys("n"), "n"}, true, ""},
		{"the old ones", trustedKeys{keys("ca2"), keys("b"), "b"}, false, "the CA has the key"},
		{"the new ones again", trustedKeys{keys("new"), keys("n"), "n"}, false, ""},
	} {
		server := &TrustedKeys{own: step.own, acceptNew: step.accept}
		err := server.Check(t.Context(), store)
		if recordErr := server.Record(t.Context(), store); (err == nil) != (recordErr == nil) {
			t.Errorf("%s: Check %v, Record %v", step.what, err, recordErr)
		}
		if step.refused == "" && err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if step.refused != "" &&
			(err == nil || !strings.Contains(err.Error(), step.refused) || !strings.Contains(err.Error(), "--accept-new-keys")) {
			t.Errorf("%s: %v, want %q", step.what, err, step.refused)
		}
	}
}

// runStore runs an empty store until the test ends.
func runStore(t *testing.T) *sqlstore.Store {
	t.Helper()
	store := sqlstore.New(storetest.NewModel(), sqlstore.Options{Publish: func([]sqlstore.Change) {}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = store.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return store
}

// What was not recorded keeps no server out: a start that fails records nothing. Of two
// servers that start at the same time with different keys, the second to be ready fails.
func TestTrustedKeys_CountOnceRecorded(t *testing.T) {
	t.Parallel()
	store := runStore(t)
	one := &TrustedKeys{own: trustedKeys{[]string{"ca1"}, []string{"a"}, "a"}}
	two := &TrustedKeys{own: trustedKeys{[]string{"ca2"}, []string{"b"}, "b"}}
	for _, server := range []*TrustedKeys{one, two} {
		if err := server.Check(t.Context(), store); err != nil {
			t.Errorf("before any is recorded: %v", err)
		}
	}
	if err := two.Record(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	var untrusted *UntrustedKeyError
	if err := one.Record(t.Context(), store); !errors.As(err, &untrusted) {
		t.Errorf("the second is recorded, %v", err)
	}
}

// The error names the flags that the refused keys came from, or the directory if no flag
// was set.
func TestTrustedKeys_RefusalNamesWhereTheKeysCameFrom(t *testing.T) {
	t.Parallel()
	store := runStore(t)
	stored := trustedKeys{[]string{"ca"}, []string{"a"}, "a"}
	generated := pki.Paths("/data/pki")
	named := func(clientCA, signingKey string) map[string][]string {
		o := newAuthenticationOptions()
		o.ClientCert.ClientCA, o.SigningKeyFile = clientCA, signingKey
		return keyFiles(o)
	}
	files := named(generated.CACert, generated.ServiceAccountKey)
	if err := (&TrustedKeys{own: stored}).Record(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	otherCA, otherKey := trustedKeys{[]string{"x"}, []string{"a"}, "a"}, trustedKeys{[]string{"ca"}, []string{"x"}, "x"}
	flags := named("/etc/ca.crt", "/etc/sa.key")
	for _, test := range []struct {
		name       string
		own        trustedKeys
		files      map[string][]string
		want, lack string
	}{
		{"generated CA", otherCA, files, "pki/ of the other servers, or a backup of it, in /data/pki", "--client-ca-file"},
		{"generated service account key", otherKey, files, "pki/ of the other servers, or a backup of it, in /data/pki",
			"--service-account"},
		{"CA by flag", otherCA, flags, "--client-ca-file=/etc/ca.crt", "pki"},
		{"service account key by flag", otherKey, flags, "--service-account-signing-key-file=/etc/sa.key", "pki"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := (&TrustedKeys{own: test.own, files: test.files, certDir: "/data/pki"}).Check(t.Context(), store)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), test.lack) {
				t.Errorf("got %v, want %q and not %q", err, test.want, test.lack)
			}
		})
	}
}

// A start that would make keys other than those of the database is refused before it makes them.
func TestTrustedKeys_MissingKeysAreRefusedBeforeOthersAreMade(t *testing.T) {
	t.Parallel()
	empty, served := runStore(t), runStore(t)
	if err := (&TrustedKeys{own: trustedKeys{[]string{"ca"}, []string{"a"}, "a"}}).Record(t.Context(),
		served); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	in := func(name string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	files := pki.Paths(dir)
	ca, key := in("own-ca.crt"), in("own-sa.key")
	for _, test := range []struct {
		name, ca, key string
		store         *sqlstore.Store
		accept        bool
		want          string
	}{
		{"a new database", files.CACert, files.ServiceAccountKey, empty, false, ""},
		{"all are missing", files.CACert, files.ServiceAccountKey, served, false,
			"there is no " + files.CACert + ", and the database was served with the key ca: put the pki/"},
		{"the service account key is missing", ca, files.ServiceAccountKey, served, false,
			"there is no " + files.ServiceAccountKey},
		{"none is missing", ca, key, served, false, ""},
		{"the administrator's own, which byre does not make", "/nowhere/ca.crt", key, served, false, ""},
		{"new keys on purpose", files.CACert, files.ServiceAccountKey, served, true, ""},
	} {
		o := newAuthenticationOptions()
		o.ClientCert.ClientCA, o.SigningKeyFile = test.ca, test.key
		err := CheckMissing(t.Context(), test.store, o, dir, test.accept)
		if test.want == "" && err != nil || test.want != "" &&
			(err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "--accept-new-keys")) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// A signing key may have any form that kube-apiserver reads: OpenSSL and cert-manager
// write PKCS #8.
func TestTrustedKeys_ReadEachFormOfAPrivateKey(t *testing.T) {
	t.Parallel()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	modulus, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, block string
		der         func() ([]byte, error)
		public      any
	}{
		{"ECDSA, PKCS 8", "PRIVATE KEY", func() ([]byte, error) {
			return x509.MarshalPKCS8PrivateKey(curve)
		}, curve.Public()},
		{"ECDSA, SEC 1", "EC PRIVATE KEY", func() ([]byte, error) { return sec1, nil }, curve.Public()},
		{"RSA, PKCS 8", "PRIVATE KEY", func() ([]byte, error) {
			return x509.MarshalPKCS8PrivateKey(modulus)
		}, modulus.Public()},
		{"RSA, PKCS 1", "RSA PRIVATE KEY", func() ([]byte, error) {
			return x509.MarshalPKCS1PrivateKey(modulus), nil
		}, modulus.Public()},
	} {
		t.Run(test.name, func(t *testing.T) {
			der, err := test.der()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "sa.key")
			if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: test.block, Bytes: der}), 0o600); err != nil {
				t.Fatal(err)
			}
			public, err := x509.MarshalPKIXPublicKey(test.public)
			if err != nil {
				t.Fatal(err)
			}
			got, err := signingFingerprint(file)
			if want := fingerprintOf(public); err != nil || got != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		})
	}
}
