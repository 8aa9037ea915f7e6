package process_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"byre/apiserver/process"
)

// writePair writes a certificate for names, and its key, to a folder.
func writePair(t *testing.T, dir string, names ...string) (certFile, keyFile string) {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(names[0], nil, names[1:])
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, content := range map[string][]byte{certFile: chain, keyFile: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Of two certificates for one name a client gets that of the first flag, as from kube-apiserver.
func TestCertificates_TheFirstForANameIsServed(t *testing.T) {
	t.Parallel()
	var sni []cliflag.NamedCertKey
	for _, name := range []string{"first", "second"} {
		certFile, keyFile := writePair(t, t.TempDir(), "api.example.com", name+".example.com")
		sni = append(sni, cliflag.NamedCertKey{CertFile: certFile, KeyFile: keyFile})
	}
	certFile, keyFile := writePair(t, t.TempDir(), "api.example.com", "serving.example.com")
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if _, err := process.NewCertificates(config, certFile, keyFile, nil, sni); err != nil {
		t.Fatal(err)
	}
	served, err := config.GetConfigForClient(&tls.ClientHelloInfo{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	first := served.NameToCertificate["api.example.com"] //nolint:staticcheck // upstream fills it
	if err := first.Leaf.VerifyHostname("first.example.com"); err != nil {
		t.Error(err)
	}
}
