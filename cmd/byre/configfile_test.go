package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// values has a flag of each kind.
type values struct {
	Switch   bool
	Port     int
	Chance   float64
	Name     string
	Age      time.Duration
	Modes    []string
	Keys     []string
	Curves   []int32
	Pairs    map[string]string
	APIs     cliflag.ConfigurationMap
	SNI      []cliflag.NamedCertKey
	Gates    map[string][]string
	Tracked  string
	Provided bool
	Old      string
}

func newFlags() (*values, *pflag.FlagSet) {
	v := &values{Switch: true, Port: 6443, Name: "default", Modes: []string{"a", "b"}, APIs: cliflag.ConfigurationMap{}, Tracked: "t"}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.BoolVar(&v.Switch, "switch", v.Switch, "")
	fs.IntVar(&v.Port, "port", v.Port, "")
	fs.Float64Var(&v.Chance, "chance", v.Chance, "")
	fs.StringVar(&v.Name, "name", v.Name, "")
	fs.DurationVar(&v.Age, "age", v.Age, "")
	fs.StringSliceVar(&v.Modes, "modes", v.Modes, "")
	fs.StringArrayVar(&v.Keys, "keys", v.Keys, "")
	fs.Int32SliceVar(&v.Curves, "curves", v.Curves, "")
	fs.StringToStringVar(&v.Pairs, "pairs", v.Pairs, "")
	fs.Var(&v.APIs, "apis", "")
	fs.Var(cliflag.NewNamedCertKeyArray(&v.SNI), "sni", "")
	fs.Var(cliflag.NewColonSeparatedMultimapStringStringAllowDefaultEmptyKey(&v.Gates), "gates", "")
	fs.StringVar(&v.Tracked, "tracked", v.Tracked, "")
	fs.StringVar(&v.Old, "old", "", "")
	fs.Lookup("tracked").Value = cliflag.NewTracker(fs.Lookup("tracked").Value, &v.Provided)
	return v, fs
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const header = "apiVersion: byre.dev/v1alpha1\nkind: ServerConfiguration\n"

func TestLoad_SetsEveryKindOfFlag(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	path := write(t, header+`
switch: false
port: 0
chance: 0.5
name: "true" # a string
age: 1h
modes: ["x,y", ""]
keys: [one, 'two"']
curves: [23, 29]
pairs: {events: 2d, "*": a b}
apis: {api/all: false, v1: "true"}
sni: ["a.crt,a.key:*.example.com,example.com", "b.crt,b.key"]
gates: {Own: true, kube:Other: false}
`)
	if err := loadConfigFile(path, flags, flags); err != nil {
		t.Fatal(err)
	}
	want := &values{
		Chance: 0.5, Name: "true", Age: time.Hour, Modes: []string{"x,y", ""}, Keys: []string{"one", `two"`}, Curves: []int32{23, 29},
		Pairs: map[string]string{"events": "2d", "*": "a b"},
		APIs:  cliflag.ConfigurationMap{"api/all": "false", "v1": "true"},
		SNI: []cliflag.NamedCertKey{
			{CertFile: "a.crt", KeyFile: "a.key", Names: []string{"*.example.com", "example.com"}}, {CertFile: "b.crt", KeyFile: "b.key"},
		},
		Gates: map[string][]string{"": {"Own=true"}, "kube": {"Other=false"}}, Tracked: "t",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	checkRoundTrip(t, got, flags)
}

// Encode leaves flags with default values out: setting such a flag would mark it as
// changed.
func TestEncode_LeavesDefaultsAsTheyAre(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	checkRoundTrip(t, got, flags)
	if err := flags.Parse([]string{"--modes=", "--name=", "--tracked=t", "--port=-1"}); err != nil {
		t.Fatal(err)
	}
	checkRoundTrip(t, got, flags)
}

func checkRoundTrip(t *testing.T, want *values, flags *pflag.FlagSet) {
	t.Helper()
	text, err := encodeConfigFile(flags)
	if err != nil {
		t.Fatal(err)
	}
	got, again := newFlags()
	if err := loadConfigFile(write(t, string(text)), again, again); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

func TestLoad_CommandLineWins(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	if err := flags.Parse([]string{"--modes=line", "--apis=b=1", "--port=1"}); err != nil {
		t.Fatal(err)
	}
	if err := loadConfigFile(write(t, header+"modes: [file]\napis: {a: 1}\nport: 2\nname: file\n"), flags, flags); err != nil {
		t.Fatal(err)
	}
	if len(got.Modes) != 1 || got.Modes[0] != "line" || len(got.APIs) != 1 || got.Port != 1 || got.Name != "file" {
		t.Errorf("the flags are %+v", got)
	}
}

// TestLoad_IsStrictForEveryCommand: a command that has few of the server's flags refuses what the server refuses.
func TestLoad_IsStrictForEveryCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"name: file\nport: 1", ""},
		{"nam: file", "line 3: nam is not a flag of byre serve"},
		{"name: file\nport: [1]", "line 4: port must be an integer"},
	} {
		got := "default"
		own := pflag.NewFlagSet("status", pflag.ContinueOnError)
		own.StringVar(&got, "name", got, "")
		_, server := newFlags()
		err := loadConfigFile(write(t, header+c.text), own, server)
		if c.want == "" {
			if err != nil || got != "file" {
				t.Errorf("%q: %q, %v", c.text, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) || got != "default" {
			t.Errorf("%q: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
}

func TestLoad_RefusesInOneLine(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"empty", "", "it must be a mapping"},
		{"list", "- a", "it must be a mapping"},
		{"no version", "kind: ServerConfiguration", `apiVersion must be byre.dev/v1alpha1, not ""`},
		{"another version", "apiVersion: byre.dev/v2\nkind: ServerConfiguration", `not "byre.dev/v2"`},
		{"another kind", "apiVersion: byre.dev/v1alpha1\nkind: Pod", `kind must be ServerConfiguration, not "Pod"`},
		{"unknown field", header + "prot: 1", `line 3: prot is not a flag of byre serve`},
		{"own flag", header + "config: x", "line 3: config is not a flag"},
		{"merge key", header + "<<: {port: 1}", "line 3: << is not a flag"},
		{"duplicate", header + "port: 1\nport: 2", `has "port" twice, in lines 3 and 4`},
		{"duplicate pair", header + "pairs: {a: b, a: c}", `line 3: pairs has "a" twice, in lines 3 and 3`},
		{"duplicate kind", header + "kind: ServerConfiguration", `has "kind" twice, in lines 2 and 3`},
		{"string for a number", header + `port: "1"`, `line 3: port must be an integer, not the string "1"`},
		{"float for an integer", header + "port: 1.5", "line 3: port must be an integer, not 1.5"},
		{"string for a boolean", header + "switch: yes", `line 3: switch must be true or false, not the string "yes"`},
		{"number for a string", header + "name: 5", "line 3: name must be a string, not 5"},
		{"nothing", header + "name:", "line 3: name must be a string, not empty"},
		{"list for a string", header + "name: [a]", "line 3: name must be a string, not a list"},
		{"string for a list", header + "modes: a,b", `line 3: modes must be a list of strings, not the string "a,b"`},
		{"number in a list", header + "modes: [1]", "line 3: modes must be a list of strings, not 1"},
		{"list for a mapping", header + "pairs: [a=b]", "line 3: pairs must be a mapping of strings, not a list"},
		{"mapping in a mapping", header + "pairs: {a: {b: c}}", "line 3: pairs must be a mapping of strings, not a mapping"},
		{"alias", header + "name: &a b\nold: *a", "line 4: old must be a string, not an alias"},
		{"duration without a unit", header + `age: "5"`, "line 3: age can't be set: "},
		{"number out of range", header + "port: 99999999999999999999", "line 3: port must be an integer, not 99999999999999999999"},
		{"two documents", header + "---\n" + header, "it must be one YAML document"},
		{"no YAML", "a: b: c", "mapping values are not allowed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, flags := newFlags()
			path := write(t, test.text)
			err := loadConfigFile(path, flags, flags)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v, want one line with %q", err, test.want)
			}
		})
	}
	_, flags := newFlags()
	if err := loadConfigFile("/no/such/file", flags, flags); err == nil || !strings.Contains(err.Error(), "--config: open /no/such/file") {
		t.Errorf("without the file the error is %v", err)
	}
}
