package standin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// The names of the links to byre.
const (
	KubeAPIServer = "kube-apiserver"
	Etcd          = "etcd"
	Kubectl       = "kubectl"
)

// MakeAssets returns the path of the folder for an executable of byre, and makes the folder
// if it is missing. The folder is below cache. Its name has the Kubernetes version and
// a hash of the executable's path, so that two programs never share a folder. Several
// processes may call Make at the same time.
func MakeAssets(cache, version, executable string) (string, error) {
	sum := sha256.Sum256([]byte(executable))
	dir := filepath.Join(cache, "byre", "envtest", version+"-"+hex.EncodeToString(sum[:4]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{KubeAPIServer, Etcd, Kubectl} {
		if err := link(executable, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// link makes path a symbolic link to target. It replaces an existing link atomically,
// because another process may start the program at the same time.
func link(target, path string) error {
	if is, err := os.Readlink(path); err == nil && is == target {
		return nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	fresh := filepath.Join(dir, "link")
	err = os.Symlink(target, fresh)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// ErrNoKubectl is the error of FindKubectl if there is no kubectl.
var ErrNoKubectl = errors.New("byre has no kubectl of its own: put one on the PATH or set KUBECTL to its path " +
	"(https://kubernetes.io/docs/tasks/tools/, or \"make kubectl\" in byre's repository)")

// FindKubectl returns the path of the kubectl to run: the one that the variable KUBECTL
// names, or the first one in the directories of PATH that is not self.
func FindKubectl(self string, getenv func(string) string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	if given := getenv("KUBECTL"); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("KUBECTL: %w", err)
		}
		if isFile(path, own) {
			return "", errors.New("KUBECTL leads to byre itself: set it to a kubectl")
		}
		return path, nil
	}
	for _, dir := range filepath.SplitList(getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // exec.LookPath does not run programs of the working directory either
		}
		path, err := exec.LookPath(filepath.Join(dir, Kubectl))
		if err == nil && !isFile(path, own) {
			return path, nil
		}
	}
	return "", ErrNoKubectl
}

// isFile reports whether path leads to the file that info describes.
func isFile(path string, info fs.FileInfo) bool {
	found, err := os.Stat(path)
	return err == nil && os.SameFile(found, info)
}
