package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// chapter is what a section of docs/operations/security.md tells an operator to do.
type chapter struct {
	// commands are the flags of each "byre serve", in their order.
	commands [][]string
	// files are the files that it shows, by their paths.
	files map[string]string
}

// fence is a fenced block, which may be part of a list; its lines have the
// fence's own indentation.
var fence = regexp.MustCompile("(?ms)^( *)```\\w+(?: (/\\S+))?\n(.*?)^ *```$")

// readGuide reads docs/operations/security.md. A file's path is the first line of its block,
// as a comment, or stands behind the language where the format has no comments.
func readGuide(t *testing.T) map[string]*chapter {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "operations", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	guide := map[string]*chapter{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		c := &chapter{files: map[string]string{}}
		guide[title] = c
		for _, block := range fence.FindAllStringSubmatch(body, -1) {
			text := strings.ReplaceAll("\n"+block[3], "\n"+block[1], "\n")[1:]
			if block[2] != "" {
				c.files[block[2]] = text
				continue
			}
			c.add(text)
		}
	}
	return guide
}

func (c *chapter) add(block string) {
	if flags, ok := strings.CutPrefix(block, "byre serve "); ok {
		c.commands = append(c.commands, strings.Fields(strings.ReplaceAll(flags, "\\\n", " ")))
	}
	first, rest, _ := strings.Cut(block, "\n")
	if path, ok := strings.CutPrefix(first, "# /"); ok {
		c.files["/"+path] = rest
	}
}
