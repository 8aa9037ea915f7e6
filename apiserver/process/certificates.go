package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"

	"byre/apiserver/process/pki"
)

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
func NewCertificates(base *tls.Config, certFile, keyFile string, clientCAs dynamiccertificates.CAContentProvider, sni []cliflag.NamedCertKey) (*Certificates, error) {
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
