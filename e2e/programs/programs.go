package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// KubernetesVersion is what the stock programs say they are. It is the version
// of k8s.io/kubernetes in go.mod; the stamp is only needed because a build from
// a module knows no Git tag.
const KubernetesVersion = "v1.37.2"

// Program is something that can be built.
type Program struct {
	name    string
	pkg     string // import path, or a directory relative to the repository
	module  string // directory of the module to build in, relative to the repository
	out     string // relative to the repository
	ldflags string
	extra   string // directory of files that are compiled with those of pkg, relative to the repository
}

const kubernetesStamp = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=" + KubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=37"

// The programs.
var (
	Byre      = Program{"byre", "./cmd/byre", ".", "bin/byre", "", ""}
	Kubectl   = Program{"kubectl", "k8s.io/kubernetes/cmd/kubectl", "e2e", "bin/e2e/kubectl", kubernetesStamp, ""}
	APIServer = Program{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "e2e", "bin/e2e/kube-apiserver",
		kubernetesStamp, ""}
	// ControllerManager and Scheduler are upstream's; byre has both in its process too.
	ControllerManager = Program{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", "e2e",
		"bin/e2e/kube-controller-manager", kubernetesStamp, ""}
	Scheduler = Program{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", "e2e", "bin/e2e/kube-scheduler",
		kubernetesStamp, ""}

	Etcd    = Program{"etcd", "go.etcd.io/etcd/server/v3", "e2e", "bin/e2e/etcd", "-s -w", ""}
	Etcdutl = Program{"etcdutl", "go.etcd.io/etcd/etcdutl/v3", "e2e", "bin/e2e/etcdutl", "-s -w", ""}
	// Etcd35 and Etcd36 are of earlier minor versions, whose snapshots byre imports.
	Etcd35 = Program{"etcd 3.5", "go.etcd.io/etcd/server/v3", "e2e/programs/etcd35", "bin/e2e/etcd-3.5", "-s -w", ""}
	Etcd36 = Program{"etcd 3.6", "go.etcd.io/etcd/server/v3", "e2e/programs/etcd36", "bin/e2e/etcd-3.6", "-s -w", ""}
	Helm   = Program{"helm", "helm.sh/helm/v4/cmd/helm", "e2e/programs/helm", "bin/e2e/helm", "-s -w", ""}
	Kine   = Program{"kine", "github.com/k3s-io/kine", "e2e/programs/kine", "bin/e2e/kine", "-s -w", ""}
	Wardle = Program{"sample-apiserver", "k8s.io/sample-apiserver", "e2e", "bin/e2e/sample-apiserver", "-s -w", ""}
	Faulty = Program{"byre with a driver that kills it", "./robustness/faulty", "e2e", "bin/e2e/faulty", "", ""}
	// SettableClock is byre whose wall clock a file sets.
	SettableClock = Program{"byre whose clock can be set", "./cmd/byre", ".", "bin/e2e/byre-clock", "-checklinkname=0",
		"e2e/robustness/testdata/clock"}
	// Guard ends the processes of a failover test.
	Guard = Program{"guard", "./failover/guard", "e2e", "bin/e2e/guard", "-s -w", ""}
	// Litestream replicates a SQLite file.
	Litestream = Program{"litestream", "github.com/benbjohnson/litestream/cmd/litestream", "e2e/programs/litestream",
		"bin/e2e/litestream", "-s -w", ""}
	// Versitygw serves a directory by S3's protocol.
	Versitygw = Program{"versitygw", "github.com/versity/versitygw/cmd/versitygw", "e2e/programs/versitygw",
		"bin/e2e/versitygw", "-s -w", ""}
	Kubelet = Program{"kubelet", "k8s.io/kubernetes/cmd/kubelet", "e2e/programs/kubelet", "bin/e2e/kubelet",
		kubernetesStamp, ""}
	// Kubemark is upstream's hollow kubelet: a kubelet before a fake of a container runtime.
	Kubemark = Program{"kubemark", "k8s.io/kubernetes/cmd/kubemark", "e2e/programs/kubelet", "bin/e2e/kubemark",
		kubernetesStamp, ""}
	Kwok = Program{"kwok", "sigs.k8s.io/kwok/cmd/kwok", "e2e/programs/kwok", "bin/e2e/kwok", "-s -w", ""}
	// Ginkgo runs upstream's end-to-end tests, several at a time.
	Ginkgo = Program{"ginkgo", "github.com/onsi/ginkgo/v2/ginkgo", "e2e/programs/conformance", "bin/e2e/ginkgo", "-s -w",
		""}
)

// Build builds the programs, one after the other. The error of a failed build contains the
// output of the go command.
func Build(ctx context.Context, programs ...Program) error {
	for _, p := range programs {
		args := []string{"build", "-o", p.Path()}
		if p.ldflags != "" {
			args = append(args, "-ldflags", p.ldflags)
		}
		if p.extra != "" {
			overlay, err := p.overlay()
			if err != nil {
				return err
			}
			defer os.Remove(overlay)
			args = append(args, "-overlay", overlay)
		}
		cmd := exec.CommandContext(ctx, "go", append(args, p.pkg)...)
		cmd.Dir = filepath.Join(Root(), p.module)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", p.name, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// overlay writes a file for the go command that puts the extra files among those of the package.
func (p Program) overlay() (path string, err error) {
	extra := filepath.Join(Root(), p.extra)
	entries, err := os.ReadDir(extra)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, entry := range entries {
		replace[filepath.Join(Root(), p.module, p.pkg, "extra_"+entry.Name())] = filepath.Join(extra, entry.Name())
	}
	file, err := os.CreateTemp("", "overlay-*.json")
	if err != nil {
		return "", err
	}
	return file.Name(), errors.Join(json.NewEncoder(file).Encode(map[string]any{"Replace": replace}), file.Close())
}

// Path is where the program is once it has been built.
func (p Program) Path() string { return filepath.Join(Root(), p.out) }

// Dir is the directory that holds kubectl and the stock servers, for a PATH.
func Dir() string { return filepath.Dir(Kubectl.Path()) }

// Root is the repository: two directories above this file, or above the
// working directory where the build left file names out.
func Root() string {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		return filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	dir, err := os.Getwd()
	if err != nil {
		return ".."
	}
	return filepath.Dir(dir)
}
