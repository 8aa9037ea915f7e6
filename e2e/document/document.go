// Package document puts generated tables into pages that people write.
package document

import (
	"errors"
	"os"
	"strings"
)

// Update replaces in a page what stands between "<!-- MAKER: NAME -->" and
// "<!-- MAKER end -->" by the table of that name. Where a table is empty or missing, what
// is there stays.
func Update(path, maker string, tables map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+maker+": ", "<!-- "+maker+" end -->"
	var out strings.Builder
	rest := string(text)
	for {
		before, after, found := strings.Cut(rest, begin)
		out.WriteString(before)
		if !found {
			break
		}
		name, after, _ := strings.Cut(after, " -->")
		old, after, found := strings.Cut(after, end)
		if !found {
			return errors.New(path + ": the table " + name + " has no end")
		}
		if tables[name] != "" {
			old = "\n" + tables[name]
		}
		out.WriteString(begin + name + " -->" + old + end)
		rest = after
	}
	return os.WriteFile(path, []byte(out.String()), 0o644)
}
