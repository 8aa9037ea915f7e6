package packages

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// host is a directory that dpkg uses as the root of a machine.
type host struct{ root string }

func newHost(t *testing.T) host {
	t.Helper()
	h := host{t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc",
		"var/lib/byre"} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(h.path("var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h host) path(name string) string { return filepath.Join(h.root, name) }

// dpkg installs or removes; the scripts of packages run in this machine, with DPKG_ROOT.
func (h host) dpkg(t *testing.T, args ...string) {
	t.Helper()
	mustRun(t, "dpkg",
		append([]string{"--root=" + h.root, "--force-script-chrootless", "--force-not-root", "--force-depends",
			"--force-bad-path"}, args...)...)
}

// start starts the service as its unit says.
func (h host) start(t *testing.T) *service {
	t.Helper()
	unit := readUnit(t, h.path("usr/lib/systemd/system/byre.service"))
	flags := ""
	for line := range strings.Lines(readFile(t, h.path("etc/byre/byre.env"))) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "BYRE_FLAGS="); ok {
			flags = value
		}
	}
	if !slices.Contains(unit["EnvironmentFile"], "-/etc/byre/byre.env") ||
		!slices.Contains(unit["StateDirectory"], "byre") {
		t.Fatalf("the unit reads %q and keeps its data in %q", unit["EnvironmentFile"], unit["StateDirectory"])
	}
	config := h.path("etc/byre/config.yaml")
	text := strings.Replace(readFile(t, config), "\ndata-dir: /var/lib/byre\n", "\ndata-dir: "+h.path("var/lib/byre")+"\n",
		1)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	line := strings.NewReplacer("/usr/bin/", h.path("usr/bin")+"/", "/etc/byre/", h.path("etc/byre")+"/", "$BYRE_FLAGS",
		flags).Replace(unit["ExecStart"][0])
	words := strings.Fields(line)
	return startService(t, exec.Command(words[0], words[1:]...))
}

// clientset is a client with the kubeconfig that the service writes for root of that machine.
func (h host) clientset(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", h.path("var/lib/byre/admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}

// TestDeb_KeepsTheData installs, starts, upgrades, removes, purges and installs again.
func TestDeb_KeepsTheData(t *testing.T) {
	t.Parallel()
	old := built(t, "*_"+debArch+".deb")
	needs(t, "dpkg")
	needs(t, "systemd-sysusers")
	next := filepath.Join(upgrade(t, "deb"), "byre_99.0.0_"+debArch+".deb")
	h := newHost(t)

	h.dpkg(t, "--install", old)
	if users := readFile(t, h.path("etc/passwd")); !strings.Contains(users, "byre:") {
		t.Errorf("there is no user byre: %s", users)
	}
	h.checkLicenses(t)
	configure(t, h.path("etc/byre/byre.env"))
	server := h.start(t)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := h.clientset(t).CoreV1().ConfigMaps("default").Create(t.Context(), object,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	server.stop(t)
	h.mustHaveObject(t)

	h.dpkg(t, "--install", next)
	if status := readFile(t, h.path("var/lib/dpkg/status")); !strings.Contains(status, "Version: 99.0.0") {
		t.Errorf("the package was not upgraded: %s", status)
	}
	h.mustHaveObject(t)

	h.dpkg(t, "--remove", "byre")
	if _, err := os.Stat(h.path("usr/bin/byre")); err == nil {
		t.Error("the program is still there after the removal")
	}
	h.dpkg(t, "--install", next)
	h.mustHaveObject(t)

	h.dpkg(t, "--purge", "byre")
	if _, err := os.Stat(h.path("etc/byre/byre.env")); err == nil {
		t.Error("the configuration is still there after the purge")
	}
	h.dpkg(t, "--install", next)
	configure(t, h.path("etc/byre/byre.env"))
	h.mustHaveObject(t)
}

// checkLicenses checks what Debian wants of each package, and the texts beside it.
func (h host) checkLicenses(t *testing.T) {
	t.Helper()
	doc := h.path("usr/share/doc/byre")
	if text := readFile(t, filepath.Join(doc, "copyright")); !strings.Contains(text, "\nLicense: Apache-2.0\n") {
		t.Errorf("copyright: %s", text)
	}
	info, err := buildinfo.ReadFile(h.path("usr/bin/byre"))
	if err != nil {
		t.Fatal(err)
	}
	checkLicenses(t, readLicenses(t, doc), info)
}

// mustHaveObject starts the service, with the configuration made at the beginning, and checks
// that the object created at the beginning is there.
func (h host) mustHaveObject(t *testing.T) {
	t.Helper()
	server := h.start(t)
	if _, err := h.clientset(t).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("the object created at the beginning: %v", err)
	}
	server.stop(t)
}

// upgrade makes a package of a later version of the same program, whose unit sets UPGRADED in
// the program's environment, and returns the package's directory.
func upgrade(t *testing.T, kind string) string {
	t.Helper()
	tree, target := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(tree, "packaging"), os.DirFS(filepath.Join(repository, "packaging"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "docs", "README.md", "CHANGELOG.md"} {
		if err := os.Symlink(filepath.Join(repository, name), filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	unit := filepath.Join(tree, "packaging", "systemd", "byre.service")
	text := strings.Replace(readFile(t, unit), "[Service]\n", "[Service]\nEnvironment=UPGRADED=yes\n", 1)
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(tree, "packaging", "package.sh"), kind, target)
	later := strconv.FormatInt(time.Now().Unix(), 10)
	cmd.Env = append(os.Environ(), "VERSION=99.0.0", "SOURCE_DATE_EPOCH="+later, "PLATFORMS=linux/"+debArch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return target
}

// configure is what an administrator changes.
func configure(t *testing.T, file string) {
	t.Helper()
	text := strings.Replace(readFile(t, file), "\nBYRE_FLAGS=\n",
		"\nBYRE_FLAGS=--bind-address=127.0.0.1 --secure-port=0\n", 1)
	if !strings.Contains(text, "--secure-port=0") {
		t.Fatalf("no line of flags in %s", text)
	}
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}
