package packages

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/sassoftware/go-rpmutils"
)

// TestRPM_HasTheFiles reads the package without rpm, and compares its digests.
func TestRPM_HasTheFiles(t *testing.T) {
	t.Parallel()
	file, err := os.Open(built(t, "*."+rpmArch+".rpm"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	header, _, err := rpmutils.Verify(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	var names, configurations, texts []string
	for _, f := range files {
		names = append(names, f.Name())
		if f.Flags()&rpmutils.RPMFILE_CONFIG != 0 && f.Flags()&rpmutils.RPMFILE_NOREPLACE != 0 {
			configurations = append(configurations, f.Name())
		}
		if f.Flags()&rpmutils.RPMFILE_LICENSE != 0 {
			texts = append(texts, path.Base(f.Name()))
		}
	}
	for _, want := range []string{
		"/usr/bin/byre", "/usr/bin/kubectl-byre", "/usr/bin/kubectl_complete-byre", "/usr/lib/systemd/system/byre.service",
		"/usr/lib/sysusers.d/byre.conf",
		"/usr/share/man/man8/byre-serve.8.gz", "/usr/share/zsh/site-functions/_byre",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing of %q", want, names)
		}
	}
	if !slices.Equal(configurations, []string{"/etc/byre/byre.env", "/etc/byre/config.yaml"}) {
		t.Errorf("configuration files that an upgrade keeps: %q", configurations)
	}
	if license, err := header.GetString(rpmutils.LICENSE); err != nil || license != "Apache-2.0" {
		t.Errorf("the licence is %q: %v", license, err)
	}
	if !slices.Equal(texts, licenses) {
		t.Errorf("files that are marked as licences: %q", texts)
	}
	for tag, want := range map[int]string{
		rpmutils.PREIN: "/usr/bin/byre backup", rpmutils.POSTIN: "systemctl try-restart",
		rpmutils.PREUN: "systemctl disable --now", rpmutils.POSTUN: "systemctl daemon-reload",
	} {
		script, err := header.GetString(tag)
		if err != nil || !strings.Contains(script, want) {
			t.Errorf("script %d has no %q: %q, %v", tag, want, script, err)
		}
	}
}
