package etcd

import (
	"flag"
	"os"
	"strings"
	"testing"

	"byre/e2e/programs"
	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Etcd, programs.Byre))
}

// line is a group of questions: a numbered line of what etcd was seen to do.
type line struct {
	name string
	ask  func(*session)
	// isAlone says that the line has servers of its own, with args.
	isAlone bool
	args    []string
	// isLong says that it takes more than some seconds.
	isLong bool
}

// The names of the servers.
const (
	onEtcd     = "etcd"
	onSQLite   = "byre etcd on SQLite"
	onPostgres = "byre etcd on PostgreSQL"
)

var onlyEtcd = flag.Bool("only-etcd", false, "ask etcd alone, and log what it answers")

var serverNames = []string{onEtcd, onSQLite, onPostgres}

// start starts a server with an empty store and returns it with a function that stops it and starts it with
// what it has stored. Both end with the test.
func start(t *testing.T, name string, args ...string) (etcd *servers.Etcd, restart func() *servers.Etcd) {
	t.Helper()
	etcd, restart, err := tryStart(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return etcd, restart
}

func tryStart(t *testing.T, name string, args ...string) (etcd *servers.Etcd, restart func() *servers.Etcd, err error) {
	t.Helper()
	dir := t.TempDir()
	endpoint := ""
	if name == onPostgres {
		endpoint = pgtest.DSN(t)
	}
	run := func() (*servers.Etcd, error) {
		if name == onEtcd {
			return servers.StartEtcd(t.Context(), dir, args...)
		}
		return servers.StartByreEtcd(t.Context(), dir, endpoint, args...)
	}
	if etcd, err = run(); err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() {
		etcd.Kill()
		etcd.Report(t)
	})
	return etcd, func() *servers.Etcd {
		t.Helper()
		_ = etcd.Stop() // The line that asks how it ends has ended it before.
		again, err := run()
		if err != nil {
			t.Fatal(err)
		}
		etcd = again
		return etcd
	}, nil
}

// TestAnswers asks etcd and byre etcd the same, and compares what they answer.
func TestAnswers(t *testing.T) {
	if *onlyEtcd {
		serverNames = serverNames[:1]
	}
	shared := map[string]*servers.Etcd{}
	for _, name := range serverNames {
		shared[name], _ = start(t, name)
		if log := shared[name].Log(); name != onEtcd && strings.Contains("\n"+log, "\nE") {
			t.Errorf("the log of the start has errors:\n%s", log)
		}
	}
	for _, l := range lines {
		t.Run(l.name, func(t *testing.T) {
			if l.isLong {
				programs.Night(t)
			}
			answers := map[string][]answer{}
			// The sessions run at the same time: most of a line's time is waiting.
			sessions := map[string]*session{}
			t.Run("ask", func(t *testing.T) {
				for _, name := range serverNames {
					s := &session{patience: patience}
					sessions[name] = s
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						s.t = t
						s.run(l, name, shared[name])
					})
				}
			})
			for name, s := range sessions {
				answers[name] = s.answers
			}
			for _, a := range answers[onEtcd] {
				t.Logf("%s: %s", a.question, strings.ReplaceAll(a.text, "\n", "\n\t"))
			}
			if !*onlyEtcd {
				judge(t, l.name, answers)
			}
		})
	}
}

// run asks a server the questions of a line.
func (s *session) run(l line, name string, etcd *servers.Etcd) {
	if l.isAlone {
		var restart func() *servers.Etcd
		var err error
		etcd, restart, err = tryStart(s.t, name, l.args...)
		s.note("it starts", "%v", err == nil)
		if err != nil {
			s.t.Log(err)
			return
		}
		s.restart = func() {
			s.etcd = restart()
			s.client = dial(s.t, s.etcd)
		}
	}
	s.etcd, s.client = etcd, dial(s.t, etcd)
	s.reset()
	l.ask(s)
}

// judge compares the answers of each byre etcd with etcd's. Those that differ must be listed, and those listed must
// differ.
func judge(t *testing.T, line string, answers map[string][]answer) {
	t.Helper()
	number, _, _ := strings.Cut(line, " ")
	used := map[string]bool{}
	var all []answer
	for _, name := range serverNames {
		all = append(all, answers[name]...)
	}
	asked := map[string]bool{}
	for _, a := range all {
		if asked[a.question] {
			continue
		}
		asked[a.question] = true
		want := text(answers[onEtcd], a.question)
		// One line for both databases, if they answer the same.
		others := map[string][]string{}
		for _, name := range serverNames[1:] {
			if got := text(answers[name], a.question); got != want {
				others[got] = append(others[got], name)
			}
		}
		if key := listed(number, a.question); key != "" {
			used[key] = used[key] || len(others) > 0
			continue
		}
		for got, names := range others {
			t.Errorf("%s. %s\n  etcd: %s\n  %s: %s", number, a.question, want, strings.Join(names, ", "), got)
		}
	}
	for key := range differences {
		if strings.HasPrefix(key, number+". ") && !used[key] {
			t.Errorf("%q is in the list of differences, but does not differ any more", key)
		}
	}
}

// listed is the entry of the differences that a question falls under.
func listed(number, question string) string {
	for key := range differences {
		pattern, isPrefix := strings.CutSuffix(key, "*")
		if full := number + ". " + question; full == pattern || isPrefix && strings.HasPrefix(full, pattern) {
			return key
		}
	}
	return ""
}

func text(answers []answer, question string) string {
	for _, a := range answers {
		if a.question == question {
			return a.text
		}
	}
	return "(not asked)"
}
