package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/util/compatibility"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
)

// newKubeAPIServerCommand is byre under the name kube-apiserver: it takes every flag that
// kube-apiserver takes.
func newKubeAPIServerCommand() *cobra.Command {
	o := server.NewKubeAPIServer(newViewsFeature())
	cmd := &cobra.Command{
		Use:   standin.KubeAPIServer,
		Short: "byre in place of kube-apiserver",
		Long: "byre in place of kube-apiserver: it takes kube-apiserver's flags and those of\n" +
			"\"byre serve\". No controllers run unless --controllers asks for them.",
		Args: func(_ *cobra.Command, args []string) error {
			// Scripts pass empty arguments for flags that they leave out; kube-apiserver
			// takes them too.
			if rest := strings.Join(args, ""); rest != "" {
				return fmt.Errorf("%s takes no arguments but flags: %q", standin.KubeAPIServer, args)
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return serveInPlace(cmd.Context(), o) },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	addServerFlags(cmd, o.Flags(), newConfiguration(""), func() string {
		return "Kubernetes " + server.Version(compatibility.DefaultBuildEffectiveVersion()).GitVersion + "\n"
	})
	// As kube-apiserver: --etcd_servers is --etcd-servers.
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	client.AcceptDays(cmd)
	return cmd
}

// serveInPlace serves until ctx ends, or the test's stand-in for etcd.
func serveInPlace(ctx context.Context, o *server.KubeAPIServer) error {
	if err := o.Adapt(); err != nil {
		return err
	}
	if flags := o.Ignored(); len(flags) > 0 {
		klog.InfoS("byre keeps its objects in SQLite or PostgreSQL: some flags of kube-apiserver change nothing", "ignored",
			flags)
	}
	if o.ChoosesDatabase() || len(o.EtcdServers) == 0 {
		return serve(ctx, o.Options)
	}
	etcd, err := standin.Find(ctx, o.EtcdServers)
	switch {
	case errors.Is(err, standin.ErrNone):
		dsn, err := o.Store.DSN()
		if err != nil {
			return err
		}
		klog.Warningf("--etcd-servers is not used: objects are kept in %s; --data-dir and --endpoint choose another place",
			dsn)
		return serve(ctx, o.Options)
	case err != nil:
		return nil //nolint:nilerr // a stop that was asked for before the start is no failure
	}
	o.Store.DataDir = etcd.Dir(o.EtcdPrefix)
	// A test may start again on the same data with new keys, as kube-apiserver can.
	o.Store.AcceptNewKeys = true
	// envtest has etcd do as much, by --unsafe-no-fsync
	o.Store.IsForTest, o.Store.DiskReserve = true, resource.QuantityValue{}
	return serveUntilEnd(ctx, etcd, o.Options)
}

// serveUntilEnd serves until ctx or the stand-in ends.
func serveUntilEnd(ctx context.Context, etcd *standin.Standin, o *server.Options) error {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if etcd.Wait(ctx) == nil {
			klog.InfoS("The stand-in for etcd has ended: this server ends with it")
		}
		cancel()
	})
	err := serve(ctx, o)
	cancel()
	waiting.Wait()
	return err
}

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
	client.AddVersion(cmd.Flags(), "", func() string { return "etcd Version: " + standin.Version + "\n" })
	cmd.Flags().StringSliceVar(&o.ListenURLs, "listen-client-urls", []string{"http://localhost:2379"},
		"URLs to listen on.")
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "default.etcd",
		"Directory in which byre under the name kube-apiserver keeps its database.")
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
