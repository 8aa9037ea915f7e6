package serving_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"byre/apiserver/process/serving"
)

// Of two certificates for one name a client gets that of the first flag, as from kube-apiserver.
func TestCertificates_TheFirstForANameIsServed(t *testing.T) {
	t.Parallel()
	write := func(name string) (certFile, keyFile string) {
		chain, key, err := cert.GenerateSelfSignedCertKey("api.example.com", nil, []string{name + ".example.com"})
		if err != nil {
			t.Fatal(err)
		}
		certFile, keyFile = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
		for file, content := range map[string][]byte{certFile: chain, keyFile: key} {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return certFile, keyFile
	}
	var sni []cliflag.NamedCertKey
	for _, name := range []string{"first", "second"} {
		certFile, keyFile := write(name)
		sni = append(sni, cliflag.NamedCertKey{CertFile: certFile, KeyFile: keyFile})
	}
	certFile, keyFile := write("serving")
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if _, err := serving.NewCertificates(config, certFile, keyFile, nil, sni); err != nil {
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
