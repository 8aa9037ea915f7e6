package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/sqlstore/storetest"
)

// TestTutorial_CustomResources does what docs/custom-resources.md tells its reader to
// do, and compares the answers with those that the page shows. The page may have these
// blocks: yaml is a file, named in its first line; console has commands and their output;
// sql is a query for the database that its block names, and rows is the answer to the query
// before it.
func TestTutorial_CustomResources(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openDatabase(t, name)
			s := startByre(t, db)
			p := tutorial{db: db, dir: t.TempDir()}
			p.env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+p.dir,
				"PATH="+programs.Dir()+string(os.PathListSeparator)+os.Getenv("PATH"))
			p.follow(t, filepath.Join("..", "docs", "custom-resources.md"))
		})
	}
}

// tutorial is a page whose commands are being run.
type tutorial struct {
	db   database
	dir  string // where its files are
	env  []string
	rows []string // what the last query answered
	done int      // how many commands and queries were compared
}

var (
	block = regexp.MustCompile("(?ms)^```(\\w+) ?(\\w*)\n(.*?)^```$")
	// A command and its answer, which ends before the next command.
	command = regexp.MustCompile(`(?m)^\$ (.*)\n((?:(?:[^$\n].*)?\n)*)`)
	age     = regexp.MustCompile(`\b(\d+[hms])+\b`)
	spaces  = regexp.MustCompile(` +`)
)

func (p *tutorial) follow(t *testing.T, path string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range block.FindAllStringSubmatch(string(page), -1) {
		switch kind, dialect, text := b[1], b[2], b[3]; kind {
		case "yaml":
			first, _, _ := strings.Cut(text, "\n")
			p.write(t, strings.TrimPrefix(first, "# "), text)
		case "console":
			for _, c := range command.FindAllStringSubmatch(text, -1) {
				p.compare(t, c[1], c[2], p.settled(t, c[1]))
			}
		case "sql":
			if dialect == "" || dialect == p.db.name {
				p.rows = mustQuery(t, p.db, text)
			}
		case "rows":
			got := strings.ReplaceAll(strings.Join(p.rows, "\n")+"\n", "<nil>", "")
			p.compare(t, "the query", text, strings.ReplaceAll(got, "\t", "|"))
		default:
			t.Errorf("%s: what is a block of %q?", path, kind)
		}
	}
	if p.done < 10 {
		t.Errorf("%s: only %d answers were compared", path, p.done)
	}
}

func (p *tutorial) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run is what a shell prints for a command, errors included.
func (p *tutorial) run(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
	cmd.Dir, cmd.Env = p.dir, p.env
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

// settled runs a command until it prints the wanted answer, since the server may take a
// moment to serve a definition; a reader takes longer to type the command.
func (p *tutorial) settled(t *testing.T, command string) string {
	t.Helper()
	var got string
	storetest.EventuallySucceeds(t, command, func() error {
		got = p.run(t, command)
		if strings.HasPrefix(command, "kubectl wait ") && !strings.Contains(got, "condition met") ||
			strings.HasPrefix(command, "kubectl api-resources ") && !strings.Contains(got, "crawlers") ||
			strings.HasPrefix(command, "kubectl explain ") && strings.HasPrefix(got, "error: ") {
			return errors.New(got)
		}
		return nil
	})
	return got
}

// compare compares the texts; ages, and the widths of columns, may differ.
func (p *tutorial) compare(t *testing.T, what, want, got string) {
	t.Helper()
	even := func(text string) string {
		lines := strings.Split(strings.TrimSpace(spaces.ReplaceAllString(age.ReplaceAllString(text, "AGE"), " ")), "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	if even(got) != even(want) {
		t.Errorf("%s\nanswers:\n%s\nThe page says:\n%s", what, got, want)
	}
	p.done++
}
