package main

import (
	"regexp"
	"strings"
	"testing"

	"byre/sqlstore/eventually"
)

// TestLog_OfAStartIsShort: without -v the log says what started, on which database,
// and when it is ready, and leaves out how upstream's packages work.
func TestLog_OfAStartIsShort(t *testing.T) {
	onDatabases(t, func(t *testing.T, flags ...string) {
		server := startServer(t, t.TempDir(), flags...)
		eventually.True(t, "the log says Ready", func() bool { return strings.Contains(server.log.String(), `"Ready"`) })
		if status := server.stop(t); status != 0 {
			t.Errorf("exit status %d", status)
		}
		log := server.log.String()
		for _, want := range []string{
			`I.* core.go:\d+\] "Starting byre" version=".+" kubernetes="v1\.36\..*"`,
			`I.* core.go:\d+\] "Opened database" database=".+" schema=[1-9]\d* revision=0`,
			`I.* run.go:\d+\] "Ready" address="127.0.0.1:\d+" kubeconfig=".*/admin.kubeconfig"`,
		} {
			if !regexp.MustCompile(want).MatchString(log) {
				t.Errorf("no line %s", want)
			}
		}
		if lines := len(regexp.MustCompile(`(?m)^I`).FindAllString(log, -1)); lines > 10 {
			t.Errorf("%d lines of information", lines)
		}
		if strings.Contains(log, "password") {
			t.Error("a secret is in the log")
		}
	})
}

// With -v=1 the log has it all.
func TestLog_VerboseStartHasEverything(t *testing.T) {
	server := startServer(t, t.TempDir(), "-v=1")
	server.stop(t)
	if log := server.log.String(); !strings.Contains(log, "Caches are synced") {
		t.Error("upstream's lines are missing")
	}
}
