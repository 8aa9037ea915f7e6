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
	v := &values{Switch: true, Port: 6443, Name: "default", Modes: []string{"a", "b"}, APIs: cliflag.ConfigurationMap{},
		Tracked: "t"}
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

func TestLoad_SetsEveryKindOfFlag(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	path := write(t, `
switch: false
port: 0
chance: 0.5
name: "true" # a string
age: 1h
modes: ["x,y", ""]
keys: [one, 'two"']
curves: [23, 29]
pairs: [events=2d, "*=a b"]
apis: [api/all=false, v1=true]
sni: ["a.crt,a.key:*.example.com,example.com", "b.crt,b.key"]
gates: "Own=true,kube:Other=false"
`)
	if err := loadConfigFile(path, flags, flags); err != nil {
		t.Fatal(err)
	}
	want := &values{
		Chance: 0.5, Name: "true", Age: time.Hour, Modes: []string{"x,y", ""}, Keys: []string{"one", `two"`},
		Curves: []int32{23, 29},
		Pairs:  map[string]string{"events": "2d", "*": "a b"},
		APIs:   cliflag.ConfigurationMap{"api/all": "false", "v1": "true"},
		SNI: []cliflag.NamedCertKey{
			{CertFile: "a.crt", KeyFile: "a.key", Names: []string{"*.example.com", "example.com"}},
			{CertFile: "b.crt", KeyFile: "b.key"},
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
	if err := flags.Parse([]string{"--modes=", "--name=", "--tracked=t", "--port=-1", "--old=null"}); err != nil {
		t.Fatal(err)
	}
	checkRoundTrip(t, got, flags)
}

func checkRoundTrip(t *testing.T, want *values, flags *pflag.FlagSet) {
	t.Helper()
	text := encodeConfigFile(flags)
	got, again := newFlags()
	if err := loadConfigFile(write(t, text), again, again); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

// A value is taken as it is written: YAML's types don't matter, because a flag has its own.
func TestLoad_TakesValuesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	text := `
name: 0600
old: true
port: "1"
switch: "false"
modes: a,b
keys: [5, 2026-01-02]
age: 0
pairs: a=b
`
	if err := loadConfigFile(write(t, text), flags, flags); err != nil {
		t.Fatal(err)
	}
	want, _ := newFlags()
	want.Name, want.Old, want.Port, want.Switch, want.Modes = "0600", "true", 1, false, []string{"a", "b"}
	want.Keys, want.Pairs = []string{"5", "2026-01-02"}, map[string]string{"a": "b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	checkRoundTrip(t, got, flags)
	for _, empty := range []string{"", "# name: x\n", "{}"} {
		got, flags := newFlags()
		want, _ := newFlags()
		if err := loadConfigFile(write(t, empty), flags, flags); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%q: %v, %+v", empty, err, got)
		}
	}
}

func TestLoad_CommandLineWins(t *testing.T) {
	t.Parallel()
	got, flags := newFlags()
	if err := flags.Parse([]string{"--modes=line", "--apis=b=1", "--port=1"}); err != nil {
		t.Fatal(err)
	}
	if err := loadConfigFile(write(t, "modes: [file]\napis: a=1\nport: 2\nname: file\n"), flags, flags); err != nil {
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
		{"nam: file", "line 1: nam is not a flag of byre serve"},
		{"name: file\nport: {a: 1}", "line 2: port must have a value"},
	} {
		got := "default"
		own := pflag.NewFlagSet("status", pflag.ContinueOnError)
		own.StringVar(&got, "name", got, "")
		_, server := newFlags()
		err := loadConfigFile(write(t, c.text), own, server)
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
		{"list", "- a", "it must be one YAML mapping"},
		{"unknown flag", "name: a\nprot: 1", `line 2: prot is not a flag of byre serve`},
		{"own flag", "config: x", "line 1: config is not a flag"},
		{"merge key", "<<: {port: 1}", "line 1: << is not a flag"},
		{"list as a name", "[a]: b", "line 1:  is not a flag"},
		{"duplicate", "port: 1\nport: 2", `line 2: port is there twice`},
		{"string for a number", "port: one", "line 1: port can't be set: "},
		{"float for an integer", "port: 1.5", "line 1: port can't be set: "},
		{"string for a boolean", "switch: yes", "line 1: switch can't be set: "},
		{"nothing", "name:", "line 1: name must have a value"},
		{"null", "name: ~", "line 1: name must have a value"},
		{"null in a list", "modes: [a, null]", "line 1: modes must have a value"},
		{"mapping", "pairs: {a: b}", "line 1: pairs must have a value, or a list of values"},
		{"list in a list", "pairs: [[a=b]]", "line 1: pairs must have a value"},
		{"alias", "name: &a b\nold: *a", "line 2: old must have a value"},
		{"pair without a value", "pairs: [a]", "line 1: pairs can't be set: "},
		{"duration without a unit", `age: "5"`, "line 1: age can't be set: "},
		{"number out of range", "port: 99999999999999999999", "line 1: port can't be set: "},
		{"two documents", "port: 1\n---\nport: 2", "it must be one YAML mapping"},
		{"no YAML", "a: b: c", "mapping values are not allowed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, flags := newFlags()
			path := write(t, test.text)
			err := loadConfigFile(path, flags, flags)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v, want one line with %q", err, test.want)
			}
		})
	}
	_, flags := newFlags()
	if err := loadConfigFile("/no/such/file", flags, flags); err == nil ||
		!strings.Contains(err.Error(), "--config: open /no/such/file") {
		t.Errorf("without the file the error is %v", err)
	}
}
