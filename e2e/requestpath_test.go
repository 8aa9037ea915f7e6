package e2e

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

var updateRequestPaths = flag.Bool("update-requestpaths", false, "write testdata/requestpath")

// counters is a file of byre's package main that the test adds: SIGUSR1 sets the counters of coverage to zero,
// SIGUSR2 writes them into a folder of its own. "N.done" says that the N-th signal was handled.
const counters = `package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime/coverage"
	"strconv"
	"syscall"
)

func init() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for n := 1; ; n++ {
			dir, err := filepath.Join(os.Getenv("GOCOVERDIR"), strconv.Itoa(n)), error(nil)
			if <-signals == syscall.SIGUSR1 {
				err = coverage.ClearCounters()
			} else if err = os.Mkdir(dir, 0o700); err == nil {
				if err = coverage.WriteMetaDir(dir); err == nil {
					err = coverage.WriteCountersDir(dir)
				}
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			_ = os.WriteFile(dir+".done", []byte(text), 0o600)
		}
	}()
}
`

// TestRequests_PassFewFiles counts the files and packages of byre that execute anything for one create, get, list,
// event of a watch, and SQL query. It fails when there are more than testdata/requestpath has, and says which are new.
// -update-requestpaths writes those files.
func TestRequests_PassFewFiles(t *testing.T) {
	programs.Night(t)
	s := startCovered(t)
	c, err := rest.HTTPClientFor(s.Config(servers.AdminToken))
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, path, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= http.StatusBadRequest {
			t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, answer, err)
		}
	}
	const configMaps = "/api/v1/namespaces/default/configmaps"
	created := 0
	create := func() {
		created++
		send(http.MethodPost, configMaps, `{"metadata":{"name":"c`+strconv.Itoa(created)+`"},"data":{"a":"b"}}`)
	}
	const query = `{"apiVersion":"sql.byre.dev/v1","kind":"Query","spec":{"sql":"SELECT name FROM configmaps"}}`
	blocks := map[string]sets.Set[string]{
		"create": s.blocks(t, create),
		"get":    s.blocks(t, func() { send(http.MethodGet, configMaps+"/c1", "") }),
		"list":   s.blocks(t, func() { send(http.MethodGet, configMaps, "") }),
		"sql":    s.blocks(t, func() { send(http.MethodPost, "/apis/sql.byre.dev/v1/queries", query) }),
	}
	watch, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+configMaps+"?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(watch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	events := bufio.NewScanner(resp.Body)
	event := func() {
		t.Helper()
		if !events.Scan() {
			t.Fatalf("the watch ends: %v", events.Err())
		}
	}
	for range created {
		event()
	}
	blocks["watch"] = s.blocks(t, func() { create(); event() }).Difference(blocks["create"])

	for request, executed := range blocks {
		files, packages := sets.New[string](), sets.New[string]()
		for block := range executed {
			file, _, _ := strings.Cut(block, ":")
			files.Insert(file)
			packages.Insert(path.Dir(file))
		}
		t.Logf("%s: %d files in %d packages", request, files.Len(), packages.Len())
		golden := filepath.Join("testdata", "requestpath", request+".txt")
		if *updateRequestPaths {
			text := strings.Join(sets.List(files), "\n") + "\n"
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil { //nolint:gosec // a file of the repository
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if before := strings.Fields(string(text)); files.Len() > len(before) {
			added := sets.List(files.Difference(sets.New(before...)))
			t.Errorf("%s executes %d files in place of %d; new are %s", request, files.Len(), len(before),
				strings.Join(added, " "))
		}
	}
}

// covered is a byre whose packages count what they execute.
type covered struct {
	*servers.Server
	dir     string
	signals int
}

func startCovered(t *testing.T) *covered {
	t.Helper()
	dir := t.TempDir()
	tree, program := filepath.Join(dir, "tree"), filepath.Join(dir, "byre")
	// The file is added to a copy: the tool that adds counters reads no overlay.
	folders := []string{"aggregator", "apiserver", "cmd", "crd", "migrations", "sqlstore", "watch"}
	for _, name := range folders {
		if err := os.CopyFS(filepath.Join(tree, name), os.DirFS(filepath.Join(programs.Root(), name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(programs.Root(), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(tree, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "cmd", "byre", "counters.go"), []byte(counters), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-cover", "-covermode=atomic", "-coverpkg=byre/...",
		"-o", program, "./cmd/byre")
	build.Dir = tree
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := start(t, servers.Byre{
		Dir: filepath.Join(dir, "data"), Program: program, Env: []string{"GOCOVERDIR=" + dir},
		// What runs beside requests would count for them.
		Args: []string{"--controllers="},
	})
	return &covered{Server: s, dir: dir}
}

// signal sends a signal and returns the folder of its counters once it was handled.
func (s *covered) signal(t *testing.T, signal syscall.Signal) string {
	t.Helper()
	s.signals++
	if err := s.Signal(signal); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.dir, strconv.Itoa(s.signals))
	storetest.Eventually(t, "the program has handled the signal", func() bool {
		text, err := os.ReadFile(dir + ".done")
		if err == nil && len(text) > 0 {
			t.Fatalf("counters: %s", text)
		}
		return err == nil
	})
	return dir
}

// blocks returns the blocks of statements that each of several requests has executed, as "byre/FILE:POSITIONS": what
// happens to run beside one of them is not in all.
func (s *covered) blocks(t *testing.T, request func()) (executed sets.Set[string]) {
	t.Helper()
	request() // the first one may build what later ones use
	for range 5 {
		s.signal(t, syscall.SIGUSR1)
		request()
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // what the program does after its answer belongs to it
		dir := s.signal(t, syscall.SIGUSR2)
		text := filepath.Join(s.dir, "text")
		convert := exec.CommandContext(t.Context(), "go", "tool", "covdata", "textfmt", "-i", dir, "-o", text)
		if out, err := convert.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		profile, err := os.ReadFile(text)
		if err != nil {
			t.Fatal(err)
		}
		now := sets.New[string]()
		for line := range bytes.Lines(profile) {
			fields := strings.Fields(string(line))
			if len(fields) == 3 && fields[2] != "0" && !strings.Contains(fields[0], "counters.go") {
				now.Insert(fields[0])
			}
		}
		if executed == nil {
			executed = now
		}
		executed = executed.Intersection(now)
	}
	return executed
}
