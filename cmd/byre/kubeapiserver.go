package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

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
	o := server.NewKubeAPIServer()
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
		klog.InfoS("byre keeps its objects in SQLite or PostgreSQL: some flags of kube-apiserver change nothing", "ignored", flags)
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
		klog.Warningf("--etcd-servers is not used: objects are kept in %s; --data-dir and --endpoint choose another place", dsn)
		return serve(ctx, o.Options)
	case err != nil:
		return nil //nolint:nilerr // a stop that was asked for before the start is no failure
	}
	o.Store.DataDir = etcd.Dir(o.EtcdPrefix)
	// A test may start again on the same data with new keys, as kube-apiserver can.
	o.Store.AcceptNewKeys = true
	o.Store.IsForTest, o.Store.DiskReserve = true, resource.QuantityValue{} // envtest has etcd do as much, by --unsafe-no-fsync
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
