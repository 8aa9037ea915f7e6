package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user that the program runs as, and its group: those of distroless images.
const nonroot = 65532

// file is a file or, with a mode that says so, a directory or a symbolic link of a layer. The
// content of a link is where it leads.
type file struct {
	name    string
	mode    fs.FileMode
	owner   int
	content []byte
}

// newBaseLayer returns the layer that is the same on all platforms.
func newBaseLayer(created time.Time) (v1.Layer, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		// A root with a constraint beside its certificate (an earlier end of its validity)
		// is left out: the file cannot express the constraint.
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return newLayer(created, []file{
		{name: "etc/", mode: fs.ModeDir | 0o755},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot)},
		{name: "etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil,
			"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/var/lib/byre:/sbin/nologin\n", nonroot, nonroot)},
		{name: "etc/ssl/", mode: fs.ModeDir | 0o755},
		{name: "etc/ssl/certs/", mode: fs.ModeDir | 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "tmp/", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{name: "var/", mode: fs.ModeDir | 0o755},
		{name: "var/lib/", mode: fs.ModeDir | 0o755},
		{name: "var/lib/byre/", mode: fs.ModeDir | 0o700, owner: nonroot},
	})
}

// newProgramLayer returns the layer with the program at a path, and with the files of the
// directory "licenses" beside it.
func newProgramLayer(program string, created time.Time) (v1.Layer, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	files := []file{
		{name: "usr/", mode: fs.ModeDir | 0o755},
		{name: "usr/bin/", mode: fs.ModeDir | 0o755},
		{name: "usr/bin/byre", mode: 0o755, content: content},
		// For the command of a static Pod that was written for kube-apiserver, as kubeadm's.
		{name: "usr/bin/kube-apiserver", mode: fs.ModeSymlink | 0o777, content: []byte("byre")},
		{name: "usr/share/", mode: fs.ModeDir | 0o755},
		{name: "usr/share/doc/", mode: fs.ModeDir | 0o755},
		{name: "usr/share/doc/byre/", mode: fs.ModeDir | 0o755},
	}
	licenses := filepath.Join(filepath.Dir(program), "licenses")
	entries, err := os.ReadDir(licenses)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(licenses, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: "usr/share/doc/byre/" + entry.Name(), mode: 0o644, content: text})
	}
	return newLayer(created, files)
}

func newLayer(created time.Time, files []file) (v1.Layer, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, f := range files {
		header := &tar.Header{
			Name: f.name, Mode: int64(f.mode.Perm()), Size: int64(len(f.content)), ModTime: created,
			Uid: f.owner, Gid: f.owner, Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		switch f.mode.Type() {
		case fs.ModeDir:
			header.Typeflag = tar.TypeDir
		case fs.ModeSymlink:
			header.Typeflag, header.Linkname, header.Size, f.content = tar.TypeSymlink, string(f.content), 0, nil
		}
		if f.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// archive writes the files of a directory in the order of their names.
func archive(output, dir string, created time.Time) (err error) {
	out, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() {
		if closed := out.Close(); err == nil {
			err = closed
		}
	}()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(relative), Mode: 0o644, Size: int64(len(content)), ModTime: created,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
