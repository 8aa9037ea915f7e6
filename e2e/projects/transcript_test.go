package projects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"byre/e2e/programs"
	"byre/e2e/servers"
)

// target is one of the servers under comparison.
type target struct {
	name   string
	server *servers.Server
	// short lifecycles are enough where another target differs in the database alone.
	short bool
	// slots bounds how many kubectl run at once.
	slots chan struct{}
}

// step is one call of kubectl in the lifecycle of a project.
type step struct {
	name string
	args []string
	// until is a text that the output must contain in the end: what discovery and OpenAPI
	// say of a definition is published a moment after it is established.
	until string
	// untilEmpty waits until nothing is printed.
	untilEmpty bool
	// full is of the steps that a short lifecycle leaves out.
	full bool
}

// output is what kubectl printed in a step, normalized.
type output struct {
	step
	stdout, stderr string
	failed         bool
}

func (s output) String() string {
	return fmt.Sprintf("kubectl %s\nfailed: %t\n%s%s", strings.Join(s.args, " "), s.failed, s.stdout, s.stderr)
}

// lifecycle is all that happens to a project, in order.
func lifecycle(p Project, m Manifests) []step {
	in := func(name string, args ...string) step { return step{name: name, args: append(args, "-n", p.Name)} }
	full := func(s step) step { s.full = true; return s }
	var names []string
	for _, r := range m.Resources {
		names = append(names, r.GroupResource().String())
	}
	all := strings.Join(names, ",")
	steps := []step{
		in("namespace", "create", "namespace", p.Name),
		full(in("apply", "apply", "-f", "definitions.yaml")),
		in("apply server-side", "apply", "--server-side", "-f", "definitions.yaml"),
		in("established", "wait", "--for", "condition=established", "--timeout", "300s", "-f", "definitions.yaml"),
		full(in("definitions", "get", "-f", "definitions.yaml", "-o", "json", "--show-managed-fields")),
	}
	for i, r := range m.Resources {
		explain := in("explain "+r.String(), "explain", "--recursive", "--api-version", r.GroupVersion().String(), r.Resource)
		explain.until = "FIELDS:"
		explain.full = i > 0
		steps = append(steps, explain)
	}
	gone := in("definitions are gone", "get", "--ignore-not-found", "-f", "definitions.yaml", "-o", "name")
	gone.untilEmpty = true
	return append(steps,
		in("create", "create", "-f", "samples.yaml"),
		full(in("create again", "create", "-f", "samples.yaml")),
		in("table", "get", all, "-o", "wide"),
		in("apply samples", "apply", "--server-side", "--force-conflicts", "-f", "samples.yaml"),
		in("objects", "get", "-f", "samples.yaml", "-o", "json", "--show-managed-fields"),
		// A sample's finalizer would wait for a controller.
		in("patch", "patch", "-f", "samples.yaml", "--type", "merge", "-p",
			`{"metadata":{"labels":{"patched":"yes"},"finalizers":null}}`),
		full(in("selected", "get", all, "-l", "patched=yes")),
		in("malformed", "create", "-f", "malformed.yaml"),
		full(in("malformed, applied", "apply", "--server-side", "-f", "malformed.yaml")),
		in("delete", "delete", "--wait=false", "-f", "samples.yaml"),
		in("nothing left", "get", all),
		in("delete definitions", "delete", "--wait=false", "-f", "definitions.yaml"),
		gone,
		in("no definitions", "get", all),
	)
}

// runLifecycle runs the lifecycle of a project on the server.
func (s target) runLifecycle(ctx context.Context, home string, p Project, m Manifests) ([]output, error) {
	var all []output
	for _, step := range lifecycle(p, m) {
		if step.full && s.short {
			continue
		}
		answer, err := s.kubectl(ctx, home, m.Dir, step)
		if err != nil {
			return nil, err
		}
		all = append(all, answer)
	}
	return all, nil
}

// patience is how long a step may take: a loaded machine is slow.
const patience = 5 * time.Minute

// kubectl runs a step, again and again where it waits for something.
func (s target) kubectl(ctx context.Context, home, dir string, do step) (output, error) {
	begun := time.Now()
	for attempt := 0; ; attempt++ {
		answer, err := s.once(ctx, home, dir, do)
		if err != nil || strings.Contains(answer.stdout, do.until) && (answer.stdout == "" || !do.untilEmpty) {
			return answer, err
		}
		// A stock server's finalizer forgets a definition after a conflict until the
		// definition is changed, or for five minutes.
		if do.untilEmpty && s.name == "stock" && attempt%10 == 9 {
			change := step{args: []string{"annotate", "--overwrite", "-f", "definitions.yaml",
				fmt.Sprintf("attempt=%d", attempt)}}
			if _, err := s.once(ctx, home, dir, change); err != nil {
				return answer, err
			}
		}
		if time.Since(begun) > patience {
			return answer, fmt.Errorf("%s does not answer with %q in time: %s", s.name, do.until, answer)
		}
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s target) once(ctx context.Context, home, dir string, do step) (output, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return output{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Kubectl.Path(), do.args...)
	cmd.Dir = dir
	// A program that ends in a second needs no garbage collection.
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=1GiB", "HOME="+home, "KUBECONFIG="+s.server.Kubeconfig,
		"KUBECACHEDIR="+filepath.Join(home, "cache"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return output{}, fmt.Errorf("%s: kubectl %s: %w", s.name, strings.Join(do.args, " "), errors.Join(err, ctx.Err()))
	}
	return output{step: do, stdout: normalize(stdout.Bytes()), stderr: normalize(stderr.Bytes()), failed: err != nil}, nil
}
