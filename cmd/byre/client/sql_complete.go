package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// sqlKeywords are the words of a SELECT that Tab completes.
const sqlKeywords = `ALL AND AS ASC BETWEEN BY CASE CAST CROSS DESC DISTINCT ELSE END EXCEPT EXISTS FILTER FROM FULL GLOB GROUP
	HAVING IN INNER INTERSECT IS JOIN LEFT LIKE LIMIT NATURAL NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION
	RECURSIVE RIGHT SELECT THEN UNION USING VALUES WHEN WHERE WINDOW WITH`

// sqlNames are the tables and columns that can be completed. They are asked for when they are first needed. One goroutine
// uses it.
type sqlNames struct {
	client  *sqlClient
	tables  []string
	columns map[string][]string
}

func (n *sqlNames) allTables(ctx context.Context) []string {
	if n.tables == nil {
		n.tables = n.client.texts(ctx, `SELECT table_name FROM byre_tables`)
	}
	return n.tables
}

// columnsIn returns the columns of the tables that a text names.
func (n *sqlNames) columnsIn(ctx context.Context, text string) (columns []string) {
	tables := n.allTables(ctx)
	for token := range strings.FieldsFuncSeq(text, func(r rune) bool { return !isNameRune(r) && r != '-' && r != '~' }) {
		first, _, _ := strings.Cut(token, ".")
		for _, name := range []string{strings.ToLower(token), strings.ToLower(first)} {
			if !slices.Contains(tables, name) {
				continue
			}
			if n.columns[name] == nil {
				if n.columns == nil {
					n.columns = map[string][]string{}
				}
				n.columns[name] = n.client.texts(ctx, `SELECT name FROM byre_columns WHERE table_name = ?1`, name)
			}
			columns = append(columns, n.columns[name]...)
		}
	}
	return columns
}

func isNameRune(r rune) bool {
	return r == '_' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// complete implements the callback of a terminal: at Tab, it completes the word before the cursor, or shows the words that
// it may become.
func (s *sqlShell) complete(line string, pos int, key rune) (newLine string, newPos int, ok bool) {
	if key != '\t' {
		return "", 0, false
	}
	word, words := s.candidates(line, line[:pos])
	completed := commonPrefix(words)
	switch {
	case len(words) == 1:
		completed += " "
	case len(completed) <= len(word):
		const shown = 60
		text := strings.Join(words[:min(len(words), shown)], "  ")
		if len(words) > shown {
			text += fmt.Sprintf("  and %d more", len(words)-shown)
		}
		if text != "" {
			_, _ = fmt.Fprintln(s.terminal, text) // the terminal reports it at the next line
		}
		return line, pos, true
	}
	before := line[:pos-len(word)] + completed
	return before + line[pos:], len(before), true
}

// candidates returns the word that a text ends with, and what it may become.
func (s *sqlShell) candidates(line, before string) (word string, words []string) {
	ctx := s.cmd.Context()
	word = before[strings.LastIndexFunc(before, func(r rune) bool { return !isNameRune(r) })+1:]
	start := strings.TrimSpace(strings.TrimSuffix(before, word))
	switch {
	case s.statement == "" && start == "" && strings.HasPrefix(word, "."):
		return word, withPrefix([]string{".columns", ".help", ".output", ".quit", ".tables"}, word)
	case s.statement == "" && start == ".columns":
		return word, withPrefix(s.names.allTables(ctx), word)
	case s.statement == "" && start == ".output":
		return word, withPrefix(s.output.Allowed, word)
	case strings.Count(before, `"`)%2 == 1:
		word = before[strings.LastIndexByte(before, '"'):]
		return word, withPrefix(quoteAll(s.names.allTables(ctx)), word)
	}
	columns := s.names.columnsIn(ctx, s.statement+line)
	if dot := strings.LastIndexByte(word, '.'); dot >= 0 { // of a table, or of its alias
		word = word[dot+1:]
		return word, unique(withPrefix(columns, strings.ToLower(word)))
	}
	if word == "" && columns != nil {
		return word, unique(columns)
	}
	keywords := sqlKeywords
	if strings.ToUpper(word) != word {
		keywords = strings.ToLower(keywords)
	}
	plain := slices.DeleteFunc(slices.Clone(s.names.allTables(ctx)), func(name string) bool { return strings.Contains(name, ".") })
	words = unique(append(withPrefix(strings.Fields(keywords), word), withPrefix(append(columns, plain...), strings.ToLower(word))...))
	if len(words) == 0 && word != "" { // a name that needs quotes
		words = quoteAll(withPrefix(s.names.allTables(ctx), word))
	}
	return word, words
}

func quoteAll(names []string) (quoted []string) {
	for _, name := range names {
		quoted = append(quoted, `"`+name+`"`)
	}
	return quoted
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}

func commonPrefix(words []string) string {
	if len(words) == 0 {
		return ""
	}
	prefix := words[0]
	for _, word := range words {
		for !strings.HasPrefix(word, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix
}
