package server_test

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

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
	if got := o.EtcdServers; !slices.Equal(got, []string{"http://127.0.0.1:2379", "http://127.0.0.1:2380"}) ||
		o.EtcdPrefix != "/other" {
		t.Errorf("etcd servers %q, prefix %q", got, o.EtcdPrefix)
	}
	want := []string{"--apiserver-count", "--enable-logs-handler", "--etcd-cafile", "--storage-backend", "--watch-cache",
		"--watch-cache-sizes"}
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
	if o = parseKubeAPIServer(t, "--endpoint-reconciler-type=none"); o.Cluster.EndpointReconciler != "none" ||
		len(o.Ignored()) != 0 {
		t.Errorf("none became %q, ignored are %q", o.Cluster.EndpointReconciler, o.Ignored())
	}
	if _, err := parseKubeAPIServer(t, "--endpoint-reconciler-type=gossip").Complete(); err == nil {
		t.Error("an unknown reconciler is accepted")
	}
}

func TestKubeAPIServer_DefaultsAreThoseOfServeWithoutControllers(t *testing.T) {
	o := parseKubeAPIServer(t)
	if _, err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	if run := o.GetFlagz()["controllers"]; run != "[]" || len(o.Ignored()) != 0 || o.EtcdPrefix != "/registry" {
		t.Errorf("controllers %q, ignored %q, prefix %q", run, o.Ignored(), o.EtcdPrefix)
	}
	some := parseKubeAPIServer(t, "--controllers=*,-ttl")
	if _, err := some.Complete(); err != nil || some.GetFlagz()["controllers"] != "[*,-ttl]" {
		t.Errorf("controllers %q, %v", some.GetFlagz()["controllers"], err)
	}
	for args, want := range map[string]bool{"--data-dir=/data": true, "--endpoint=sqlite:///data/byre.db": true,
		"--retention=1h": false} {
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
	if made.Serving.CertFile != filepath.Join(dir, "apiserver.crt") ||
		made.Serving.KeyFile != filepath.Join(dir, "apiserver.key") {
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

// different are the flags whose default or form differs from kube-apiserver's, with the
// reason. Each of them must really differ.
var different = map[string]string{
	"allow-privileged":          "as kubeadm, k3s and kind set it: network and storage plugins are privileged",
	"authorization-mode":        "kubeadm's Node,RBAC: kube-apiserver's AlwaysAllow hands a new server to anyone with a credential",
	"cert-dir":                  "the certificates are below --data-dir",
	"enable-aggregator-routing": "a server that is no node of the cluster has no way to cluster IPs",
}

// elsewhere are the flags that the command itself declares.
var elsewhere = map[string]bool{
	"help": true, "version": true, // of the command itself
}

// TestFlags_EveryStockFlagIsKnown: each of kube-apiserver's flags is either implemented in
// its form and with its default, or accepted with its default only, or refused with a
// reason of one line.
func TestFlags_EveryStockFlagIsKnown(t *testing.T) {
	stock := stockFlags()
	counts := map[string]int{}
	stock.VisitAll(func(want *pflag.Flag) {
		flags := byreFlags()
		got := flags.Lookup(want.Name)
		switch {
		case got == nil:
			if !elsewhere[want.Name] {
				t.Errorf("byre serve has no --%s", want.Name)
			}
			counts["elsewhere"]++
		case got.Value.Type() == "refused":
			checkRefused(t, want.Name, "anything")
			checkRefused(t, want.Name, want.DefValue)
			counts["refused"]++
		default:
			compare(t, want, got)
			counts["done"]++
		}
	})
	t.Logf("flags of kube-apiserver: %v", counts)
	for name := range different {
		if stock.Lookup(name) == nil {
			t.Errorf("kube-apiserver has no --%s: take it out of the table", name)
		}
	}
}

// TestFlags_FixedOnesAcceptTheirDefaultOnly: a flag with a fixed value accepts that value
// only.
func TestFlags_FixedOnesAcceptTheirDefaultOnly(t *testing.T) {
	for name, value := range map[string]string{
		"apiserver-count":     "3",
		"enable-logs-handler": "true",
	} {
		checkRefused(t, name, value)
		flags := byreFlags()
		if err := flags.Parse([]string{"--" + name + "=" + flags.Lookup(name).DefValue}); err != nil {
			t.Errorf("--%s is refused its default: %v", name, err)
		}
	}
}

// TestFlags_EachIsAcceptedUnderTheNameOfKubeAPIServer: byre under the name kube-apiserver
// parses every command line that kube-apiserver parses, to the same values.
func TestFlags_EachIsAcceptedUnderTheNameOfKubeAPIServer(t *testing.T) {
	stockFlags().VisitAll(func(want *pflag.Flag) {
		flags := flagSet(server.NewKubeAPIServer().Flags())
		got := flags.Lookup(want.Name)
		switch {
		case got == nil:
			if !elsewhere[want.Name] {
				t.Errorf("no --%s", want.Name)
			}
			return
		case shared[want.Name]:
			return
		case (got.NoOptDefVal == "") != (want.NoOptDefVal == ""):
			t.Errorf("--%s: a value may be left out in one of the two", want.Name)
		}
		value, ok := sampleValues[want.Name]
		if !ok {
			value, ok = samples[want.Value.Type()]
		}
		if !ok {
			value = strings.Trim(want.DefValue, "[]")
		}
		if err := want.Value.Set(value); err != nil {
			t.Fatalf("kube-apiserver refuses --%s=%s: %v", want.Name, value, err)
		}
		if err := flags.Parse([]string{"--" + want.Name + "=" + value}); err != nil {
			t.Errorf("--%s=%s: %v", want.Name, value, err)
		}
	})
}

// shared are flags whose values upstream keeps in process-wide variables, so that both
// commands have the same.
var shared = map[string]bool{
	"default-not-ready-toleration-seconds": true, "default-unreachable-toleration-seconds": true,
	"emulated-version": true, "min-compatibility-version": true, "feature-gates": true,
}

// samples are values by the type of flag; sampleValues are values of flags that accept none
// of these.
var (
	samples = map[string]string{
		"string": "text", "bool": "true", "int": "3", "uint": "3", "int32": "3", "int64": "3", "float32": "0.5",
		"duration": "3s",
		"strings":  "a,b", "stringSlice": "a,b", "stringArray": "a", "ip": "127.0.0.1",
	}
	sampleValues = map[string]string{
		"enable-admission-plugins": "AlwaysPullImages", "disable-admission-plugins": "ServiceAccount",
		"allow-metric-labels": "metric,label=a,b", "oidc-required-claim": "claim=value", "tls-curve-preferences": "29",
		"runtime-config": "api/v1=true", "service-node-port-range": "30000-30100", "tls-sni-cert-key": "a.crt,a.key",
	}
)

func compare(t *testing.T, want, got *pflag.Flag) {
	t.Helper()
	var found []string
	for _, c := range []struct{ what, want, got string }{
		{"form", want.Value.Type(), got.Value.Type()},
		{"default", want.DefValue, got.DefValue},
		{"value without =", want.NoOptDefVal, got.NoOptDefVal},
		{"shorthand", want.Shorthand, got.Shorthand},
	} {
		if c.want != c.got {
			found = append(found, c.what+" is "+c.got+", not "+c.want)
		}
	}
	reason, known := different[want.Name]
	switch {
	case known && len(found) == 0:
		t.Errorf("--%s no longer differs: take it out of the table (%s)", want.Name, reason)
	case !known && len(found) > 0:
		t.Errorf("--%s: %s", want.Name, strings.Join(found, "; "))
	}
}

func checkRefused(t *testing.T, name, value string) {
	t.Helper()
	err := byreFlags().Parse([]string{"--" + name + "=" + value})
	var refused *server.RefusedFlagError
	if !errors.As(err, &refused) || len(refused.Error()) < 20 || strings.Contains(refused.Error(), "\n") {
		t.Errorf("--%s=%s: %v, want one line that says why not", name, value, err)
	}
}

// stockFlags are kube-apiserver's flags. Its command can be made once in a process.
var stockFlags = sync.OnceValue(func() *pflag.FlagSet { return app.NewAPIServerCommand().Flags() })

func byreFlags() *pflag.FlagSet { return flagSet(server.NewOptions().Flags()) }

func flagSet(sets cliflag.NamedFlagSets) *pflag.FlagSet {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	return flags
}
