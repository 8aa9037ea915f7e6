package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	netutils "k8s.io/utils/net"

	"byre/apiserver/process/pki"
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
	unless(o.InsecurePort >= 0 && o.InsecurePort <= 65535, "--insecure-port must be between 0 and 65535, not %d",
		o.InsecurePort)
	unless(o.InsecureBindAddress.IsLoopback(),
		"--insecure-bind-address must be a loopback address, not %s: everybody who reaches it is an administrator",
		o.InsecureBindAddress)
	unless((o.CertFile == "") == (o.KeyFile == ""), "--tls-cert-file and --tls-private-key-file must be given together")
	unless(o.MaxStreams >= 0, "--http2-max-streams-per-connection must not be negative")
	version, err := cliflag.TLSVersion(o.MinVersion)
	unless(err == nil, "--tls-min-version: %w", err)
	unless(err != nil || version >= minTLSVersion, "--tls-min-version: %s is no longer safe, the lowest is VersionTLS12",
		o.MinVersion)
	_, err = cliflag.TLSCipherSuites(o.CipherSuites)
	unless(err == nil, "--tls-cipher-suites: %w", err)
	_, err = cliflag.TLSCurvePreferences(o.CurvePreferences)
	unless(err == nil, "--tls-curve-preferences: %w", err)
	return errs
}

// keepAlivePeriod is how often an idle connection is probed; upstream's value
// (k8s.io/apiserver/pkg/server/options/serving.go).
const keepAlivePeriod = 3 * time.Minute

// Listen binds the address and port for HTTPS.
func Listen(ctx context.Context, o ServingOptions) (net.Listener, error) {
	config := net.ListenConfig{
		KeepAlive: keepAlivePeriod,
		Control: func(_, _ string, c syscall.RawConn) error {
			return errors.Join(
				setSocketOption(c, unix.SO_REUSEADDR, o.ShareAddress),
				setSocketOption(c, unix.SO_REUSEPORT, o.SharePort))
		},
	}
	return bind(ctx, config, o.BindAddress, o.Port, "--bind-address", "--secure-port")
}

// bind listens. Its errors name the flags to change.
func bind(
	ctx context.Context, config net.ListenConfig, ip net.IP, port int, ipFlag, portFlag string,
) (net.Listener, error) {
	address := net.JoinHostPort(ip.String(), strconv.Itoa(port))
	listener, err := config.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program: stop it, or choose another %s", address, portFlag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this machine has no address %s: check %s", ip, ipFlag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("not allowed to listen on %s: choose a %s above 1023", address, portFlag)
	}
	return listener, err
}

// setSocketOption sets a socket option if on is true, and otherwise keeps the system's
// default.
func setSocketOption(c syscall.RawConn, option int, on bool) error {
	if !on {
		return nil
	}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1)
	})
	return errors.Join(control, err)
}

// ListenInsecure binds --insecure-port. It returns nil if the port is off.
func ListenInsecure(ctx context.Context, o ServingOptions) (net.Listener, error) {
	if o.InsecurePort == 0 {
		return nil, nil
	}
	return bind(ctx, net.ListenConfig{KeepAlive: keepAlivePeriod}, o.InsecureBindAddress, o.InsecurePort,
		"--insecure-bind-address", "--insecure-port")
}

// The bounds of a connection; upstream's values
// (k8s.io/apiserver/pkg/server/secure_serving.go).
const (
	minTLSVersion     = tls.VersionTLS12
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	defaultMaxStreams = 100
	// streamBuffer is the size in bytes that holds all but the largest request bodies
	// in one frame.
	streamBuffer = 256 << 10
)

// NewTLSConfig makes the part of the TLS configuration that does not change while the
// server runs. NewCertificates adds the certificates.
func NewTLSConfig(o ServingOptions) (*tls.Config, error) {
	version, err := cliflag.TLSVersion(o.MinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := cliflag.TLSCipherSuites(o.CipherSuites)
	if err != nil {
		return nil, err
	}
	curves, err := cliflag.TLSCurvePreferences(o.CurvePreferences)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:       max(version, minTLSVersion),
		CipherSuites:     suites,
		CurvePreferences: curves,
		NextProtos:       []string{"h2", "http/1.1"},
		// The server requests a client certificate and does not require one. The
		// authenticators verify it; clients may use other credentials.
		ClientAuth: tls.RequestClientCert,
	}
	if o.DisableHTTP2 {
		config.NextProtos = []string{"http/1.1"}
	}
	return config, nil
}

// NewHTTPServer makes the server of a handler. It modifies config; a nil config makes a
// server of plain HTTP.
func NewHTTPServer(o ServingOptions, handler http.Handler, config *tls.Config) (*http.Server, error) {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeaderBytes,
		IdleTimeout:       idleTimeout,
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          log.New(connectionErrors{}, "", 0),
	}
	setMaxHeaderValueCount(server)
	if o.DisableHTTP2 {
		// By default net/http would add HTTP/2 to config, and fail if its suites lack the one that HTTP/2 requires.
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		return server, nil
	}
	streams := o.MaxStreams
	if streams == 0 {
		streams = defaultMaxStreams
	}
	//nolint:staticcheck // net/http allows a connection no buffer of 4 MiB; upstream configures its servers so too
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:                  idleTimeout,
		MaxUploadBufferPerStream:     streamBuffer,
		MaxReadFrameSize:             streamBuffer,
		MaxConcurrentStreams:         uint32(streams),
		MaxUploadBufferPerConnection: streamBuffer * int32(streams),
	})
	return server, err
}

// connectionErrors logs what net/http reports about single connections, at a verbosity
// that is off by default: any client can cause such errors.
type connectionErrors struct{}

func (connectionErrors) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	if strings.Contains(line, "TLS handshake error") {
		metrics.TLSHandshakeErrors.Inc()
		klog.V(5).InfoS("Connection failed", "err", line)
	} else {
		klog.V(2).InfoS("Connection failed", "err", line)
	}
	return len(p), nil
}

// unsecuredName is the user of requests over the insecure port; kube-apiserver's, when
// it had such a port.
const unsecuredName = "system:unsecured"

// NewInsecureAuthenticator authenticates every request as an administrator.
func NewInsecureAuthenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{
			User: &user.DefaultInfo{Name: unsecuredName,
				Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
			Audiences: audiences,
		}, true, nil
	})
}

// WithLocalOrigin refuses requests that a browser sends for a page that is not of this
// port. Such a page can let its own host name resolve to this machine (DNS rebinding);
// the Host header has that name then. It can also open a WebSocket, or send requests
// without being able to read the responses, which is enough to do harm; the Origin header
// has the page's host and port then. What serves pages on another port of this machine
// may be a program of another user. A browser sends a page's GET without Origin, and says
// by Sec-Fetch-Site that it is of another origin.
func WithLocalOrigin(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "403: this port answers to localhost and loopback addresses only, not to the Host of this request",
				http.StatusForbidden)
			return
		}
		for _, origin := range r.Header.Values("Origin") {
			if !strings.EqualFold(origin, "http://"+r.Host) {
				http.Error(w, "403: this port does not answer pages of other origins", http.StatusForbidden)
				return
			}
		}
		for _, site := range r.Header.Values("Sec-Fetch-Site") { // none is the user's own, as an address that is typed
			if site != "same-origin" && site != "none" {
				http.Error(w, "403: this port does not answer pages of other sites", http.StatusForbidden)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// isLocal reports whether a host, with or without a port, can only be this machine.
func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Certificates are the serving certificates, which are reloaded when their files
// change.
type Certificates struct {
	pairs   []pair
	dynamic *dynamiccertificates.DynamicServingCertificateController
}

// pair is a certificate with its key, and their files.
type pair struct {
	content interface {
		dynamiccertificates.Notifier
		dynamiccertificates.ControllerRunner
	}
	certFile, keyFile string
}

// NewCertificates reads the files and sets base.GetConfigForClient. The TLS handshake
// tells clients that certificates of clientCAs are accepted; the caller runs clientCAs,
// which follows changes of its files.
func NewCertificates(
	base *tls.Config, certFile, keyFile string, clientCAs dynamiccertificates.CAContentProvider,
	sni []cliflag.NamedCertKey,
) (*Certificates, error) {
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate %s with the key %s: %w", certFile, keyFile, err)
	}
	c := &Certificates{pairs: []pair{{serving, certFile, keyFile}}}
	var named []dynamiccertificates.SNICertKeyContentProvider
	for _, s := range sni { // a client gets the first certificate that matches
		cert, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", s.CertFile, s.KeyFile, s.Names...)
		if err != nil {
			return nil, fmt.Errorf("--tls-sni-cert-key %s,%s: %w", s.CertFile, s.KeyFile, err)
		}
		named, c.pairs = append(named, cert), append(c.pairs, pair{cert, s.CertFile, s.KeyFile})
	}
	c.dynamic = dynamiccertificates.NewDynamicServingCertificateController(base, clientCAs, serving, named, nil)
	if clientCAs != nil {
		clientCAs.AddListener(c.dynamic)
	}
	for _, p := range c.pairs {
		p.content.AddListener(c.dynamic)
	}
	base.GetConfigForClient = c.dynamic.GetConfigForClient
	return c, c.dynamic.RunOnce()
}

// HasName reports whether one of the certificates is for a host name.
func (c *Certificates) HasName(host string) bool {
	config, err := c.dynamic.GetConfigForClient(&tls.ClientHelloInfo{ServerName: host})
	return err == nil && slices.ContainsFunc(config.Certificates, func(cert tls.Certificate) bool {
		return cert.Leaf != nil && cert.Leaf.VerifyHostname(host) == nil
	})
}

// Run reloads the files when they change, until ctx ends. It returns nil.
func (c *Certificates) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, p := range c.pairs {
		group.Go(func() { pki.Follow(ctx, p.content, p.certFile, p.keyFile) })
	}
	group.Go(func() { c.dynamic.Run(1, ctx.Done()) })
	group.Wait()
	return nil
}
