package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeHistory answers as a server with one change of the ConfigMap a, in the namespace shop. A watch has a
// second change, and ends.
func fakeHistory(w http.ResponseWriter, r *http.Request) {
	const (
		changes  = "/apis/history.byre.dev/v1/namespaces/shop/changes"
		change   = `"metadata":{"name":"5"},"revision":5,"replaces":4,"verb":"patch","object":{"group":"","resource":"configmaps","namespace":"shop","name":"a"}`
		metadata = `"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}`
	)
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]string{
		"/api":                                 `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                                `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1":                              `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["get"]}]}`,
		"/api/v1/namespaces/shop/configmaps/a": `{` + metadata + `,"data":{"color":"red"}}`,
		changes:                                `{"items":[{` + change + `}]}`,
		changes + "/5": `{` + change + `,"before":{` + metadata + `,"data":{"color":"blue"}},
			"after":{` + metadata + `,"data":{"color":"red"}}}`,
	}[r.URL.Path]
	switch query := r.URL.Query(); {
	case query.Get("watch") != "":
		answer = `{"type":"ADDED","object":{"rows":[{"cells":["6","dave","-","x"],"object":{` + change + `}}]}}
			{"type":"ADDED","object":{"rows":[{"cells":["7","a name that is longer","-","x"],"object":{` + change + `}}]}}
			{"type":"ADDED","object":{"rows":[{"cells":["8","eve","-","x"],"object":{` + change + `}}]}}
			{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old"}}`
	case strings.Contains(r.Header.Get("Accept"), "as=Table"):
		answer = `{"columnDefinitions":[{"name":"Revision"},{"name":"Who"},{"name":"Manager","priority":1},{"name":"Object"}],
			"rows":[{"cells":["5","änne","-","x"],"object":{` + change + `}}]}`
	}
	fmt.Fprint(w, answer)
}

// newFakeHistory starts such a server, and returns the flags of a command for it.
func newFakeHistory(t *testing.T) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(fakeHistory))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"-n", "shop", "--server", server.URL, "--kubeconfig", kubeconfig}
}

// openTerminal makes a terminal, and returns its two sides.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// onTerminal runs the program on a terminal, and returns its status, and what the terminal shows.
func onTerminal(t *testing.T, env []string, args ...string) (status int, shown string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts byre")
	}
	master, slave := openTerminal(t)
	defer master.Close()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), executable, args...)
	cmd.Stdout, cmd.Stderr = slave, slave
	own := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"PAGER", "LESS", "NO_COLOR"}, name)
	})
	cmd.Env = append(append(own, asProgram+"=1", "TERM=xterm"), env...)
	err = errors.Join(cmd.Start(), slave.Close())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(master) // until the program and its pager have closed the terminal
	if err != nil && !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the status is in ProcessState
	return cmd.ProcessState.ExitCode(), strings.ReplaceAll(string(text), "\r\n", "\n")
}

// A pager shows what a command prints on a terminal, in colours; the user can have it otherwise.
func TestPast_PagesAndColorsOnATerminal(t *testing.T) {
	t.Parallel()
	flags := newFakeHistory(t)
	const (
		plain   = "\n-  color: blue\n+  color: red\n"
		colored = "\n\x1b[31m-  color: blue\x1b[m\n\x1b[32m+  color: red\x1b[m\n"
		number  = "PAGER=sed s/^/page:/"
		less    = "#!/bin/sh\necho less with $LESS\ncat\n"
	)
	paged := strings.ReplaceAll(colored, "\n", "\npage:")
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "less"), []byte(less), 0o700); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + programs + ":" + os.Getenv("PATH")
	for name, test := range map[string]struct {
		command string
		env     []string
		status  int
		want    string
	}{
		"pages in colour":         {"diff configmap/a", []string{number}, 0, paged},
		"no pager":                {"diff configmap/a", []string{"PAGER="}, 0, colored},
		"NO_COLOR":                {"diff configmap/a", []string{"PAGER=", "NO_COLOR=1"}, 0, plain},
		"never colour":            {"diff configmap/a --color=never", []string{"PAGER="}, 0, plain},
		"colour against NO_COLOR": {"diff configmap/a --color=always", []string{"PAGER=", "NO_COLOR=1"}, 0, colored},
		"dumb terminal":           {"diff configmap/a", []string{number, "TERM=dumb"}, 0, plain},
		"missing pager": {"diff configmap/a", []string{"PAGER=no-such-pager"}, 1,
			`the pager "no-such-pager": exit status 127: set PAGER to another program`},
		"pager that a user stops": {"diff configmap/a", []string{"PAGER=kill -INT $$"}, 0, ""},
		"less":                    {"show configmap/a --at 5", []string{path}, 0, "less with FRX\napiVersion: v1\n"},
		"less with options":       {"show configmap/a --at 5", []string{path, "LESS=F"}, 0, "less with F\napiVersion: v1\n"},
		"blame":                   {"blame configmap/a", []string{number}, 0, "page:REVISION"},
		"log":                     {"log", []string{number}, 0, "page:REVISION"},
		"log that is followed":    {"log --follow", []string{number}, 1, "\n5 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, shown := onTerminal(t, test.env, append(strings.Fields(test.command), flags...)...)
			if status != test.status || !strings.Contains(shown, test.want) {
				t.Errorf("status %d, %q, want %q", status, shown, test.want)
			}
		})
	}
}

// What is followed continues the columns of the list.
func TestPast_LogAlignsWhatItFollows(t *testing.T) {
	t.Parallel()
	const want = "REVISION   WHO    OBJECT\n5          änne   x\n6          dave   x\n" +
		"7          a name that is longer   x\n8          eve                     x\n"
	args := append([]string{"log", "--follow"}, newFakeHistory(t)...)
	if status, out, errOut := call(args...); status != 1 || out != want ||
		!strings.Contains(errOut, "can't be followed any more") {
		t.Errorf("status %d, %q\n%s", status, errOut, out)
	}
}

// With --follow there is no list that could end.
func TestPast_LogFollowsInOtherFormats(t *testing.T) {
	t.Parallel()
	flags := newFakeHistory(t)
	for format, want := range map[string]string{
		"wide": "REVISION   WHO    MANAGER   OBJECT\n", "name": "change.history.byre.dev/5\n",
		"json": "{\n  \"metadata\": {\n    \"name\": \"5\"\n", "yaml": "---\nmetadata:\n  name: \"5\"\n",
	} {
		if status, out, _ := call(append([]string{"log", "--follow", "-o", format}, flags...)...); status != 1 ||
			!strings.HasPrefix(out, want) ||
			format != "wide" && strings.Count(out, want) != 4 {
			t.Errorf("%s: status %d, %s", format, status, out)
		}
	}
}
