package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"byre/apiserver/server"
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
	for _, set := range server.NewOptions().Flags().FlagSets {
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
		if !strings.Contains(first, "\n"+name+":") {
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
	file := configFile(t, output(t, "config", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=1", "--retention=77m"))
	p := command(t, dir, "serve", "--config", file, "--secure-port=0")
	awaitReady(t, p)
	retention := regexp.MustCompile(`(?m)^retention\W+1h17m0s$`) // upstream varies the separator
	if status, flags := p.mustGet(t, "/flagz"); status != 200 || !retention.MatchString(flags) {
		t.Errorf("/flagz answers %d without the retention", status)
	}
}

func TestConfig_IsRefusedInOneLine(t *testing.T) {
	const header = "apiVersion: byre.dev/v1alpha1\nkind: ServerConfiguration\n"
	for _, test := range []struct{ text, want string }{
		{header + "secure_port: 1", `: line 3: secure_port is not a flag of byre serve: see "byre serve --help"`},
		{header + `secure-port: "1"`, `: line 3: secure-port must be an integer, not the string "1"`},
		{header + "etcd-servers: http://127.0.0.1:2379", ": line 3: etcd-servers can't be set: objects are kept in SQLite or PostgreSQL: use --endpoint"},
		{header + "secure-port: 70000", "byre: --secure-port must be between 0 and 65535, not 70000"},
	} {
		p := command(t, "", "serve", "--data-dir", t.TempDir(), "--config", configFile(t, test.text))
		if status := p.wait(t); status != 1 || !strings.HasSuffix(p.log.String(), test.want+"\n") || strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q, want %q", test.text, status, p.log, test.want)
		}
	}
}
