package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/apiserver/access/auth"
	"byre/apiserver/process"
	"byre/apiserver/process/pki"
)

// certificates are those that the server issues itself.
type certificates struct {
	config pki.Config
	files  pki.Files
	sni    []cliflag.NamedCertKey
}

// newPKIConfig returns what package pki needs to know of the server that listens on port.
func newPKIConfig(o Completed, port string) pki.Config {
	config := pki.Config{
		AdminGroup:  pki.ClusterAdmins,
		Dir:         o.CertDir,
		Kubeconfig:  o.Kubeconfig(),
		Server:      o.LocalURL(port),
		ServingCert: o.Serving.CertFile,
		RootCA:      o.Serving.RootCAFile,
		Hosts:       o.CertificateHosts(),
		Now:         time.Now(),
	}
	if !o.Auth.Authorization.UsesMode(modes.ModeRBAC) {
		config.AdminGroup = pki.SystemMasters // no binding would give the other its rights
	}
	return config
}

// ensureCertificates creates and renews certificates where necessary, and logs what it wrote.
func ensureCertificates(o Completed, n network) (*certificates, error) {
	config := newPKIConfig(o, n.port)
	files, report, err := pki.Ensure(config)
	if err != nil {
		return nil, err
	}
	legacyregistry.Registerer().MustRegister(certificateCollector{config})
	logWritten(config.Dir, report)
	if len(report.Foreign) > 0 {
		klog.InfoS("Certificates are used that byre did not issue and does not renew", "directory", config.Dir, "files",
			report.Foreign)
	}
	logNotRenewable(config.Dir, report)
	if report.Failed != nil {
		klog.ErrorS(report.Failed, "Certificates or admin.kubeconfig could not be renewed, and are tried again in an hour",
			"directory", config.Dir)
	}
	if err := report.Unverified; err != nil {
		klog.Warningf(
			"Pods and admin.kubeconfig can't verify the server: %v: name the CA of the certificate with --root-ca-file", err)
	}
	if ca := o.Auth.Authentication.RequestHeader.ClientCAFile; o.Cluster.ProxyCertFile == "" && ca != "" {
		if err := pki.VerifyClient(files.FrontProxyCert, ca, config.Now); err != nil {
			klog.Warningf("Aggregated API servers refuse this server: %v: "+
				"give it a certificate of --requestheader-client-ca-file by --proxy-client-cert-file", err)
		}
	}
	return &certificates{config, files, o.Serving.SNICertKeys}, nil
}

// hosts returns the names and addresses that clients find the server by: those of its flags, and those of the
// certificates that it serves with now. They are sorted.
func (c *certificates) hosts() ([]string, error) {
	hosts := slices.Clone(c.config.Hosts)
	for _, sni := range c.sni {
		hosts = append(hosts, sni.Names...)
	}
	for _, file := range c.served() {
		chain, err := cert.CertsFromFile(file)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, chain[0].DNSNames...)
		for _, ip := range chain[0].IPAddresses {
			hosts = append(hosts, ip.String())
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// served are the files of the certificates that the server serves with.
func (c *certificates) served() []string {
	files := []string{cmp.Or(c.config.ServingCert, c.files.ServingCert)}
	for _, sni := range c.sni {
		files = append(files, sni.CertFile)
	}
	return files
}

// renew renews certificates until ctx ends.
func (c *certificates) renew(ctx context.Context) error {
	var known []string
	return pki.Run(ctx, c.config, time.Now, func(report pki.Report, err error) {
		if err != nil {
			klog.ErrorS(err, "Certificates could not be renewed, and are tried again in an hour", "directory", c.config.Dir)
			return
		}
		logWritten(c.config.Dir, report)
		if !slices.Equal(known, report.NotRenewable) {
			logNotRenewable(c.config.Dir, report)
			known = report.NotRenewable
		}
	})
}

var certificateDesc = prometheus.NewDesc("byre_certificate_expiration_timestamp_seconds",
	"When a certificate of this server ends. The name is that of byre certs status, or tls-cert-file for the certificate of that flag.",
	[]string{"name"}, nil)

// certificateCollector is the metric byre_certificate_expiration_timestamp_seconds. It reads the
// certificates at each scrape, because other programs may renew them. Of those that are missing or
// can't be read there is no metric.
type certificateCollector struct{ config pki.Config }

// Describe implements prometheus.Collector.
func (certificateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- certificateDesc
}

// Collect implements prometheus.Collector.
func (c certificateCollector) Collect(metrics chan<- prometheus.Metric) {
	status, err := pki.Inspect(c.config.Dir, c.config.Kubeconfig, time.Now())
	if err != nil {
		klog.V(2).InfoS("The certificates can't be read", "directory", c.config.Dir, "err", err)
	}
	all := slices.Concat(status.Certificates, status.CertificateAuthorities)
	if c.config.ServingCert != "" {
		certs, err := cert.CertsFromFile(c.config.ServingCert)
		if err != nil {
			klog.V(2).InfoS("The certificate of --tls-cert-file can't be read", "err", err)
		} else {
			all = append(all, pki.CertificateStatus{Name: "tls-cert-file", ExpirationDate: certs[0].NotAfter})
		}
	}
	for _, c := range all {
		if !c.Missing {
			metrics <- prometheus.MustNewConstMetric(certificateDesc, prometheus.GaugeValue, float64(c.ExpirationDate.Unix()),
				c.Name)
		}
	}
}

func logWritten(dir string, report pki.Report) {
	if len(report.Written) > 0 {
		klog.InfoS("Wrote certificates", "directory", dir, "files", report.Written)
	}
}

func logNotRenewable(dir string, report pki.Report) {
	if len(report.NotRenewable) > 0 {
		klog.Warningf(
			"Certificates in %s expire or lack a name, and byre can't renew them, because another program has issued them or the key of their CA is not here: %v", dir, report.NotRenewable)
	}
}

// recordInterval is the time between two tries to record the keys.
const recordInterval = 10 * time.Second

// keyRecorder records the server's keys in the database, and again when --client-ca-file has been reloaded, and in each
// new epoch. With adopt it also deletes the record that the database is a fork.
type keyRecorder struct {
	trust    *auth.TrustedKeys
	storage  *storageBackend
	adopt    bool
	reloaded chan struct{}
	// tried: the first try is over. The server is ready after it: whoever has seen it ready finds
	// its keys recorded, unless the database takes no writes.
	tried *process.Signal
}

func newKeyRecorder(
	trust *auth.TrustedKeys, s *storageBackend, adopt bool, clientCA dynamiccertificates.CAContentProvider,
) *keyRecorder {
	k := &keyRecorder{trust, s, adopt, make(chan struct{}, 1), process.NewSignal("TriedToRecordKeys")}
	clientCA.AddListener(k)
	return k
}

// Enqueue implements dynamiccertificates.Listener.
func (k *keyRecorder) Enqueue() {
	select {
	case k.reloaded <- struct{}{}:
	default:
	}
}

// run records the keys once the server can encrypt. It fails if another server has recorded keys
// meanwhile that this one does not trust.
func (k *keyRecorder) run(ctx context.Context) error {
	if !awaitChecks(ctx, k.storage.encryption.checks) {
		return nil
	}
	for isStart := true; ; {
		ended := k.storage.Feed.EpochEnded()
		err := k.trust.Record(ctx, k.storage.Store)
		var untrusted *auth.UntrustedKeyError
		isUntrusted := errors.As(err, &untrusted)
		if isUntrusted && isStart {
			return err
		}
		if err == nil && k.adopt {
			err = k.storage.deleteForkRecord(ctx)
		}
		k.tried.Signal()
		isStart = isStart && err != nil
		var again <-chan time.Time
		switch {
		case isUntrusted:
			klog.ErrorS(err, "The keys of --client-ca-file are not recorded, and the next start fails")
		case err != nil:
			klog.V(2).InfoS("The keys of this server are not recorded yet", "err", err)
			again = time.After(recordInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-ended: // the record may be lost
		case <-k.reloaded:
			isStart = false
			if err := k.trust.ReadClientCAs(); err != nil {
				klog.ErrorS(err, "The keys of --client-ca-file are not recorded")
			}
		}
	}
}
