package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// wanted asks for the test, which takes minutes.
const wanted = "E2E_CONFORMANCE"

var (
	database = flag.String("database", "", "sqlite or postgres; empty means one after the other")
	focus    = flag.String("focus", "", "run only the tests whose names match this regular expression")
	results  = flag.String("results", "../../bin/conformance", "the directory of the results")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(wanted) == "" {
		fmt.Println("make conformance runs upstream's conformance tests")
		os.Exit(m.Run()) // which skips
	}
	os.Exit(programs.Main(m, programs.Byre, programs.Kubectl, programs.Kwok, programs.Ginkgo))
}

// TestConformance_UpstreamsTestsPass runs upstream's tests on each kind of database.
func TestConformance_UpstreamsTestsPass(t *testing.T) {
	if os.Getenv(wanted) == "" {
		t.Skip(wanted + " is not set")
	}
	known := false
	for _, kind := range []struct {
		name      string
		openStore func(*testing.T) string
	}{
		{"sqlite", func(*testing.T) string { return "" }},
		{"postgres", func(t *testing.T) string { return pgtest.DSN(t) }},
	} {
		if *database != "" && *database != kind.name {
			continue
		}
		known = true
		t.Run(kind.name, func(t *testing.T) {
			dir, err := filepath.Abs(filepath.Join(*results, kind.name))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			judge(t, runTests(t, dir, startCluster(t, kind.openStore(t))))
		})
	}
	if !known {
		t.Errorf("no database %q", *database)
	}
}

// startCluster starts byre with the controllers and the scheduler, and the nodes that kwok keeps.
func startCluster(t *testing.T, endpoint string) *servers.Server {
	t.Helper()
	dir := t.TempDir()
	server, err := servers.Byre{
		Dir: filepath.Join(dir, "byre"), Endpoint: endpoint,
		Args: []string{"--with-scheduler", "--with-controller-manager", "--allow-privileged"},
	}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("byre ended with: %v\n%s", err, server.LogTail())
		}
	})
	kwok, err := servers.Kwok{Dir: dir, Kubeconfig: server.Kubeconfig, Address: "127.0.0.1"}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kwok.Kill)
	client, err := kubernetes.NewForConfig(server.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node(fmt.Sprintf("node-%d", i)),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return server
}

// nodes is how many there are: some tests want two.
const nodes = 2

func node(name string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{servers.KwokAnnotation: "fake"},
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			},
		},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

// spec is what Ginkgo reports of a test.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	Failure                 struct{ Message string }
}

// runTests runs the tests and returns what Ginkgo reports of them. The log and the report are
// in dir.
func runTests(t *testing.T, dir string, server *servers.Server) []spec {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	t.Logf("the log of the tests is %s", log.Name())
	args := []string{
		// Most tests wait most of the time.
		"--procs=8", "--no-color", "--silence-skips", "--timeout=2h",
		"--label-filter=Conformance", "--focus=" + *focus,
		"--json-report=report.json", "--output-dir=" + dir,
	}
	for _, group := range needContainers {
		args = append(args, "--skip="+group)
	}
	args = append(args, filepath.Join(programs.Dir(), "e2e.test"), "--",
		"--kubeconfig="+server.Kubeconfig, "--kubectl-path="+programs.Kubectl.Path(),
		"--provider=skeleton", "--disable-log-dump", "--e2e-output-dir="+t.TempDir())
	cmd := exec.CommandContext(t.Context(), programs.Ginkgo.Path(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		t.Errorf("ginkgo: %v", err) // The report has the tests that failed.
	}
	content, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(content, &suites); err != nil {
		t.Fatal(err)
	}
	var specs []spec
	for _, suite := range suites {
		specs = append(specs, suite.SpecReports...)
	}
	return specs
}

// judge reports what failed, the suite's set-up too, and fails if too few tests ran.
func judge(t *testing.T, specs []spec) {
	t.Helper()
	var ran, passed int
	for _, s := range specs {
		if s.State == "skipped" || s.State == "pending" {
			continue
		}
		if s.State != "passed" {
			t.Errorf("%s: %s %s: %s", s.State, strings.Join(s.ContainerHierarchyTexts, " "), s.LeafNodeText, s.Failure.Message)
		}
		if s.LeafNodeType == "It" {
			ran++
			if s.State == "passed" {
				passed++
			}
		}
	}
	t.Logf("%d tests ran, %d passed", ran, passed)
	least := least
	if *focus != "" {
		least = 1
	}
	if passed < least {
		t.Errorf("%d tests passed, fewer than %d: the selection may no longer fit the tests", passed, least)
	}
}
