package server_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"

	"byre/apiserver/process/pki"
	"byre/apiserver/server"
	"byre/sqlstore"
)

// parse applies command line arguments to fresh options.
func parse(args ...string) (*server.Options, error) {
	o := server.NewOptions()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for _, set := range o.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	return o, flags.Parse(args)
}

func TestOptions_RefuseWrongFlags(t *testing.T) {
	tests := []struct{ args, want string }{
		{"--data-dir=", "--data-dir must not be empty"},
		{"--endpoint=mysql://localhost/byre", "--endpoint: want sqlite:///path or postgres://user@host/database"},
		{"--endpoint=sqlite://", "--endpoint: want sqlite:///path/of/file"},
		{"--endpoint=byre.db", "--endpoint: want sqlite:///path or postgres://user@host/database"},
		{"--retention=-1h", "--retention must not be negative"},
		{"--volatile=*", `--volatile: "*" is not a resource, such as leases or events.events.k8s.io`},
		{"--retention-changes=-1", "--retention-changes must not be negative"},
		{"--retention-for=deployments.apps=soon",
			`--retention-for: deployments.apps: "soon" is not a time such as 90d, 12h, 5m or 1h30m`},
		{"--retention-for=*.apps=1h", `--retention-for: "*.apps" is not a resource`},
		{"--database-quota=-1Gi", "--database-quota must not be negative"},
		{"--compaction-interval=0s", "--compaction-interval must be positive"},
		{"--secure-port=70000", "--secure-port must be between 0 and 65535, not 70000"},
		{"--insecure-port=-1", "--insecure-port must be between 0 and 65535, not -1"},
		{"--insecure-bind-address=0.0.0.0",
			"--insecure-bind-address must be a loopback address, not 0.0.0.0: everybody who reaches it is an administrator"},
		{"--insecure-bind-address=::", "--insecure-bind-address must be a loopback address, not ::"},
		{"--insecure-bind-address=192.0.2.1", "--insecure-bind-address must be a loopback address, not 192.0.2.1"},
		{"--tls-cert-file=a.crt", "--tls-cert-file and --tls-private-key-file must be given together"},
		{"--tls-private-key-file=a.key", "--tls-cert-file and --tls-private-key-file must be given together"},
		{"--tls-min-version=VersionTLS11", "--tls-min-version: VersionTLS11 is no longer safe, the lowest is VersionTLS12"},
		{"--tls-min-version=1.2", "--tls-min-version: unknown tls version \"1.2\""},
		{"--tls-cipher-suites=ROT13", "--tls-cipher-suites: Cipher suite ROT13 not supported"},
		{"--http2-max-streams-per-connection=-1", "--http2-max-streams-per-connection must not be negative"},
		{"--service-cluster-ip-range=10.0.0.0", "--service-cluster-ip-range: \"10.0.0.0\" is not a CIDR"},
		{"--service-cluster-ip-range=10.0.0.0/30", "--service-cluster-ip-range: 10.0.0.0/30 has fewer than 8 addresses"},
		{"--service-cluster-ip-range=10.0.0.0/16,10.1.0.0/16",
			"--service-cluster-ip-range: two CIDRs must be of different IP families"},
		{"--service-cluster-ip-range=10.0.0.0/16,fd00::/112,fd01::/112",
			"--service-cluster-ip-range must not have more than two CIDRs"},
		{"--service-cluster-ip-range=10.0.0.0/16,fd00::/48",
			"--service-cluster-ip-range: fd00::/48 is too large: an IPv6 CIDR must be /64 or longer"},
		{"--event-ttl=0s", "--event-ttl must be positive"},
		{"--disk-reserve=1Mi", "--disk-reserve must be 0 or at least 24Mi: the write-ahead log takes up to 16Mi of it"},
		{"--replicate-to=/copies", `--replicate-to "/copies": want file:///PATH or s3://BUCKET/PATH`},
		{"--tracing-config-file=/nonexistent",
			`--tracing-config-file /nonexistent: unable to read tracing configuration from "/nonexistent": open /nonexistent: no such file or directory`},
		{"--egress-selector-config-file=/nonexistent",
			"--egress-selector-config-file /nonexistent: unable to read egress selector configuration from \"/nonexistent\""},
		{"--runtime-config=api/all=false", "--runtime-config: invalid runtime-config with only api/all=false"},
		{"--runtime-config=flowcontrol.apiserver.k8s.io/v1=false",
			"--runtime-config turns off flowcontrol.apiserver.k8s.io/v1, which --enable-priority-and-fairness needs"},
		{"--runtime-config=api/all=false,api/v1=true", "--runtime-config turns off flowcontrol.apiserver.k8s.io/v1, which"},
		{"--runtime-config=nosuch.example/v1=true", "--runtime-config: unknown api groups nosuch.example/v1"},
		{"--controllers=nosuch", "--controllers: \"nosuch\" is not in the list of known controllers"},
		{"--encryption-provider-config-automatic-reload",
			"--encryption-provider-config-automatic-reload needs --encryption-provider-config"},
		{"--tls-curve-preferences=26", "--tls-curve-preferences: curve preference 26 is not supported"},
		{"--service-cluster-ip-range=fd00::/112 --advertise-address=192.0.2.1",
			"--service-cluster-ip-range: fd00::/112 is of another IP family than --advertise-address, 192.0.2.1"},
		{"--livez-grace-period=-1s", "--livez-grace-period can not be a negative value"},
		{"--delete-collection-workers=0", "--delete-collection-workers must be positive"},
		{"--kubernetes-service-node-port=70000", "--kubernetes-service-node-port must be between 0 and 65535, not 70000"},
		{"--kubernetes-service-node-port=80",
			"--kubernetes-service-node-port: 80 is not in --service-node-port-range, 30000-32767"},
		{"--endpoint-reconciler-type=master-count",
			"--endpoint-reconciler-type: master-count can't tell which servers are up: use lease"},
		{"--endpoint-reconciler-type=gossip", "--endpoint-reconciler-type: \"gossip\" is neither lease nor none"},
		{"--advertise-address=127.0.0.1",
			"--advertise-address: 127.0.0.1 can't be an endpoint of the Service kubernetes: it may not be in the loopback range (127.0.0.0/8, ::1/128): give an address that Pods reach, or --endpoint-reconciler-type=none"},
		{"--advertise-address=169.254.1.1",
			"--advertise-address: 169.254.1.1 can't be an endpoint of the Service kubernetes: it may not be in the link-local range"},
		{"--peer-advertise-ip=here", "--peer-advertise-ip: \"here\" is not an IP address"},
		{"--peer-advertise-port=0", "--peer-advertise-port: \"0\" is not a port"},
		{"--coordinated-leadership-lease-duration=1s",
			"--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"},
		{"--coordinated-leadership-retry-period=10s",
			"--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"},
		{"--shutdown-delay-duration=-1s", "--shutdown-delay-duration can not be negative value"},
		{"--authorization-mode=Maybe", "authorization-mode \"Maybe\" is not a valid mode"},
		{"--enable-admission-plugins=NoSuchPlugin", "NoSuchPlugin"},
		{"--goaway-chance=0.5", "--goaway-chance can not be less than 0 or greater than 0.02"},
		{"--max-requests-inflight=0 --max-mutating-requests-inflight=0",
			"--max-requests-inflight and --max-mutating-requests-inflight must add up to more than 0"},
	}
	for _, test := range tests {
		o, err := parse(strings.Fields(test.args)...)
		if err != nil {
			t.Errorf("%s: %v", test.args, err)
			continue
		}
		_, err = o.Complete()
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want %q", test.args, err, test.want)
			continue
		}
		if lines := strings.Split(err.Error(), "\n"); len(lines) != 1 {
			t.Errorf("%s: %d lines: %q", test.args, len(lines), lines)
		}
	}
}

func TestVolatile_NamesResources(t *testing.T) {
	o, err := parse("--volatile=leases,events.events.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	isVolatile := o.Store.IsVolatile()
	for key, want := range map[sqlstore.Key]bool{
		{Group: "coordination.k8s.io", Resource: "leases"}: true,
		{Group: "events.k8s.io", Resource: "events"}:       true,
		{Resource: "events"}:                               false,
		{Resource: "pods"}:                                 false,
	} {
		if isVolatile(key) != want {
			t.Errorf("%v is volatile: %t", key, !want)
		}
	}
	o, err = parse("--volatile=leases", "--endpoint=postgres://host/database")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--volatile needs SQLite") {
		t.Errorf("on PostgreSQL: %v", err)
	}
}

func TestOptions_NameEveryWrongFlag(t *testing.T) {
	o, err := parse("--secure-port=-1", "--event-ttl=-1s", "--controllers=nosuch")
	if err != nil {
		t.Fatal(err)
	}
	_, err = o.Complete()
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 3 {
		t.Errorf("lines are %q, want one for each of the three flags", lines)
	}
}

func TestOptions_RefuseUnsupportedFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--etcd-servers=http://127.0.0.1:2379":             "use --endpoint",
		"--etcd-servers http://127.0.0.1:2379":             "use --endpoint",
		"--etcd-prefix=/registry":                          "--endpoint",
		"--etcd-cafile=ca.crt":                             "sslrootcert",
		"--storage-backend=etcd3":                          "use --endpoint",
		"--storage-media-type=application/json":            "leave the flag out",
		"--storage-initialization-timeout=2m":              "fails at once",
		"--etcd-compaction-interval=5m0s --secure-port=-1": "use --retention",
	} {
		_, err := parse(strings.Fields(args)...)
		var refused *server.RefusedFlagError
		if !errors.As(err, &refused) || !strings.Contains(refused.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", args, err, want)
		}
	}
}

// The flags of the watch cache change no answer: kube-apiserver's command lines with them work.
func TestOptions_IgnoreFlagsOfTheWatchCache(t *testing.T) {
	for args, want := range map[string]string{
		"":                    "[]",
		"--watch-cache":       "[--watch-cache]",
		"--watch-cache=false": "[--watch-cache]",
		"--watch-cache-sizes=pods#0,nodes#1000 --default-watch-cache-size=0": "[--default-watch-cache-size --watch-cache-sizes]",
	} {
		o, err := parse(strings.Fields(args)...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if got := fmt.Sprint(o.Ignored()); got != want {
			t.Errorf("%s: ignored are %s, want %s", args, got, want)
		}
		if _, err := o.Complete(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestOptions_DefaultsAreValid(t *testing.T) {
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Complete(); err != nil {
		t.Error(err)
	}
	if got, err := o.Store.DSN(); err != nil || got != "sqlite:byre-data/byre.db" {
		t.Errorf("the default database is %s, %v", got, err)
	}
}

// --external-hostname is the address in OpenID discovery and in /api, as in kube-apiserver.
func TestOptions_ExternalHostnameIsTheAddress(t *testing.T) {
	for args, want := range map[string]string{
		"":                                    "192.0.2.1:6443",
		"--external-hostname=api.example.com": "api.example.com:6443",
		"--external-hostname=192.0.2.9:443":   "192.0.2.9:443",
		"--external-hostname=2001:db8::1":     "[2001:db8::1]:6443",
	} {
		o, err := parse(append(strings.Fields(args), "--advertise-address=192.0.2.1")...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := o.Complete()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ExternalAddress("6443"); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// TestOptions_AcceptFlagsOfInstallers parses the flags that installers pass.
func TestOptions_AcceptFlagsOfInstallers(t *testing.T) {
	_, err := parse(
		"--advertise-address=192.0.2.1", "--allow-privileged=true", "--authorization-mode=Node,RBAC",
		"--client-ca-file=ca.crt", "--enable-admission-plugins=NodeRestriction",
		"--disable-admission-plugins=DefaultStorageClass",
		"--enable-bootstrap-token-auth=true", "--kubelet-client-certificate=k.crt", "--kubelet-client-key=k.key",
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--kubelet-certificate-authority=ca.crt",
		"--kubelet-port=10250", "--kubelet-read-only-port=10255", "--kubelet-timeout=5s",
		"--requestheader-allowed-names=front-proxy-client", "--requestheader-client-ca-file=f.crt",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User", "--secure-port=6443",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=sa.pub",
		"--service-account-signing-key-file=sa.key", "--service-cluster-ip-range=10.96.0.0/12",
		"--tls-cert-file=a.crt", "--tls-private-key-file=a.key", "--token-auth-file=tokens.csv",
		"--service-node-port-range=30000-32767", "--runtime-config=api/alpha=false", "--feature-gates=",
		"--event-ttl=1h0m0s", "--anonymous-auth=true", "--profiling=false", "--cert-dir=pki", "-v=2",
		"--audit-policy-file=policy.yaml", "--audit-log-path=-", "--max-requests-inflight=400",
		"--shutdown-delay-duration=0s",
		"--proxy-client-cert-file=p.crt", "--proxy-client-key-file=p.key", "--bind-address=127.0.0.1",
		"--http2-max-streams-per-connection=100", "--tls-min-version=VersionTLS13", "--shutdown-send-retry-after=true",
		"--encryption-provider-config=", "--default-not-ready-toleration-seconds=300",
	)
	if err != nil {
		t.Error(err)
	}
}

// TestOptions_NodeRestrictionFollowsTheNodeAuthorizer: the plugin NodeRestriction is on
// with the Node authorizer, unless a flag turns it off.
func TestOptions_NodeRestrictionFollowsTheNodeAuthorizer(t *testing.T) {
	file := func(kind string) string {
		name := filepath.Join(t.TempDir(), "authorization.yaml")
		config := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: " + kind +
			", name: " + strings.ToLower(kind) + "}]\n"
		if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, test := range []struct {
		args string
		want bool
	}{
		{"", true}, // the default is Node,RBAC
		{"--authorization-mode=RBAC", false},
		{"--authorization-mode=RBAC --enable-admission-plugins=NodeRestriction", true},
		{"--authorization-mode=RBAC,Node", true},
		{"--authorization-config=" + file("Node"), true},
		{"--authorization-config=" + file("RBAC"), false},
		{"--admission-control=NamespaceLifecycle", true},
		{"--disable-admission-plugins=NodeRestriction", false},
		{"--disable-admission-plugins=PodSecurity", true},
		{"--authorization-config=" + file("Node") + " --disable-admission-plugins=NodeRestriction", false},
	} {
		o, err := parse(strings.Fields(test.args)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Complete(); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(o.Admission.EnabledPluginNames(), "NodeRestriction"); got != test.want {
			t.Errorf("byre serve %s: NodeRestriction is on: %v", test.args, got)
		}
	}
}

// TestOptions_KnowLoggingFormats: kube-apiserver's formats of the log are accepted.
func TestOptions_KnowLoggingFormats(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		o, err := parse("--logging-format=" + format)
		if err != nil {
			t.Fatal(err)
		}
		if errs := logsapi.Validate(o.Logs, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
			t.Errorf("%s: %v", format, errs)
		}
	}
}

func TestStoreOptions_RefuseAnOddRetention(t *testing.T) {
	t.Parallel()
	o := server.NewStoreOptions()
	o.RetentionFor = map[string]string{"events": "2x"}
	if _, err := o.ResourceRetentions(); err == nil || !strings.Contains(err.Error(), `"2x" is not a time such as 90d`) {
		t.Errorf("%v", err)
	}
}

// What changes all the time is kept for a day at most, unless a flag says otherwise.
func TestStoreOptions_KeepShortLivedHistoryForADay(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		flags       []string
		pods, lease time.Duration // 0: as --retention
	}{
		{nil, day, day},
		{[]string{"--retention=2160h"}, day, day},
		{[]string{"--retention=0"}, day, day},
		{[]string{"--retention=1h"}, 0, 0},
		{[]string{"--retention-for=pods=7d,deployments.apps=90d"}, 7 * day, day},
		{[]string{"--retention-for=*=36h"}, 36 * time.Hour, 36 * time.Hour},
	} {
		o := server.NewStoreOptions()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		all, err := o.ResourceRetentions()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]time.Duration)
		for _, of := range []sqlstore.Resource{{Resource: "pods"}, {Group: "coordination.k8s.io", Resource: "leases"}} {
			for _, r := range all {
				if r.Selects(of) {
					got[of.Resource] = r.Age
				}
			}
		}
		if got["pods"] != test.pods || got["leases"] != test.lease {
			t.Errorf("%q: %v", test.flags, got)
		}
	}
}

// notRead are flags whose files Complete does not read, with who does.
var notRead = map[string]string{
	"encryption-provider-config": "the assembly reads it before it opens the database",
}

// with are the flags without which another one is refused, or has no effect.
var with = map[string][]string{
	"authorization-policy-file":         {"--authorization-mode=ABAC"},
	"authorization-webhook-config-file": {"--authorization-mode=Webhook"},
	"kubelet-client-certificate":        {"--kubelet-client-key=FILE"},
	"kubelet-client-key":                {"--kubelet-client-certificate=FILE"},
	"oidc-ca-file":                      {"--oidc-issuer-url=https://issuer.example", "--oidc-client-id=byre"},
	"proxy-client-cert-file":            {"--proxy-client-key-file=FILE"},
	"proxy-client-key-file":             {"--proxy-client-cert-file=FILE"},
	"service-account-key-file":          {"--service-account-signing-key-file=FILE"},
	"service-account-signing-key-file":  {"--service-account-key-file=FILE"},
	"tls-cert-file":                     {"--tls-private-key-file=FILE"},
	"tls-private-key-file":              {"--tls-cert-file=FILE"},
}

// TestOptions_AWrongFileIsFoundBeforeAnythingIsWritten: for each flag that names a file,
// Complete fails if the file is missing or holds something else. The flags are those whose
// usage says so.
func TestOptions_AWrongFileIsFoundBeforeAnythingIsWritten(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("{garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	tested := 0
	for _, set := range server.NewOptions().Flags().FlagSets {
		set.VisitAll(func(flag *pflag.Flag) {
			if !namesAFile(flag) || flag.Value.Type() == "refused" || notRead[flag.Name] != "" {
				return
			}
			tested++
			for _, file := range []string{garbage, filepath.Join(dir, "missing")} {
				value := file
				if flag.Name == "tls-sni-cert-key" {
					value += "," + file
				}
				args := []string{"--data-dir=" + data, "--" + flag.Name + "=" + value}
				for _, companion := range with[flag.Name] {
					args = append(args, strings.Replace(companion, "FILE", file, 1))
				}
				o, err := parse(args...)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--"+flag.Name) {
					t.Errorf("%v: %v", args, err)
				}
			}
		})
	}
	if tested < 20 {
		t.Errorf("found %d flags, which can't be all", tested)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

func namesAFile(flag *pflag.Flag) bool {
	return strings.HasSuffix(flag.Name, "-file") || strings.Contains(flag.Usage, "File with ") ||
		strings.HasPrefix(flag.Usage, "Kubeconfig file") ||
		strings.HasPrefix(flag.Usage, "CSV file") || strings.HasPrefix(flag.Usage, "Private key of") ||
		strings.Contains(flag.Usage, "lient certificate shown") ||
		strings.Contains(flag.Usage, "certificate and key file") ||
		strings.HasPrefix(flag.Usage, "Client certificate by which")
}

// A flag may name a file that the server makes when it starts for the first time.
func TestOptions_AFileThatTheServerMakesMayBeMissing(t *testing.T) {
	dir := t.TempDir()
	files := pki.Paths(filepath.Join(dir, "pki"))
	o, err := parse("--data-dir="+dir, "--client-ca-file="+files.CACert,
		"--service-account-key-file="+files.ServiceAccount,
		"--service-account-signing-key-file="+files.ServiceAccountKey,
		"--kubelet-client-certificate="+files.KubeletClientCert,
		"--kubelet-client-key="+files.KubeletKey, "--root-ca-file="+files.CACert)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Complete(); err != nil {
		t.Error(err)
	}
}

// A serving certificate that has expired, or is not valid yet, keeps no server from starting. One of another CA does.
func TestOptions_TheRootCAVerifiesACertificateAtItsTime(t *testing.T) {
	ensure := func(now time.Time) pki.Files {
		dir := t.TempDir()
		files, _, err := pki.Ensure(pki.Config{Dir: dir, Server: "https://127.0.0.1:6443", Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	other := ensure(time.Now())
	for _, now := range []time.Time{time.Now().AddDate(-1, 0, -1), time.Now().AddDate(0, 0, 1)} {
		files := ensure(now)
		for ca, isVerified := range map[string]bool{files.CACert: true, other.CACert: false} {
			o, err := parse("--data-dir="+t.TempDir(), "--tls-cert-file="+files.ServingCert,
				"--tls-private-key-file="+files.ServingKey, "--root-ca-file="+ca)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := o.Complete(); (err == nil) != isVerified {
				t.Errorf("a certificate of %v, with its CA %v: %v", now, isVerified, err)
			}
		}
	}
}

// A misspelt or invalid field of --authentication-config may be a restriction that would not hold.
func TestOptions_AWrongAuthenticationConfigurationIsFoundToo(t *testing.T) {
	for field, want := range map[string]string{
		"anonymus: {enabled: false}":                      `unknown field "anonymus"`,
		"jwt: [{issuer: {url: 'http://issuer.example'}}]": "URL scheme must be https",
	} {
		file := filepath.Join(t.TempDir(), "authentication.yaml")
		if err := os.WriteFile(file,
			[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+field+"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parse("--authentication-config=" + file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--authentication-config: ") ||
			!strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", field, err, want)
		}
	}
}

// A file that --admission-control-config-file names for a plugin is found too, relative to it. One for a plugin that is
// off is not read.
func TestOptions_AMissingFileOfAnAdmissionPluginIsFoundToo(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for plugin, want := range map[string]string{
		"{name: ResourceQuota, path: quota.yaml}": "plugin ResourceQuota: open " + filepath.Join(dir,
			"quota.yaml"),
		"{name: ResourceQuota, path: /nonexistent}":                    "plugin ResourceQuota: open /nonexistent",
		"{name: ResourceQuota, path: there}":                           "",
		"{name: ResourceQuota, path: /nonexistent, configuration: {}}": "",
		"{name: ImagePolicyWebhook, path: /nonexistent}":               "",
	} {
		file := filepath.Join(dir, "admission.yaml")
		if err := os.WriteFile(file,
			[]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: ["+plugin+"]\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parse("--admission-control-config-file=" + file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Complete(); (err == nil) != (want == "") || err != nil &&
			!strings.Contains(err.Error(), "--admission-control-config-file: "+file+": "+want) {
			t.Errorf("%s: error is %v, want %q", plugin, err, want)
		}
	}
}
