package packages

import (
	"archive/tar"
	"debug/buildinfo"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestImage_IsValidAndServes checks every digest and manifest, and starts the program of this
// platform's image, as the image's user, with the image's files as the root directory.
func TestImage_IsValidAndServes(t *testing.T) {
	t.Parallel()
	index := openImage(t, built(t, "*.oci.tar"))
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var image v1.Image
	for _, m := range manifest.Manifests {
		if m.Platform.OS == "linux" && m.Platform.Architecture == runtime.GOARCH {
			if image, err = index.Image(m.Digest); err != nil {
				t.Fatal(err)
			}
		}
	}
	if image == nil {
		t.Fatalf("no image for this machine among %+v", manifest.Manifests)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Architecture != runtime.GOARCH || config.Created.IsZero() {
		t.Errorf("configuration: %+v", config)
	}
	if license := config.Config.Labels["org.opencontainers.image.licenses"]; license != "Apache-2.0" {
		t.Errorf("the licence is %q", license)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may run it in a root of its own")
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	roots := mutate.Extract(image)
	defer roots.Close()
	extract(t, root, roots)
	if pem := readFile(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")); strings.Count(pem,
		"BEGIN CERTIFICATE") < 50 {
		t.Errorf("certificate authorities: %.100s", pem)
	}
	info, err := buildinfo.ReadFile(filepath.Join(root, "usr/bin/byre"))
	if err != nil {
		t.Fatal(err)
	}
	checkLicenses(t, readLicenses(t, filepath.Join(root, "usr/share/doc/byre")), info)
	stock := exec.CommandContext(t.Context(), "/usr/bin/kube-apiserver", "--version")
	stock.Dir, stock.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	if out, err := stock.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "Kubernetes v") {
		t.Errorf("kube-apiserver --version: %q, %v", out, err)
	}
	args := append(append([]string{}, config.Config.Entrypoint[1:]...), config.Config.Cmd...)
	cmd := exec.Command(config.Config.Entrypoint[0], append(args, "--bind-address=127.0.0.1", "--secure-port=0")...)
	cmd.Dir, cmd.Env = config.Config.WorkingDir, config.Config.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	server := startService(t, cmd)
	server.stop(t)
	if _, err := os.Stat(filepath.Join(root, "var/lib/byre/byre.db")); err != nil {
		t.Error(err)
	}
}

// openImage returns the index in an archive of an image layout.
func openImage(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	extract(t, dir, file)
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 ||
		manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] == "" {
		t.Fatalf("the layout has %+v, want one index with a tag: %v", manifest, err)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// extract writes what a tar archive holds, with its modes and owners.
func extract(t *testing.T, dir string, archive io.Reader) {
	t.Helper()
	r := tar.NewReader(archive)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeSymlink {
			if err := os.Symlink(header.Linkname, name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
			err = writeFile(name, r)
		}
		if err == nil {
			err = os.Chmod(name, header.FileInfo().Mode())
		}
		if err == nil && header.Uid != 0 {
			err = os.Chown(name, header.Uid, header.Gid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeFile(name string, content io.Reader) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err = io.Copy(file, content); err != nil {
		_ = file.Close() // the copy's error says more
		return err
	}
	return file.Close()
}
