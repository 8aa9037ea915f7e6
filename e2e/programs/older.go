package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// OlderVariable is the variable of the environment that names a byre of an earlier release, which
// tests use instead of those that BuildOlder builds.
const OlderVariable = "BYRE_OLDER"

// ErrNoHistory means that this repository lacks the commits that an older byre is built from.
var ErrNoHistory = errors.New(
	"this checkout has no history to build an older byre from (an archive, or a shallow clone): " +
		"fetch it (git fetch --unshallow), or name the program of an earlier release by " + OlderVariable + "=PATH")

// Oldest is the commit of the oldest program beside which this one serves a PostgreSQL database: the step of the schema
// before it, 0002, takes columns that older programs read. What is released gets a name beside it.
const Oldest = "5d4c92369aeb5573e626805c4c3bc3888feb42d1"

// released are commits that users run, the newest last. Each release adds its own.
var released = []string{Oldest}

// oldestSteps are migrations, one for each database. Programs of before them do not serve beside this one.
var oldestSteps = []string{
	"migrations/postgres/0002_views.up.sql",
	"migrations/sqlite/0002_views.up.sql",
}

// Older returns the older programs that tests upgrade from, by their names: that of OlderVariable, or
// the one that has fewer migrations than this program in each database. With all it is the programs
// of before each migration, and the released ones.
func Older(ctx context.Context, all bool) (map[string]string, error) {
	if path := os.Getenv(OlderVariable); path != "" {
		path, err := filepath.Abs(path)
		return map[string]string{filepath.Base(path): path}, err
	}
	commits, err := olderCommits(ctx)
	if err != nil {
		return nil, err
	}
	if !all {
		commits = commits[:min(len(commits), 1)]
	}
	paths := make(map[string]string)
	for _, commit := range commits {
		if paths[commit[:7]], err = BuildOlder(ctx, commit); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// olderCommits returns the commit before each migration from oldestSteps on, and those in
// released. None is twice in it.
func olderCommits(ctx context.Context) (commits []string, err error) {
	var all []string
	for _, oldest := range oldestSteps {
		steps, err := filepath.Glob(filepath.Join(Root(), filepath.Dir(oldest), "*.up.sql"))
		if err != nil {
			return nil, err
		}
		for _, step := range steps {
			if filepath.Base(step) <= filepath.Base(oldest) {
				continue
			}
			commit, err := CommitBefore(ctx, filepath.Join(filepath.Dir(oldest), filepath.Base(step)))
			if err != nil {
				return nil, err
			}
			all = append(all, commit)
		}
	}
	for _, revision := range released {
		commit, err := Commit(ctx, revision)
		if err != nil {
			return nil, err
		}
		all = append(all, commit)
	}
	for _, commit := range all {
		if !slices.Contains(commits, commit) {
			commits = append(commits, commit)
		}
	}
	return commits, nil
}

// IsNewerSchema reports whether the schema of a database is newer than that of an older program.
func IsNewerSchema(ctx context.Context, older, endpoint string) (bool, error) {
	out, err := exec.CommandContext(ctx, older, "migrate", "status", "--endpoint", endpoint).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 4 {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("migrate status of the older program: %w: %s", err, out)
	}
	return false, nil
}

// RevertSchema takes the schema of a database that no process uses back to that of an older program.
func RevertSchema(ctx context.Context, newer, older, endpoint string) error {
	for range 10 {
		isNewer, err := IsNewerSchema(ctx, older, endpoint)
		if err != nil || !isNewer {
			return err
		}
		if out, err := exec.CommandContext(ctx, newer, "migrate", "down", "--endpoint",
			endpoint).CombinedOutput(); err != nil {
			return fmt.Errorf("migrate down: %w: %s", err, out)
		}
	}
	return errors.New("after 10 steps down the schema is still newer")
}

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
