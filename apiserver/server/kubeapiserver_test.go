package server_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"byre/apiserver/server"
)

// parseKubeAPIServer applies kube-apiserver's arguments to fresh options.
func parseKubeAPIServer(t *testing.T, args ...string) *server.KubeAPIServer {
	t.Helper()
	o := server.NewKubeAPIServer()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range o.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestKubeAPIServer_AcceptsWhatServeRefuses(t *testing.T) {
	o := parseKubeAPIServer(t, "--etcd-servers=http://127.0.0.1:2379,http://127.0.0.1:2380", "--etcd-prefix", "/other",
		"--etcd-cafile", "ca.crt", "--storage-backend=etcd3", "--watch-cache", "--watch-cache-sizes=pods#1",
		"--apiserver-count", "3", "--enable-logs-handler")
	if got := o.EtcdServers; !slices.Equal(got, []string{"http://127.0.0.1:2379", "http://127.0.0.1:2380"}) || o.EtcdPrefix != "/other" {
		t.Errorf("etcd servers %q, prefix %q", got, o.EtcdPrefix)
	}
	want := []string{"--apiserver-count", "--enable-logs-handler", "--etcd-cafile", "--storage-backend", "--watch-cache", "--watch-cache-sizes"}
	if got := o.Ignored(); !slices.Equal(got, want) {
		t.Errorf("ignored are %q, want %q", got, want)
	}
	if _, err := o.Complete(); err != nil {
		t.Error(err)
	}
}

// kube-apiserver's flags accept the deprecated master-count, and refuse unknown values.
func TestKubeAPIServer_AcceptsMasterCountAsLease(t *testing.T) {
	o := parseKubeAPIServer(t, "--endpoint-reconciler-type=master-count", "--apiserver-count=3")
	if err := o.Adapt(); err != nil {
		t.Fatal(err)
	}
	if got := o.Cluster.EndpointReconciler; got != "lease" {
		t.Errorf("the reconciler is %q", got)
	}
	if got, want := o.Ignored(), []string{"--apiserver-count", "--endpoint-reconciler-type"}; !slices.Equal(got, want) {
		t.Errorf("ignored are %q, want %q", got, want)
	}
	if _, err := o.Complete(); err != nil {
		t.Error(err)
	}
	if o = parseKubeAPIServer(t, "--endpoint-reconciler-type=none"); o.Cluster.EndpointReconciler != "none" || len(o.Ignored()) != 0 {
		t.Errorf("none became %q, ignored are %q", o.Cluster.EndpointReconciler, o.Ignored())
	}
	if _, err := parseKubeAPIServer(t, "--endpoint-reconciler-type=gossip").Complete(); err == nil {
		t.Error("an unknown reconciler is accepted")
	}
}

func TestKubeAPIServer_DefaultsAreThoseOfServeWithoutControllers(t *testing.T) {
	o := parseKubeAPIServer(t)
	completed, err := o.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if len(completed.EnabledControllers) != 0 || len(o.Ignored()) != 0 || o.EtcdPrefix != "/registry" {
		t.Errorf("controllers %q, ignored %q, prefix %q", completed.EnabledControllers, o.Ignored(), o.EtcdPrefix)
	}
	some := parseKubeAPIServer(t, "--controllers=*")
	if completed, err = some.Complete(); err != nil || len(completed.EnabledControllers) == 0 {
		t.Errorf("controllers %q, %v", completed.EnabledControllers, err)
	}
	for args, want := range map[string]bool{"--data-dir=/data": true, "--endpoint=sqlite:///data/byre.db": true, "--retention=1h": false} {
		if got := parseKubeAPIServer(t, args).ChoosesDatabase(); got != want {
			t.Errorf("%s chooses the database: %v", args, got)
		}
	}
}

func TestKubeAPIServer_CertDirHoldsTheServingCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	complete := func(args ...string) *server.KubeAPIServer {
		t.Helper()
		o := parseKubeAPIServer(t, append([]string{"--bind-address=127.0.0.1", "--cert-dir=" + dir}, args...)...)
		if err := o.Adapt(); err != nil {
			t.Fatal(err)
		}
		if o.Serving.CertDir != "" {
			t.Errorf("the server's own certificates would be in %s", o.Serving.CertDir)
		}
		return o
	}
	named := complete("--tls-cert-file=/a.crt", "--tls-private-key-file=/a.key")
	if _, err := os.Stat(dir); named.Serving.CertFile != "/a.crt" || err == nil {
		t.Errorf("with --tls-cert-file: %s serves, and %s: %v", named.Serving.CertFile, dir, err)
	}
	made := complete()
	pair, err := tls.LoadX509KeyPair(made.Serving.CertFile, made.Serving.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "10.0.0.1", "kubernetes.default.svc"} {
		if err := pair.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if made.Serving.CertFile != filepath.Join(dir, "apiserver.crt") || made.Serving.KeyFile != filepath.Join(dir, "apiserver.key") {
		t.Errorf("%s and %s serve", made.Serving.CertFile, made.Serving.KeyFile)
	}
	complete()
	again, err := tls.LoadX509KeyPair(made.Serving.CertFile, made.Serving.KeyFile)
	if err != nil || !again.Leaf.Equal(pair.Leaf) {
		t.Errorf("the second start made another certificate, %v", err)
	}
	wrong := parseKubeAPIServer(t, "--cert-dir="+dir, "--service-cluster-ip-range=10.0.0.0")
	if err := wrong.Adapt(); err == nil || !strings.Contains(err.Error(), "--service-cluster-ip-range") {
		t.Errorf("with a wrong range: %v", err)
	}
}
