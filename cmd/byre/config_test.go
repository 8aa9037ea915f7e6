package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"byre/apiserver/server"
	"byre/cmd/byre/status"
)

// samples are values by the type of flag, other than any flag's default.
var samples = map[string]string{
	"Level": "3", "bool": "", "colonSeparatedMultimapStringString": "APIServerIdentity=false", "duration": "77s",
	"float32": "0.5", "float64": "0.25", "int": "77", "int32Slice": "23,29", "int64": "770", "ip": "192.0.2.7",
	"mapStringString": "v1=true,api/beta=false", "namedCertKey": "a.crt,a.key:*.example.com,example.com",
	"pattern=N,...": "watch*=3,feed=1", "portRange": "31000-31999", "quantity": "7Gi", "string": "text: #1",
	"stringArray": "a,b", "stringSlice": `a,"b,c"`, "stringToString": "events=2d,*=36h", "uint": "77",
}

// TestConfig_RoundTripsEveryFlag sets every flag of serve to another value than its
// default, and passes what `byre config` prints to --config.
func TestConfig_RoundTripsEveryFlag(t *testing.T) {
	args := []string{"config"}
	for _, set := range newServerOptions().Flags().FlagSets {
		set.VisitAll(func(flag *pflag.Flag) {
			sample, known := samples[flag.Value.Type()]
			switch {
			case flag.Value.Type() == "refused":
				return
			case flag.Name == "apiserver-count" || flag.Name == "enable-logs-handler":
				sample = flag.DefValue // they accept no other value
			case !known:
				t.Errorf("--%s: no sample of type %s", flag.Name, flag.Value.Type())
			case flag.Value.Type() == "bool" && flag.DefValue == "false":
				sample = "true"
			case flag.Value.Type() == "bool":
				sample = "false"
			}
			args = append(args, "--"+flag.Name+"="+sample)
		})
	}
	first := output(t, args...)
	for _, arg := range args[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.Contains("\n"+first, "\n"+name+":") {
			t.Errorf("the output lacks %s", name)
		}
	}
	if diff := cmp.Diff(first, output(t, "config", "--config", configFile(t, first))); diff != "" {
		t.Errorf("from the output it prints another (-want +got):\n%s", diff)
	}
	defaults := output(t, "config")
	for _, name := range []string{"authorization-mode", "authorization-webhook-cache-authorized-ttl"} {
		if !strings.Contains(defaults, "\n# "+name+":") {
			t.Errorf("the default of %s is no comment: it would exclude authorization-config", name)
		}
	}
	if diff := cmp.Diff(defaults, output(t, "config", "--config", configFile(t, defaults))); diff != "" {
		t.Errorf("from the defaults it prints others (-want +got):\n%s", diff)
	}
}

// output runs the program in a process of its own, because a run changes process-wide
// settings, and returns what it prints.
func output(t *testing.T, args ...string) string {
	t.Helper()
	p := command(t, "", args...)
	if status := p.wait(t); status != 0 {
		t.Fatalf("byre %s: status %d\n%s", args[0], status, p.log)
	}
	lines := strings.SplitAfter(p.log.String(), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "Flag --") { // the warning of a deprecated flag
		lines = lines[1:]
	}
	return strings.Join(lines, "")
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConfig_Serves starts a server with the printed file. The port of the command line
// takes precedence over the file's.
func TestConfig_Serves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := configFile(t,
		output(t, "config", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=1", "--retention=77m"))
	p := command(t, dir, "serve", "--config", file, "--secure-port=0")
	awaitReady(t, p)
	retention := regexp.MustCompile(`(?m)^retention\W+1h17m0s$`) // upstream varies the separator
	if status, flags := p.mustGet(t, "/flagz"); status != 200 || !retention.MatchString(flags) {
		t.Errorf("/flagz answers %d without the retention", status)
	}
}

func TestConfig_IsRefusedInOneLine(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"secure_port: 1", `: line 1: secure_port is not a flag of byre serve: see "byre serve --help"`},
		{"secure-port: {a: 1}", ": line 1: secure-port must have a value, or a list of values"},
		{"etcd-servers: http://127.0.0.1:2379",
			": line 1: etcd-servers can't be set: objects are kept in SQLite or PostgreSQL: use --endpoint"},
		{"secure-port: 70000", "byre: --secure-port must be between 0 and 65535, not 70000"},
	} {
		p := command(t, "", "serve", "--data-dir", t.TempDir(), "--config", configFile(t, test.text))
		if status := p.wait(t); status != 1 || !strings.HasSuffix(p.log.String(), test.want+"\n") ||
			strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q, want %q", test.text, status, p.log, test.want)
		}
	}
}

// Each command that opens the database, the keys or the server finds them by the configuration: the fields
// of the file that it has no flag for change nothing.
func TestConfiguration_IsThatOfEachCommand(t *testing.T) {
	onSharedServers(t, func(t *testing.T, server *sharedByre) {
		text := "data-dir: " + server.dir + "\nbind-address: 127.0.0.1\nsecure-port: 0\n"
		if !strings.HasPrefix(server.endpoint, "sqlite:") {
			text += "endpoint: " + server.endpoint + "\n"
		}
		t.Setenv("BYRE_CONFIG", configFile(t, text))
		t.Setenv("HOME", server.dir)
		var s status.Status
		out, _ := succeed(t, "status", "--output=json")
		if err := json.Unmarshal([]byte(out), &s); err != nil || s.Server == nil || len(s.Certificates) != 6 ||
			len(s.Alarms) > 0 {
			t.Errorf("status: %v, %s", err, out)
		}
		file := filepath.Join(t.TempDir(), "backup.zst")
		for _, args := range [][]string{
			{"check"}, {"backup", file}, {"fork", "--to", filepath.Join(t.TempDir(), "fork")},
			{"export", "etcd", file + ".etcd"},
			{"certs", "status"}, {"kubeconfig", "--user=alice"}, {"migrate", "status"}, {"sql", "views"},
		} {
			if args[0] == "sql" && !strings.HasPrefix(server.endpoint, "sqlite:") {
				continue // on PostgreSQL the server keeps the views
			}
			succeed(t, args...)
		}
		if out := output(t, "compact"); !strings.Contains(out, "all younger than --keep 1h0m0s") {
			t.Errorf("compact of a young history: %s", out)
		}
		if out := output(t, "sql", "SELECT name FROM namespaces"); !strings.Contains(out, "kube-system") {
			t.Errorf("sql: %s", out)
		}
		if code, _, errOut := call("restore", file); code != 1 || !strings.Contains(errOut, "empty") &&
			!strings.Contains(errOut, "in use") {
			t.Errorf("restore into the server's database: %d, %s", code, errOut)
		}
		if code, _, errOut := call("check", "--data-dir", t.TempDir()); code != 1 ||
			!strings.Contains(errOut, "there is no database in") {
			t.Errorf("check of another directory: %d, %s", code, errOut)
		}
	})
}

// A flag wins over its variable, which wins over the file.
func TestConfiguration_NamesTheSourceOfEachFlag(t *testing.T) {
	const text = "retention: 2h\nsecure-port: 2\nbind-address: 192.0.2.2\nretention-for: [events=2d]\n"
	file := configFile(t, text+"gc-percent: 1\n")
	code, _, errOut := call("config", "--config", file)
	if code != 1 || !strings.Contains(errOut, "line 5: gc-percent is not a flag of byre serve") {
		t.Errorf("of an unknown field: %d, %s", code, errOut)
	}
	file = configFile(t, text+"shutdown-delay-duration: 0s\n")
	for name, value := range map[string]string{
		"BYRE_CONFIG": file, "BYRE_SECURE_PORT": "3", "BYRE_CONTROLLERS": "", "BYRE_FLAGS": "--v=9",
		"BYRE_PORT": "tcp://192.0.2.1",
	} {
		t.Setenv(name, value)
	}
	t.Setenv("BYRE_BIND_ADDRESS", "192.0.2.3")
	want := "bind-address: 192.0.2.4 # flag\nretention: 2h0m0s # " + file + "\nretention-for: [events=2d] # " + file +
		"\nsecure-port: 3 # BYRE_SECURE_PORT\n"
	got := output(t, "config", "--changed", "--bind-address=192.0.2.4")
	t.Setenv("BYRE_BIND_ADDRESS", "")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// It is a file for --config, which names itself then.
	again := configFile(t, got)
	t.Setenv("BYRE_SECURE_PORT", "")
	if diff := cmp.Diff(strings.NewReplacer("# flag", "# "+again, "# "+file, "# "+again, "# BYRE_SECURE_PORT",
		"# "+again).Replace(want), output(t, "config", "--changed", "--config="+again)); diff != "" {
		t.Errorf("of its own output (-want +got):\n%s", diff)
	}
	t.Setenv("BYRE_SECURE_PORT", "three")
	if code, _, errOut := call("config"); code != 1 || !strings.HasPrefix(errOut, "byre: BYRE_SECURE_PORT: ") {
		t.Errorf("of a wrong variable: %d, %s", code, errOut)
	}
}

// The file of the host is about the server of the host only.
func TestConfiguration_OfTheHost(t *testing.T) {
	t.Setenv("BYRE_DATABASE_SCHEMA", "tenant")
	host := filepath.Join(t.TempDir(), "config.yaml")
	namedBy := func(args ...string) (namedStore, error) {
		var store server.StoreOptions
		cmd := &cobra.Command{Use: "test", RunE: func(*cobra.Command, []string) error { return fs.ErrNotExist }}
		store.AddDatabaseFlags(cmd.Flags())
		config := newConfiguration(host)
		config.addTo(cmd.Flags())
		cmd.PersistentPreRunE = config.setNamed
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return namedStore{store.DataDir, store.Endpoint, store.DatabaseSchema}, err
	}
	check := func(want namedStore, args ...string) {
		t.Helper()
		if got, err := namedBy(args...); got != want || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %+v, %v, want %+v", args, got, err, want)
		}
	}
	check(namedStore{schema: "tenant"})
	if err := os.WriteFile(host, []byte("data-dir: /host\nendpoint: postgres://host/byre\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(namedStore{"/host", "postgres://host/byre", "tenant"})
	check(namedStore{"/host", "postgres://host/byre", "other"}, "--database-schema=other")
	check(namedStore{dir: "/other"}, "--data-dir=/other")
	check(namedStore{endpoint: "postgres://other/byre"}, "--endpoint=postgres://other/byre")
	check(namedStore{"/other", "postgres://host/byre", "tenant"}, "--data-dir=/other", "--config="+host)
	t.Setenv("BYRE_DATA_DIR", "/variable")
	check(namedStore{dir: "/variable", schema: "tenant"})
}

type namedStore struct{ dir, endpoint, schema string }

// Flags of commands that have the name of one of the server mean the same, or are known to mean something
// else: those are never set by the configuration.
func TestConfiguration_SetsOnlyFlagsOfTheSameMeaning(t *testing.T) {
	t.Parallel()
	serve := serverFlags(newServerOptions().Flags())
	others := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if name := cmd.Name(); name == "serve" || name == "config" {
			return
		}
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(flag *pflag.Flag) {
				if serve.Lookup(flag.Name) != nil && !slices.Contains(namedFlags, flag.Name) {
					others[flag.Name] = true
				}
			})
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRootCommand())
	// Of a client, of the etcd that is imported, of "byre backup --with-pki" alone, and of "byre etcd" and "byre api",
	// whose database is another one than that of the server on the same host.
	want := map[string]bool{
		"request-timeout": true, "etcd-prefix": true, "age-recipient": true, "allow-unsafe-durability": true,
		"compaction-interval": true, "database-quota": true, "disk-reserve": true, "retention": true,
		"retention-changes": true, "retention-for": true, "advertise-address": true, "bind-address": true,
		"secure-port": true,
	}
	if diff := cmp.Diff(want, others); diff != "" {
		t.Errorf("decide for each whether it belongs in namedFlags (-want +got):\n%s", diff)
	}
	// Kubernetes sets these for Services of the name byre, and byre's packages and tests the others.
	for _, name := range []string{"port", "service-host", "service-port", "port-6443-tcp", "flags", "binary", "url",
		"token"} {
		if serve.Lookup(name) != nil {
			t.Errorf("the variable %s has another meaning than --%s", variableOf(name), name)
		}
	}
}
