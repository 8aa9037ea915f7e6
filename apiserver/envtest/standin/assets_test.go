package standin_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"byre/apiserver/envtest/standin"
)

// program writes an executable file.
func program(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	return path
}

func TestMake_LinksEachNameToTheProgram(t *testing.T) {
	t.Parallel()
	cache, byre := t.TempDir(), program(t, filepath.Join(t.TempDir(), "byre"))
	dirs := make([]string, 8)
	var group sync.WaitGroup
	for i := range dirs { // concurrently, as packages are tested
		group.Go(func() {
			var err error
			if dirs[i], err = standin.MakeAssets(cache, "v1.37.2", byre); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] {
			t.Errorf("the folder is %s and %s", dirs[0], dir)
		}
	}
	entries, err := os.ReadDir(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 3 {
		t.Errorf("the folder has %v", entries)
	}
	for _, name := range []string{standin.KubeAPIServer, standin.Etcd, standin.Kubectl} {
		if to, err := os.Readlink(filepath.Join(dirs[0], name)); err != nil || to != byre {
			t.Errorf("%s leads to %q, %v", name, to, err)
		}
	}
}

func TestMake_RepairsExistingLinks(t *testing.T) {
	t.Parallel()
	cache, byre := t.TempDir(), program(t, filepath.Join(t.TempDir(), "byre"))
	dir, err := standin.MakeAssets(cache, "v1.37.2", byre)
	if err != nil {
		t.Fatal(err)
	}
	etcd := filepath.Join(dir, standin.Etcd)
	if err := os.Remove(etcd); err != nil {
		t.Fatal(err)
	}
	program(t, etcd)
	if again, err := standin.MakeAssets(cache, "v1.37.2", byre); err != nil || again != dir {
		t.Fatal(again, err)
	}
	if to, err := os.Readlink(etcd); err != nil || to != byre {
		t.Errorf("etcd leads to %q, %v", to, err)
	}
	for name, other := range map[string][2]string{
		"another version": {"v1.38.0", byre}, "another program": {"v1.37.2", program(t, filepath.Join(t.TempDir(), "byre"))},
	} {
		if got, err := standin.MakeAssets(cache, other[0], other[1]); err != nil || got == dir {
			t.Errorf("%s has the folder %s, %v", name, got, err)
		}
	}
}

func TestFindKubectl_SkipsByreItself(t *testing.T) {
	t.Parallel()
	byre, kubectl := program(t, filepath.Join(t.TempDir(), "byre")), program(t, filepath.Join(t.TempDir(), "kubectl"))
	links, err := standin.MakeAssets(t.TempDir(), "v1.37.2", byre)
	if err != nil {
		t.Fatal(err)
	}
	list := func(dirs ...string) string {
		joined := ""
		for _, dir := range dirs {
			joined += dir + string(os.PathListSeparator)
		}
		return joined
	}
	for _, test := range []struct{ name, path, variable, want string }{
		{"the next on the PATH", list(".", links, t.TempDir(), filepath.Dir(kubectl)), "", kubectl},
		{"KUBECTL", "", kubectl, kubectl},
		{"none", list(links, t.TempDir()), "", ""},
		{"KUBECTL that is byre", list(filepath.Dir(kubectl)), filepath.Join(links, standin.Kubectl), ""},
		{"KUBECTL that is missing", list(filepath.Dir(kubectl)), kubectl + "2", ""},
	} {
		env := map[string]string{"PATH": test.path, "KUBECTL": test.variable}
		got, err := standin.FindKubectl(byre, func(name string) string { return env[name] })
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
		if test.name == "none" && !errors.Is(err, standin.ErrNoKubectl) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
