package apiserver

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"byre/apiserver/process/pki"
)

func (s *Server) pkiConfig() pki.Config {
	o := s.config.Options
	group := pki.ClusterAdmins
	if !s.config.Options.Auth.Authorization.UsesMode(modes.ModeRBAC) {
		group = pki.SystemMasters // no binding would give the other its rights
	}
	return pki.Config{
		AdminGroup:  group,
		Dir:         o.CertDir,
		Kubeconfig:  o.Kubeconfig(),
		Server:      o.LocalURL(s.port),
		ServingCert: o.Serving.CertFile,
		RootCA:      o.Serving.RootCAFile,
		Hosts:       o.CertificateHosts(),
		Now:         time.Now(),
	}
}

// rootCA is the file with the CA that clients verify the server by.
func (s *Server) rootCA(files pki.Files) string {
	return cmp.Or(s.config.Options.Serving.RootCAFile, files.CACert)
}

// ensurePKI creates and renews certificates where necessary, and logs what it wrote.
func (s *Server) ensurePKI() (pki.Files, error) {
	config := s.pkiConfig()
	files, report, err := pki.Ensure(config)
	if err != nil {
		return files, err
	}
	logWritten(config.Dir, report)
	if len(report.Foreign) > 0 {
		klog.InfoS("Certificates are used that byre did not issue and does not renew", "directory", config.Dir, "files", report.Foreign)
	}
	logNotRenewable(config.Dir, report)
	if err := report.Unverified; err != nil {
		klog.Warningf("Pods and admin.kubeconfig can't verify the server: %v: name the CA of the certificate with --root-ca-file", err)
	}
	return files, nil
}

// renewCertificates renews certificates until ctx ends.
func (s *Server) renewCertificates(ctx context.Context) error {
	config := s.pkiConfig()
	var known []string
	return pki.Run(ctx, config, func(report pki.Report, err error) {
		if err != nil {
			klog.ErrorS(err, "Certificates could not be renewed, and are tried again in an hour", "directory", config.Dir)
			return
		}
		logWritten(config.Dir, report)
		if !slices.Equal(known, report.NotRenewable) {
			logNotRenewable(config.Dir, report)
			known = report.NotRenewable
		}
	})
}

func logWritten(dir string, report pki.Report) {
	if len(report.Written) > 0 {
		klog.InfoS("Wrote certificates", "directory", dir, "files", report.Written)
	}
}

func logNotRenewable(dir string, report pki.Report) {
	if len(report.NotRenewable) > 0 {
		klog.Warningf("Certificates in %s expire or lack a name, and byre can't renew them, because another program has issued them or the key of their CA is not here: %v", dir, report.NotRenewable)
	}
}
