package operator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"byre/apiserver/envtest/standin"
	"byre/e2e/programs"
)

// Host is a machine of a test: a directory in place of /.
type Host struct {
	// Name is the host's name, which its services see too where the test runs as root.
	Name string
	// Dir is its root, Port that of its byre.
	Dir, Port string
	// Args are further arguments of its services: what a test needs and the page does not say.
	Args map[string][]string
	// Peers are the hosts to which scp copies, by their names in commands.
	Peers map[string]*Host

	replacer   *strings.Replacer
	env        []string
	dispatcher *dispatcher
}

// paths are those that commands of the page may name. Each is below the Host's directory.
var paths = []string{"/etc/byre", "/etc/kubernetes", "/etc/systemd", "/var/lib/byre", "/var/lib/kubelet",
	"/var/backups", "/usr/bin/"}

// foreign matches a path of the machine in a command.
var foreign = regexp.MustCompile(`(?:^|[\s=:'">(])(/(?:etc|var|usr|opt|srv|root|home|backup)\b\S*)`)

// NewHost makes a host whose home directory, where commands are typed, is empty. The pairs of
// replace are further replacements in what is typed, old and new in turn.
func NewHost(t *testing.T, name string, replace ...string) *Host {
	t.Helper()
	port, err := standin.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), name)
	h := &Host{Name: name, Dir: dir, Port: port, Args: map[string][]string{
		// The config.yaml that a recovery unpacks names the directory of another Host.
		"byre": {"--bind-address=127.0.0.1", "--secure-port=" + port, "--data-dir=" + filepath.Join(dir, "var/lib/byre")},
	}}
	for _, dir := range []string{"root", "bin", "etc/systemd/system", "usr/bin", "usr/lib/systemd/system", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pairs := append(slices.Clone(replace),
		"https://127.0.0.1:6443", "https://127.0.0.1:"+port,
		"tar -C / ", "tar -C "+h.Dir+" ",
		"%H%M%S", "%H%M%S.%N", // a test makes two backups within a second
		"--owner=byre", fmt.Sprintf("--owner=%d", os.Getuid()), "--group=byre", fmt.Sprintf("--group=%d", os.Getgid()))
	for _, path := range paths {
		pairs = append(pairs, path, h.Dir+path)
	}
	h.replacer = strings.NewReplacer(pairs...)
	h.standIn(t)
	// The first folder has the programs that are stood in for.
	h.env = append(os.Environ(), "HOME="+h.Home(), "KUBECONFIG=",
		"PATH="+filepath.Join(h.Dir, "bin")+":"+filepath.Join(h.Dir, "usr/bin")+":"+programs.Dir()+":"+os.Getenv("PATH"))
	return h
}

// Home is the directory in which commands are typed.
func (h *Host) Home() string { return filepath.Join(h.Dir, "root") }

// Path is that of a file of the host.
func (h *Host) Path(name string) string { return filepath.Join(h.Dir, name) }

// Setenv sets a variable of the shell.
func (h *Host) Setenv(name, value string) { h.env = append(h.env, name+"="+value) }

// EditScript changes a script in the home directory, which names paths of the host.
func (h *Host) EditScript(t *testing.T, name string, edit func(script string) string) {
	t.Helper()
	path := filepath.Join(h.Home(), name)
	script, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(h.replacer.Replace(edit(string(script)))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// WithoutSystemctl removes the commands of a script that call systemctl.
func WithoutSystemctl(script string) string {
	return regexp.MustCompile(`(?m)^systemctl .*\n`).ReplaceAllString(script, "")
}

// Type types commands into the host's shell, which keeps exported variables, and returns what
// they print. Each command must succeed.
func (h *Host) Type(t *testing.T, commands string) string {
	t.Helper()
	typed := h.replacer.Replace(commands)
	for _, match := range foreign.FindAllStringSubmatch(typed, -1) {
		if !strings.HasPrefix(match[1], h.Dir) {
			t.Fatalf("the page names %s, which is not below the directory of the test; this was not typed:\n%s", match[1], typed)
		}
	}
	state := filepath.Join(h.Dir, "variables")
	script := "set -eo pipefail\nif [ -e " + state + " ]; then . " + state + "; fi\n" + typed + "\ndeclare -px >" + state +
		"\n"
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Env = h.Home(), h.env
	out, err := cmd.CombinedOutput()
	t.Logf("%s# %s\n%s", h.Name, strings.ReplaceAll(strings.TrimSpace(typed), "\n", "\n> "), out)
	if err != nil {
		t.Fatalf("on %s this failed: %v", h.Name, err)
	}
	return string(out)
}

// Package puts the package of a byre into the home directory: a link to the program, with the
// name of a package.
func (h *Host) Package(t *testing.T, program, version string) {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(h.Home(), "byre_*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program, filepath.Join(h.Home(), "byre_"+version+"_amd64.deb")); err != nil {
		t.Fatal(err)
	}
}
