package envtest_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/apiserver/envtest"
	"byre/sqlstore/storetest"
)

// launchOnly makes the test binary launch a server, print its address, and wait to be
// killed.
const launchOnly = "ENVTEST_TEST_LAUNCH_ONLY"

func TestMain(m *testing.M) {
	flag.Parse()
	switch {
	case os.Getenv(launchOnly) != "":
		_, err := envtest.Launch(context.Background())
		fmt.Println(err)
		select {}
	case testing.Short():
		fmt.Println("skipped: every test starts byre")
		return
	}
	// make build does the same. It takes a second if the program is up to date.
	program, err := filepath.Abs("../../bin/byre")
	if err == nil {
		build := exec.Command("go", "build", "-o", program, "byre/cmd/byre")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err == nil {
		err = os.Setenv("BYRE_BINARY", program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// One server may serve the tests of a whole package: TestMain launches it.
func ExampleLaunch() {
	ctx := context.Background()
	server, err := envtest.Launch(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := kubernetes.NewForConfigOrDie(server.Config())
	created, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "greeting"}, Data: map[string]string{"text": "hello"},
	}, metav1.CreateOptions{})
	fmt.Println(created.Data["text"], err)
	fmt.Println(server.Stop())
	// Output:
	// hello <nil>
	// <nil>
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// isGone reports whether the server no longer answers. Another server at its address has
// another CA and does not count as an answer.
func isGone(t *testing.T, config *rest.Config) bool {
	t.Helper()
	_, err := clientFor(t, config).Discovery().ServerVersion()
	return err != nil
}

// TestStart_GivesEachTestAServerOfItsOwn runs four environments at a time and checks that
// none leaves a process or a file.
func TestStart_GivesEachTestAServerOfItsOwn(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	configs := make([]*rest.Config, 4)
	t.Run("environments", func(t *testing.T) {
		for i := range configs {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				config := envtest.Start(t)
				configs[i] = config
				client := clientFor(t, config)
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "same-name"}}
				if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				// The controllers run: they make the account and delete the namespace.
				storetest.EventuallyDone(t, "the namespace has its service account", func(ctx context.Context) (bool, error) {
					_, err := client.CoreV1().ServiceAccounts("same-name").Get(ctx, "default", metav1.GetOptions{})
					return err == nil, err
				})
			})
		}
	})
	for _, config := range configs {
		if config != nil && !isGone(t, config) {
			t.Errorf("the server at %q goes on after its test", config.Host)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestStart_PassesFlagsOn(t *testing.T) {
	client := clientFor(t, envtest.Start(t, "--controllers=", "--runtime-config=apps/v1=false"))
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.Groups {
		if group.Name == "apps" {
			t.Error("apps/v1 is served")
		}
	}
}

func TestLaunch_TellsWhyAServerDoesNotStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := envtest.Launch(t.Context(), "--event-ttl=0s")
	if err == nil || !strings.Contains(err.Error(), "--event-ttl must be positive") {
		t.Errorf("a wrong flag: %v", err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	t.Setenv("BYRE_BINARY", filepath.Join(t.TempDir(), "byre"))
	if _, err := envtest.Launch(t.Context()); err == nil || !strings.Contains(err.Error(), "BYRE_BINARY") {
		t.Errorf("a program that is not there: %v", err)
	}
	t.Setenv("BYRE_BINARY", "")
	t.Setenv("PATH", "")
	if _, err := envtest.Launch(t.Context()); err == nil || !strings.Contains(err.Error(), "set BYRE_BINARY") {
		t.Errorf("no program: %v", err)
	}
}

// TestLaunch_ServerEndsWithTheTestsProcess kills the process that has launched a server:
// the server ends too.
func TestLaunch_ServerEndsWithTheTestsProcess(t *testing.T) {
	// The server inherits the write end of this pipe. A read returns EOF once both
	// processes have ended.
	running, inherited, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), launchOnly+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{inherited}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := inherited.Close(); err != nil {
		t.Error(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || said != "<nil>\n" {
		t.Errorf("the server did not start: %s %v", said, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if err := running.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, running); err != nil {
		t.Errorf("the server goes on: %v", err)
	}
}
