package packages

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// manager is how an administrator uses a kind of package.
type manager struct {
	kind    string
	pattern string // of its file in bin/dist
	next    string // the file of the next version
	version []string
	install []string // also upgrades
	remove  []string
}

// managers are those of Debian. Its rpm installs only when it is forced, and knows nothing of
// the packages that dpkg has installed, so that it finds no dependency.
var managers = []manager{{
	kind: "deb", pattern: "byre_*_" + debArch + ".deb", next: "byre_99.0.0_" + debArch + ".deb",
	version: []string{"dpkg-query", "--showformat=${Version}", "--show", "byre"},
	install: []string{"dpkg", "--install"},
	remove:  []string{"dpkg", "--remove", "byre"},
}, {
	kind: "rpm", pattern: "byre-*." + rpmArch + ".rpm", next: "byre-99.0.0-1." + rpmArch + ".rpm",
	version: []string{"rpm", "--query", "--queryformat=%{VERSION}", "byre"},
	install: []string{"rpm", "--force-debian", "--nodeps", "--upgrade", "--replacepkgs"},
	remove:  []string{"rpm", "--force-debian", "--erase", "byre"},
}}

// TestSystemd_RunsWhatPackagesInstall installs, enables, upgrades, removes and installs again
// under a systemd that runs, so that it runs the scripts of the packages, and the unit with
// all its restrictions.
func TestSystemd_RunsWhatPackagesInstall(t *testing.T) {
	t.Parallel()
	for _, packages := range managers {
		t.Run(packages.kind, func(t *testing.T) {
			t.Parallel()
			needs(t, packages.install[0])
			testLifecycle(t, packages, filepath.Base(built(t, packages.pattern)))
		})
	}
}

func testLifecycle(t *testing.T, packages manager, first string) {
	m := newMachine(t, upgrade(t, packages.kind))
	install := func(file string) { m.run(t, append(packages.install, file)...) }
	enable := func() { m.run(t, "systemctl", "enable", "--now", "byre.service") }

	install("/released/" + first)
	m.mustBe(t, "after the installation", map[string]string{
		"LoadState": "loaded", "NeedDaemonReload": "no", "ActiveState": "inactive", "UnitFileState": "disabled"})
	configure(t, m.path("/etc/byre/byre.env"))
	enable()
	running := map[string]string{
		"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no", "NRestarts": "0", "Result": "success"}
	m.mustBe(t, "after the start", running)
	m.mustBeConfined(t)
	m.kubectl(t, "create", "configmap", "kept")

	old := m.property(t, "MainPID")
	install("/next/" + packages.next)
	if version := m.run(t, packages.version...); version != "99.0.0" {
		t.Errorf("version %s after the upgrade", version)
	}
	m.mustBe(t, "after the upgrade", running)
	pid := m.property(t, "MainPID")
	if pid == old {
		t.Error("the upgrade has not restarted byre")
	}
	if !strings.Contains(readFile(t, m.path("/proc/"+pid+"/environ")), "UPGRADED=yes") {
		t.Error("the upgrade has restarted byre with the unit before the upgrade")
	}
	if environment := readFile(t, m.path("/etc/byre/byre.env")); !strings.Contains(environment, "--secure-port=0") {
		t.Errorf("the upgrade has replaced the configuration: %s", environment)
	}
	m.kubectl(t, "get", "configmap", "kept")
	// The program before the upgrade has made a backup.
	if out := m.run(t, "byre", "backup", "verify", "/var/lib/byre/upgrades"); strings.Count(out,
		": complete, revision ") != 1 {
		t.Errorf("backups of the upgrade: %s", out)
	}
	// Root needs no flags.
	if out := m.run(t, "byre", "status"); !strings.Contains(out, "ready") ||
		!strings.Contains(out, "/var/lib/byre/upgrades/byre-") {
		t.Errorf("byre status: %s", out)
	}

	m.run(t, "systemctl", "stop", "byre.service")
	install("/next/" + packages.next)
	m.mustBe(t, "after an upgrade of a byre that is stopped",
		map[string]string{"ActiveState": "inactive", "UnitFileState": "enabled"})

	// A standby has a copy, and no database to back up.
	m.run(t, "mv", "/var/lib/byre/byre.db", "/var/lib/byre/byre.db.standby")
	install("/next/" + packages.next)
	m.run(t, "mv", "/var/lib/byre/byre.db.standby", "/var/lib/byre/byre.db")

	// Another host has migrated the database, so that the program before the upgrade can't read it.
	setSchema := func(version int) {
		t.Helper()
		// SQLite would follow the link at the beginning of the path to this machine.
		inMachine, file := m.path("/var/lib/byre/byre.db"), filepath.Join(t.TempDir(), "byre.db")
		copyTo(t, inMachine, file)
		defer copyTo(t, file, inMachine)
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(),
			fmt.Sprintf(`UPDATE byre_schema_version SET version = %[1]d; UPDATE store SET least_version = %[1]d`, version))
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	setSchema(999)
	install("/next/" + packages.next)
	setSchema(1)

	// A file that byre can't read is no reason to refuse an upgrade.
	m.run(t, "install", "--mode=600", "/dev/null", "/var/lib/byre/upgrades/byre-by-root.zst")
	install("/next/" + packages.next)
	if out := m.run(t, "ls", "/var/lib/byre/upgrades"); strings.Count(out, ".zst") != 4 {
		t.Errorf("backups of three upgrades, and one of root: %s", out)
	}

	m.run(t, "systemctl", "start", "byre.service")
	pid = m.property(t, "MainPID")
	m.run(t, "chmod", "0", "/var/lib/byre/upgrades")
	m.run(t, "sh", "-c", "! "+strings.Join(append(packages.install, "/next/"+packages.next), " "))
	if m.property(t, "MainPID") != pid {
		t.Error("an upgrade that was refused has restarted byre")
	}
	if packages.kind == "deb" {
		m.run(t, "dpkg", "--configure", "--pending")
	}
	process := m.path("/proc/" + m.property(t, "MainPID"))
	m.run(t, packages.remove...)
	m.mustBe(t, "after the removal", map[string]string{"LoadState": "not-found", "ActiveState": "inactive"})
	for _, gone := range []string{process, m.path("/usr/bin/byre"),
		m.path("/etc/systemd/system/multi-user.target.wants/byre.service")} {
		if _, err := os.Lstat(gone); err == nil {
			t.Errorf("%s is still there after the removal", gone)
		}
	}
	m.run(t, "id", "byre")

	if packages.kind == "deb" {
		m.run(t, "dpkg", "--purge", "byre")
	}
	install("/released/" + first)
	m.mustBe(t, "after another installation", map[string]string{"ActiveState": "inactive", "UnitFileState": "disabled"})
	enable()
	m.kubectl(t, "get", "configmap", "kept")
	// What the restrictions refuse a program, it logs.
	if log := m.run(t, "journalctl", "--unit=byre.service", "--no-pager"); strings.Contains(strings.ToLower(log),
		"not permitted") {
		t.Errorf("the restrictions refuse what byre does:\n%s", log)
	}
}

// mustBeConfined checks that the process of the unit runs as its user, under a filter of system
// calls, and sees a file system that it can't write to.
func (m machine) mustBeConfined(t *testing.T) {
	t.Helper()
	process := m.path("/proc/" + m.property(t, "MainPID"))
	status := map[string]string{}
	for line := range strings.Lines(readFile(t, filepath.Join(process, "status"))) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	user := m.run(t, "id", "--user", "byre")
	const none = "0000000000000000"
	for key, want := range map[string]string{
		"Uid": strings.TrimSpace(strings.Repeat(user+" ", 4)), "CapEff": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2", // SECCOMP_MODE_FILTER
	} {
		if status[key] != want {
			t.Errorf("%s of byre's process is %q, want %q", key, status[key], want)
		}
	}
	if user == "0" {
		t.Error("byre runs as root")
	}
	options := map[string]string{}
	for line := range strings.Lines(readFile(t, filepath.Join(process, "mounts"))) {
		fields := strings.Fields(line)
		options[fields[1]] = fields[3]
	}
	for directory, want := range map[string]string{"/": "ro", "/usr": "ro", "/etc": "ro", "/var/lib/byre": "rw",
		"/var/log/byre": "rw"} {
		if first, _, _ := strings.Cut(options[directory], ","); first != want {
			t.Errorf("byre sees %s mounted with %q, want %s", directory, options[directory], want)
		}
	}
}

// copyTo copies a file over another one, which keeps its owner.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
