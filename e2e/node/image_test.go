package node

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	busyboxPath = "/bin/busybox"
	// image is the one image here: that of containers, and of the sandboxes that hold
	// their namespaces.
	image = "localhost/busybox:1"
)

// writeImage writes an archive of an image with the static busybox of this machine.
func writeImage(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile(busyboxPath)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	write := func(header *tar.Header, content []byte) {
		header.Size = int64(len(content))
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	write(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	write(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, applet := range []string{"sh", "cat", "echo", "head", "httpd", "id", "ls", "sleep", "tar", "test", "true"} {
		write(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	content := layer.Bytes()
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	built, err := mutate.AppendLayers(empty.Image, added)
	if err != nil {
		t.Fatal(err)
	}
	config, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", goarch
	config.Config = v1.Config{Cmd: []string{"/bin/sleep", "2147483647"}, Env: []string{"PATH=/bin"}}
	if built, err = mutate.ConfigFile(built, config); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(image)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(path, tag, built); err != nil {
		t.Fatal(err)
	}
	return path
}
