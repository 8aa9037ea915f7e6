package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/util/compatibility"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/server"

	"byre/cmd/byre/client"
)

func newEnvtestAssetsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest-assets",
		Short: "Print a folder for KUBEBUILDER_ASSETS, for tests with controller-runtime's envtest",
		Long: "Print a folder in which byre has the names kube-apiserver, etcd and kubectl:\n\n" +
			"  export KUBEBUILDER_ASSETS=$(byre envtest-assets)\n\n" +
			"Tests that use controller-runtime's envtest then run on byre. The folder is made in\n" +
			"the user's cache directory ($XDG_CACHE_HOME, or ~/.cache). kubectl there runs the\n" +
			"one that KUBECTL names, or the next one on the PATH.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			cache, err := os.UserCacheDir()
			if err != nil {
				return fmt.Errorf("no cache directory, set XDG_CACHE_HOME: %w", err)
			}
			version, _, _ := strings.Cut(server.Version(compatibility.DefaultBuildEffectiveVersion()).GitVersion, "+")
			dir, err := standin.MakeAssets(cache, version, executable)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), dir)
			}
			return err
		},
	}
}

// newEtcdCommand is byre under the name etcd.
func newEtcdCommand() *cobra.Command {
	o := standin.Options{Parent: os.Getppid()}
	cmd := &cobra.Command{
		Use:   standin.Etcd,
		Short: "byre in place of etcd, for tests with controller-runtime's envtest",
		Long: "byre in place of etcd, for tests with controller-runtime's envtest: it answers\n" +
			"etcd's health checks and holds no keys. It ends with the process that started it.\n" +
			"All other flags of etcd are taken and change nothing.",
		Args:               cobra.ArbitraryArgs,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE:               func(cmd *cobra.Command, _ []string) error { return standin.Serve(cmd.Context(), o) },
		SilenceUsage:       true,
		SilenceErrors:      true,
	}
	client.AddVersion(cmd, cmd.Flags(), "", func() string { return "etcd Version: " + standin.Version + "\n" })
	cmd.Flags().StringSliceVar(&o.ListenURLs, "listen-client-urls", []string{"http://localhost:2379"}, "URLs to listen on.")
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "default.etcd", "Directory in which byre under the name kube-apiserver keeps its database.")
	return cmd
}

// newKubectlCommand is byre under the name kubectl: it becomes the user's kubectl.
func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                standin.Kubectl,
		Short:              "The kubectl that KUBECTL names, or the next one on the PATH",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			path, err := standin.FindKubectl(self, os.Getenv)
			if err != nil {
				return err
			}
			return syscall.Exec(path, append([]string{path}, args...), os.Environ())
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
}
