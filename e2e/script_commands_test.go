package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"byre/sqlstore/storetest"
)

// countMatches checks how many lines of a file (or stdout) match: count N REGEXP FILE.
func countMatches(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: count N REGEXP FILE")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	text, got := ts.ReadFile(args[2]), 0
	for line := range strings.Lines(text) {
		if re.MatchString(strings.TrimSuffix(line, "\n")) {
			got++
		}
	}
	if got != want {
		ts.Fatalf("%d lines match %q, not %d:\n%s", got, args[1], want, text)
	}
}

// runUntilItSucceeds runs a program again and again until it succeeds and, if the first
// argument is not empty, its output matches. With a negation it runs it until it fails.
func runUntilItSucceeds(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] eventually REGEXP PROGRAM [ARG...]")
	}
	re, err := regexp.Compile(args[0])
	ts.Check(err)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(storetest.Patience)
	for {
		err := ts.Exec(args[1], args[2:]...)
		if neg && err != nil || !neg && err == nil && re.MatchString(ts.ReadFile("stdout")) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			ts.Fatalf("not within %v: %s %s", storetest.Patience, args[0], strings.Join(args[1:], " "))
		}
	}
}

// makeDependents creates a ReplicaSet and a ConfigMap that a Deployment owns. The ReplicaSet
// blocks the Deployment's deletion in the foreground.
func makeDependents(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: dependents DEPLOYMENT")
	}
	owner := args[0]
	ts.Check(ts.Exec("kubectl", "get", "deployment", owner, "-o", "jsonpath={.metadata.uid}"))
	reference := fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, name: %s, uid: %s, blockOwnerDeletion: ", owner,
		ts.ReadFile("stdout"))
	manifest := ts.MkAbs("dependents.yaml")
	ts.Check(os.WriteFile(manifest, []byte(`apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: `+owner+`-rs
  ownerReferences: [`+reference+`true}]
spec:
  replicas: 0
  selector: {matchLabels: {owned-by: `+owner+`}}
  template:
    metadata: {labels: {owned-by: `+owner+`}}
    spec: {containers: [{name: c, image: "i:1"}]}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: `+owner+`-cm
  ownerReferences: [`+reference+`false}]
`), 0o600))
	ts.Check(ts.Exec("kubectl", "create", "-f", manifest))
}
