package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// OlderVariable is the variable of the environment that names a byre of an earlier release,
// which BuildOlder then returns.
const OlderVariable = "BYRE_OLDER"

// ErrNoHistory means that this repository lacks the commits that an older byre is built from.
var ErrNoHistory = errors.New("this checkout has no history to build an older byre from (an archive, or a shallow clone): " +
	"fetch it (git fetch --unshallow), or name the program of an earlier release by " + OlderVariable + "=PATH")

// BuildOlder builds byre as it was before a file was added to this repository, and returns
// its path. What was built once is not built again.
func BuildOlder(ctx context.Context, added string) (string, error) {
	if path := os.Getenv(OlderVariable); path != "" {
		return filepath.Abs(path)
	}
	commit, err := gitOutput(ctx, "log", "-1", "--diff-filter=A", "--format=%H", "--", added)
	if err != nil || commit == "" {
		return "", errors.Join(ErrNoHistory, err)
	}
	before, err := gitOutput(ctx, "rev-parse", "--verify", "--quiet", commit+"^")
	if err != nil {
		return "", errors.Join(ErrNoHistory, err)
	}
	p := Program{name: "byre of " + before, out: "bin/e2e/byre-" + before[:12], pkg: "./cmd/byre", ldflags: "-s -w"}
	if _, err := os.Stat(p.Path()); err == nil {
		return p.Path(), nil
	}
	p.module = filepath.Join("bin", "e2e", "src-"+before[:12])
	source := filepath.Join(Root(), p.module)
	defer os.RemoveAll(source)
	if err := checkOut(ctx, before, source); err != nil {
		return "", err
	}
	// The program gets its name when it is complete: a build that is killed leaves none.
	whole := p.Path()
	p.out += ".new"
	if err := Build(ctx, p); err != nil {
		return "", err
	}
	return whole, os.Rename(p.Path(), whole)
}

// checkOut writes the files of a commit to a directory.
func checkOut(ctx context.Context, commit, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	archive := dir + ".tar"
	defer os.Remove(archive)
	if _, err := gitOutput(ctx, "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-C", dir, "-xf", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return nil
}

func gitOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = Root()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
