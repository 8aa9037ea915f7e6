package transfer

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"byre/e2e/programs"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.APIServer, programs.Etcd, programs.Etcd35, programs.Etcd36, programs.Etcdutl,
		programs.Kine, programs.Byre))
}

// command runs a program that must succeed, and returns what it prints.
func command(t *testing.T, program programs.Program, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program.Path(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// refused runs a program that must fail, and returns what it prints.
func refused(t *testing.T, program programs.Program, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program.Path(), args...).CombinedOutput()
	if err == nil {
		t.Fatalf("%s is not refused:\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}
