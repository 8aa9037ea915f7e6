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

// OlderVariable is the variable of the environment that names a byre of an earlier release, which
// tests use instead of those that BuildOlder builds.
const OlderVariable = "BYRE_OLDER"

// ErrNoHistory means that this repository lacks the commits that an older byre is built from.
var ErrNoHistory = errors.New("this checkout has no history to build an older byre from (an archive, or a shallow clone): " +
	"fetch it (git fetch --unshallow), or name the program of an earlier release by " + OlderVariable + "=PATH")

// Oldest is the commit of the oldest program whose databases this one upgrades in place: the first
// with the schema as it is now. What is released gets a name beside it.
const Oldest = "ebfb97c3bbe8828114202d9442d255a21262c393"

// CommitBefore returns the last commit of this repository without a file: HEAD, if the file is not
// committed yet.
func CommitBefore(ctx context.Context, file string) (string, error) {
	commit, err := gitOutput(ctx, "log", "-1", "--diff-filter=A", "--format=%H^", "--", file)
	if err != nil {
		return "", errors.Join(ErrNoHistory, err)
	}
	if commit == "" {
		commit = "HEAD"
	}
	return Commit(ctx, commit)
}

// Commit returns the full name of a commit of this repository.
func Commit(ctx context.Context, revision string) (string, error) {
	commit, err := gitOutput(ctx, "rev-parse", "--verify", "--quiet", revision+"^{commit}")
	if err != nil {
		return "", errors.Join(ErrNoHistory, err)
	}
	return commit, nil
}

// BuildOlder builds byre as it was at a commit of this repository, of the full name, and returns
// its path. What was built once is not built again.
func BuildOlder(ctx context.Context, commit string) (string, error) {
	if _, err := Commit(ctx, commit); err != nil {
		return "", err
	}
	p := Program{name: "byre of " + commit, out: "bin/e2e/byre-" + commit[:12], pkg: "./cmd/byre", ldflags: "-s -w"}
	if _, err := os.Stat(p.Path()); err == nil {
		return p.Path(), nil
	}
	p.module = filepath.Join("bin", "e2e", "src-"+commit[:12])
	source := filepath.Join(Root(), p.module)
	defer os.RemoveAll(source)
	if err := checkOut(ctx, commit, source); err != nil {
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
