package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Down asks for consent before the first step only, which deletes all data: no other step deletes rows,
// in neither direction. One that has to needs a DeletesError of its own.
func TestSteps_OnlyTheFirstDeletesRows(t *testing.T) {
	t.Parallel()
	deletes := regexp.MustCompile(`(?i)\b(DELETE\s+FROM|TRUNCATE|DROP\s+(TABLE|COLUMN|SCHEMA))\b`)
	files, err := filepath.Glob("*/[0-9]*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		isFirstDown := strings.HasSuffix(file, "/0001_store.down.sql")
		if found := deletes.Find(text); (found != nil) != isFirstDown {
			t.Errorf("%s has %q", file, found)
		}
	}
}
