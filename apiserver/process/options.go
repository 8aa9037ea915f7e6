package process

import (
	"fmt"
	"net"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	netutils "k8s.io/utils/net"
)

// ServingOptions say where and how the server listens. They are plain data. The usage of each flag says
// what its field means.
type ServingOptions struct {
	BindAddress         net.IP
	Port                int
	InsecurePort        int
	InsecureBindAddress net.IP

	CertDir, CertFile, KeyFile, RootCAFile string
	SNICertKeys                            []cliflag.NamedCertKey
	MinVersion                             string
	CipherSuites                           []string
	CurvePreferences                       []int32 // identifiers of crypto/tls (tls.CurveID)

	DisableHTTP2            bool
	MaxStreams              int
	ShareAddress, SharePort bool
}

// NewServingOptions returns the defaults.
func NewServingOptions() ServingOptions {
	return ServingOptions{
		BindAddress:         netutils.ParseIPSloppy("0.0.0.0"),
		Port:                6443,
		InsecureBindAddress: netutils.ParseIPSloppy("127.0.0.1"),
	}
}

// AddFlags adds the flags of the section "secure serving".
func (o *ServingOptions) AddFlags(fs *pflag.FlagSet) {
	fs.IPVar(&o.BindAddress, "bind-address", o.BindAddress,
		"IP address to listen on; 0.0.0.0 or :: is all interfaces.")
	fs.IntVar(&o.Port, "secure-port", o.Port,
		"Port to serve HTTPS on; 0 lets the system choose one.")
	fs.IntVar(&o.InsecurePort, "insecure-port", o.InsecurePort,
		"Port to serve plain HTTP on, for tools on this machine: without TLS, and everybody is an administrator. 0 is off.")
	fs.IPVar(&o.InsecureBindAddress, "insecure-bind-address", o.InsecureBindAddress,
		"Loopback address for --insecure-port; any other is refused.")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir,
		"Directory for the certificates that the server makes and keeps, under kubeadm's names. If not set, pki below --data-dir.")
	fs.StringVar(&o.CertFile, "tls-cert-file", o.CertFile,
		"File with the serving certificate and its intermediates. Reloaded when it changes. If not set, the server makes its own.")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", o.KeyFile,
		"File with the private key of --tls-cert-file.")
	fs.StringVar(&o.RootCAFile, "root-ca-file", o.RootCAFile,
		"File with the CA that --tls-cert-file is verified by, for admin.kubeconfig and for Pods: the ConfigMap kube-root-ca.crt, and the Secrets of service accounts. If not set, the server's own CA.")
	fs.Var(cliflag.NewNamedCertKeyArray(&o.SNICertKeys), "tls-sni-cert-key",
		"A certificate and key file, optionally with the domains it is for: 'foo.crt,foo.key:*.foo.com,foo.com'. May be repeated.")
	fs.StringVar(&o.MinVersion, "tls-min-version", o.MinVersion,
		"Lowest TLS version: VersionTLS12 or VersionTLS13. If not set, VersionTLS12.")
	fs.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", o.CipherSuites,
		"Cipher suites of TLS 1.2, by Go's names. If not set, Go's defaults.")
	fs.Int32SliceVar(&o.CurvePreferences, "tls-curve-preferences", o.CurvePreferences,
		"Key exchange mechanisms by their numbers in crypto/tls. If not set, Go's defaults.")
	fs.BoolVar(&o.DisableHTTP2, "disable-http2-serving", o.DisableHTTP2,
		"Serve HTTP/1.1 only.")
	fs.IntVar(&o.MaxStreams, "http2-max-streams-per-connection", o.MaxStreams,
		"How many streams a client may have open on one HTTP/2 connection; 0 means 100.")
	fs.BoolVar(&o.SharePort, "permit-port-sharing", o.SharePort,
		"Set SO_REUSEPORT, so that several processes can listen on the port.")
	fs.BoolVar(&o.ShareAddress, "permit-address-sharing", o.ShareAddress,
		"Set SO_REUSEADDR, so as not to wait for sockets in TIME_WAIT.")
}

// Validate returns one error for each invalid flag.
func (o *ServingOptions) Validate() []error {
	var errs []error
	unless := func(holds bool, format string, args ...any) {
		if !holds {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(o.Port >= 0 && o.Port <= 65535, "--secure-port must be between 0 and 65535, not %d", o.Port)
	unless(o.BindAddress != nil, "--bind-address must be an IP address")
	unless(o.InsecurePort >= 0 && o.InsecurePort <= 65535, "--insecure-port must be between 0 and 65535, not %d", o.InsecurePort)
	unless(o.InsecureBindAddress.IsLoopback(),
		"--insecure-bind-address must be a loopback address, not %s: everybody who reaches it is an administrator", o.InsecureBindAddress)
	unless((o.CertFile == "") == (o.KeyFile == ""), "--tls-cert-file and --tls-private-key-file must be given together")
	unless(o.MaxStreams >= 0, "--http2-max-streams-per-connection must not be negative")
	version, err := cliflag.TLSVersion(o.MinVersion)
	unless(err == nil, "--tls-min-version: %w", err)
	unless(err != nil || version >= minTLSVersion, "--tls-min-version: %s is no longer safe, the lowest is VersionTLS12", o.MinVersion)
	_, err = cliflag.TLSCipherSuites(o.CipherSuites)
	unless(err == nil, "--tls-cipher-suites: %w", err)
	_, err = cliflag.TLSCurvePreferences(o.CurvePreferences)
	unless(err == nil, "--tls-curve-preferences: %w", err)
	return errs
}
