package main

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestResume_ReadsCompleteSuites(t *testing.T) {
	path := filepath.Join(t.TempDir(), resultsFile)
	earlier := newResults("byre 1")
	for _, suite := range []string{"standard", "large"} {
		earlier.suite, earlier.Sizes[suite] = suite, sizes{}
		earlier.add("figure", "s", true, onSQLite, 2)
		earlier.plot("figure", "s", onSQLite, 1, 2)
	}
	earlier.Complete = []string{"standard"}
	if err := earlier.write(path); err != nil {
		t.Fatal(err)
	}
	r := newResults("byre 1")
	if err := r.resume(path); err != nil {
		t.Fatal(err)
	}
	if r.find("standard", "figure") == nil || !slices.Equal(r.Complete, []string{"standard"}) {
		t.Errorf("the suite that is complete was not taken: %+v", r)
	}
	if r.find("large", "figure") != nil || len(r.Series) != 1 || len(r.Sizes) != 1 {
		t.Errorf("the suite that is not complete was taken: %+v", r)
	}
	if err := newResults("byre 2").resume(path); err == nil {
		t.Error("took the results of another program")
	}
	if err := newResults("byre 1").resume(path + ".none"); err != nil {
		t.Errorf("no results to go on with: %v", err)
	}
}
