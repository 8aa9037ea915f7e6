package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"byre/apiserver/process/pki"
	"byre/cmd/byre/client"
)

func newCertsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Show and renew the server's certificates",
		Args:  client.SubcommandOnly,
		RunE:  client.Help,
	}
	cmd.AddCommand(newCertsStatusCommand(), newCertsRenewCommand())
	return cmd
}

// certsFlags say where the certificates are.
type certsFlags struct{ dataDir, certDir string }

func (f *certsFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "./byre-data", "Directory of pki/ and admin.kubeconfig.")
	cmd.Flags().StringVar(&f.certDir, "cert-dir", "", "Directory of the certificates. If not set, pki below --data-dir.")
}

// config is what package pki needs to find them.
func (f *certsFlags) config() pki.Config {
	return pki.Config{
		Dir:        cmp.Or(f.certDir, filepath.Join(f.dataDir, "pki")),
		Kubeconfig: filepath.Join(f.dataDir, "admin.kubeconfig"),
		Now:        time.Now(),
	}
}

func newCertsStatusCommand() *cobra.Command {
	var flags certsFlags
	var output client.Output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show when the server's certificates expire, and who has signed them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config := flags.config()
			status, err := inspectCertificates(config)
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), status, func(w io.Writer) error { return printCertificates(w, status) })
		},
	}
	flags.addTo(cmd)
	output.AddTo(cmd, "text", "json", "yaml")
	return cmd
}

// inspectCertificates fails if there is no certificate at all: the directory is the wrong one.
func inspectCertificates(config pki.Config) (pki.Status, error) {
	status, err := pki.Inspect(config.Dir, config.Kubeconfig, config.Now)
	exists := func(c pki.CertificateStatus) bool { return !c.Missing }
	if err == nil && !slices.ContainsFunc(slices.Concat(status.Certificates, status.CertificateAuthorities), exists) {
		err = fmt.Errorf(
			"there are no certificates in %s: name the directory of a server that has been started by --data-dir or --cert-dir",
			config.Dir)
	}
	return status, err
}

// printCertificates prints the tables of "kubeadm certs check-expiration", and the subjects.
func printCertificates(out io.Writer, status pki.Status) error {
	w := tabwriter.NewWriter(out, 10, 4, 3, ' ', 0)
	fmt.Fprintln(w, "CERTIFICATE\tEXPIRES\tRESIDUAL TIME\tCERTIFICATE AUTHORITY\tEXTERNALLY MANAGED\tSUBJECT\tNAMES")
	for _, c := range status.Certificates {
		if c.Missing {
			fmt.Fprintf(w, "!MISSING! %s\t\t\t\t\t\t\n", c.Name)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, expiry(c), residual(c), c.CAName, yesNo(c.ExternallyManaged),
			c.Subject, strings.Join(c.Names, ","))
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "CERTIFICATE AUTHORITY\tEXPIRES\tRESIDUAL TIME\tEXTERNALLY MANAGED")
	for _, c := range status.CertificateAuthorities {
		if c.Missing {
			fmt.Fprintf(w, "!MISSING! %s\t\t\t\n", c.Name)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Name, expiry(c), residual(c), yesNo(c.ExternallyManaged))
	}
	return w.Flush()
}

func expiry(c pki.CertificateStatus) string {
	return c.ExpirationDate.Format("Jan 02, 2006 15:04 MST")
}

// residual is the time until a certificate expires.
func residual(c pki.CertificateStatus) string {
	if c.ResidualTimeSeconds <= 0 {
		return "EXPIRED"
	}
	return duration.HumanDuration(time.Duration(c.ResidualTimeSeconds) * time.Second)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newCertsRenewCommand() *cobra.Command {
	var flags certsFlags
	cmd := &cobra.Command{
		Use:   "renew all|NAME...",
		Short: "Issue certificates of the server anew, by the same CA",
		Long: "Issue certificates of the server anew, by the same CA, for a year from now and with new\n" +
			"keys. They keep their names. The CAs and the service account key are never renewed.\n\n" +
			"A running server loads them by itself: the serving and front-proxy certificates\n" +
			"within a minute, the client certificate for kubelets within five. Copies of\n" +
			"admin.kubeconfig keep the certificate before, which is valid until it expires.",
		Example: "  byre certs renew all\n  byre certs renew apiserver front-proxy-client",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("name the certificates to renew: %s, or all", strings.Join(pki.RenewableNames(), ", "))
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions(append([]string{"all"}, pki.RenewableNames()...),
			cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			return renewCertificates(cmd.OutOrStdout(), flags.config(), args)
		},
	}
	flags.addTo(cmd)
	return cmd
}

// renewCertificates renews the named certificates, or with "all" every one that exists.
func renewCertificates(out io.Writer, config pki.Config, names []string) error {
	if slices.Equal(names, []string{"all"}) {
		status, err := inspectCertificates(config)
		if err != nil {
			return err
		}
		names = nil
		for _, c := range status.Certificates {
			switch {
			case c.Missing:
				fmt.Fprintf(out, "!MISSING! %s\n", c.Name)
			case c.ExternallyManaged:
				fmt.Fprintf(out, "%s not renewed: it is externally managed\n", c.Name)
			default:
				names = append(names, c.Name)
			}
		}
	}
	for _, name := range names {
		if err := pki.CheckRenewable(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := pki.Renew(config, name); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s renewed\n", name)
	}
	return nil
}
