package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// profiled runs a phase on a target. With -profile it writes a profile of byre's processor
// use in the first Period of the phase, and one of its heap at the end.
func (b *bench) profiled(ctx context.Context, s suite, p phase, t *target) error {
	if !b.profile || t.server == nil || t.name == stock {
		return p.run(ctx, t)
	}
	dir := filepath.Join(b.out, "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(fmt.Sprintf("%s %s %s", s.name, p.name, t.name))
	c := t.admin
	var cpu error
	var done sync.WaitGroup
	done.Go(func() {
		cpu = c.save(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(b.Period.Seconds()))),
			filepath.Join(dir, name+".cpu"))
	})
	err := p.run(ctx, t)
	done.Wait()
	if strings.Contains(p.name, "restart") || strings.Contains(p.name, "crash") ||
		strings.Contains(p.name, "after a start") {
		cpu = nil // the server was restarted or stopped meanwhile
	}
	_ = t.admin.save(ctx, "/metrics", filepath.Join(dir, name+".metrics"))
	return errors.Join(err, cpu, t.admin.save(ctx, "/debug/pprof/heap?gc=1", filepath.Join(dir, name+".heap")))
}

// save writes the answer of a path to a file.
func (c *client) save(ctx context.Context, path, file string) error {
	body, err := c.read(ctx, request{method: http.MethodGet, path: path, accept: "*/*"})
	if err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o644)
}
