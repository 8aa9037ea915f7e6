package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// What the listener is held to; upstream's values
// (k8s.io/apiserver/pkg/server/secure_serving.go).
const (
	lowestTLS         = tls.VersionTLS12
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	keepAlivePeriod   = 3 * time.Minute
	defaultMaxStreams = 100
	// streamBuffer holds all but the largest request bodies in one frame.
	streamBuffer = 256 << 10
)

// listen binds the address of the options.
func (o *ServingOptions) listen(ctx context.Context) (net.Listener, error) {
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

// bind names the flags to look at when it fails.
func bind(ctx context.Context, config net.ListenConfig, ip net.IP, port int, ipFlag, portFlag string) (net.Listener, error) {
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

// setSocketOption leaves the system's default where on is false.
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

// certificates are the contents of certificate files, reloaded as they change.
type certificates struct {
	files   []follower
	dynamic *dynamiccertificates.DynamicServingCertificateController
}

// follower is a file's content that is kept up to date while it runs.
type follower interface {
	dynamiccertificates.Notifier
	dynamiccertificates.ControllerRunner
}

// newCertificates reads the files. clientCAs are named to clients as those whose
// certificates are taken; whoever gives them follows their changes.
func newCertificates(base *tls.Config, certFile, keyFile string, clientCAs dynamiccertificates.CAContentProvider, sni []cliflag.NamedCertKey) (*certificates, error) {
	serving, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	c := &certificates{files: []follower{serving}}
	var named []dynamiccertificates.SNICertKeyContentProvider
	// The first match counts for a client: upstream hands the flags on in reverse.
	for i := len(sni) - 1; i >= 0; i-- {
		cert, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", sni[i].CertFile, sni[i].KeyFile, sni[i].Names...)
		if err != nil {
			return nil, fmt.Errorf("--tls-sni-cert-key: %w", err)
		}
		named, c.files = append(named, cert), append(c.files, cert)
	}
	c.dynamic = dynamiccertificates.NewDynamicServingCertificateController(base, clientCAs, serving, named, nil)
	if clientCAs != nil {
		clientCAs.AddListener(c.dynamic)
	}
	for _, file := range c.files {
		file.AddListener(c.dynamic)
	}
	return c, c.dynamic.RunOnce()
}

// run watches the files until ctx ends.
func (c *certificates) run(ctx context.Context) {
	var group sync.WaitGroup
	for _, file := range c.files {
		group.Go(func() { file.Run(ctx, 1) })
	}
	group.Go(func() { c.dynamic.Run(1, ctx.Done()) })
	group.Wait()
}

// tlsConfig is the part that does not change while the server runs.
func (o *ServingOptions) tlsConfig() (*tls.Config, error) {
	version, err := cliflag.TLSVersion(o.MinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := cliflag.TLSCipherSuites(o.CipherSuites)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:   max(version, lowestTLS),
		CipherSuites: suites,
		NextProtos:   []string{"h2", "http/1.1"},
		// Take a client's certificate without demanding one; authentication
		// judges it, and other ways to authenticate stay open.
		ClientAuth: tls.RequestClientCert,
	}
	for _, curve := range o.CurvePreferences {
		config.CurvePreferences = append(config.CurvePreferences, tls.CurveID(curve))
	}
	if o.DisableHTTP2 {
		config.NextProtos = []string{"http/1.1"}
	}
	return config, nil
}

// httpServer makes the server for a handler; config is changed by it.
func (o *ServingOptions) httpServer(handler http.Handler, config *tls.Config) (*http.Server, error) {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeaderBytes,
		IdleTimeout:       idleTimeout,
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          log.New(connectionErrors{}, "", 0),
	}
	if o.DisableHTTP2 {
		return server, nil
	}
	streams := o.MaxStreams
	if streams == 0 {
		streams = defaultMaxStreams
	}
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:                  idleTimeout,
		MaxUploadBufferPerStream:     streamBuffer,
		MaxReadFrameSize:             streamBuffer,
		MaxConcurrentStreams:         uint32(streams),
		MaxUploadBufferPerConnection: streamBuffer * int32(streams),
	})
	return server, err
}

// connectionErrors takes net/http's complaints about single connections, which
// any client can cause, out of the log that an operator reads.
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
