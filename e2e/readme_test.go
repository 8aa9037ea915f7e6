package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/sqlstore/storetest"
)

// TestReadme_TwoCommandsDoTheSetUp types the first commands of README.md, in a network of the
// test's own because byre then serves on its default port.
func TestReadme_TwoCommandsDoTheSetUp(t *testing.T) {
	programs.Night(t)
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net", "--pid", "--fork", "ip", "link", "set", "lo",
		"up").CombinedOutput(); err != nil {
		t.Skipf("this machine does not let the test make a network: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(programs.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 5 || blocks[0][1] != "make run\n" || !strings.HasPrefix(blocks[1][1], "export KUBECONFIG=") {
		t.Fatalf("README.md begins with other commands: %q", blocks)
	}
	// What is typed is the page's, but for the background and the place of the data.
	script := `set -e
ip link set lo up
ip address add 192.0.2.1/32 dev lo # for the endpoints of the Service kubernetes
make -C "$ROOT" run DATA_DIR="$PWD/byre-data" >log 2>&1 &
make=$!
until kubectl --kubeconfig byre-data/admin.kubeconfig get --raw /readyz; do kill -0 $make; sleep 0.1; done >/dev/null 2>&1
` + blocks[1][1] + blocks[3][1] + "kill $make\nwait $make || true\n"
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "ROOT="+programs.Root(), "PATH="+programs.Dir()+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if log, logErr := os.ReadFile(filepath.Join(cmd.Dir, "log")); err != nil || logErr != nil {
		t.Fatalf("%v\n%s\n%s%v", err, out, log, logErr)
	}
	for _, want := range []string{"deployment.apps/web created\n", blocks[4][1]} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the commands print\n%s, without %q", out, want)
		}
	}
}
