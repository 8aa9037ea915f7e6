package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	version := flag.String("version", "", "the version of the image, and its tag")
	revision := flag.String("revision", "", "the commit that the programs are of")
	created := flag.Int64("created", 0, "the date of the image and of its files, in seconds since 1970")
	output := flag.String("output", "byre.oci.tar", "the archive")
	flag.Parse()
	if err := run(*version, *revision, time.Unix(*created, 0).UTC(), *output, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes an index with an image of each program; a program is PLATFORM=PATH.
func run(version, revision string, created time.Time, output string, programs []string) error {
	annotations := map[string]string{
		"org.opencontainers.image.title":       "byre",
		"org.opencontainers.image.description": "Kubernetes API server on SQLite or PostgreSQL",
		"org.opencontainers.image.version":     version,
		"org.opencontainers.image.revision":    revision,
		"org.opencontainers.image.created":     created.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	base, err := newBaseLayer(created)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		name, path, ok := strings.Cut(program, "=")
		if !ok {
			return fmt.Errorf("%q is not PLATFORM=PATH", program)
		}
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return err
		}
		image, err := newImage(*platform, path, created, base, annotations)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	annotated, ok := mutate.Annotations(index, annotations).(v1.ImageIndex)
	if !ok {
		return fmt.Errorf("no index: %T", annotated)
	}
	dir, err := os.MkdirTemp(filepath.Dir(output), "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// A tag has no "+".
	tag := map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(version, "+", "-")}
	if err := path.AppendIndex(annotated, layout.WithAnnotations(tag)); err != nil {
		return err
	}
	return archive(output, dir, created)
}

// newImage returns the image of one platform.
func newImage(
	platform v1.Platform, program string, created time.Time, base v1.Layer, labels map[string]string,
) (v1.Image, error) {
	layer, err := newProgramLayer(program, created)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base,
			History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "certificates, user, directories"}},
		mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "byre"}},
	)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint:   []string{"/usr/bin/byre"},
		Cmd:          []string{"serve", "--data-dir=/var/lib/byre"},
		User:         fmt.Sprintf("%d:%d", nonroot, nonroot),
		Env:          []string{"PATH=/usr/bin", "HOME=/var/lib/byre"},
		WorkingDir:   "/var/lib/byre",
		ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/byre": {}},
		StopSignal:   "SIGTERM",
		Labels:       labels,
	}
	return mutate.ConfigFile(image, config)
}
