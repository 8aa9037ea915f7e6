package query

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
	"k8s.io/apimachinery/pkg/util/sets"
)

// functions are the functions of SQLite that a statement may call. What is left out reads or writes
// something outside of the query, or tells of the process (load_extension, sqlite_compileoption_get, …). So are unhex
// and json_patch: one call may take the product of the lengths of its arguments, and nothing can end it.
var functions = sets.New(strings.Fields(`
	abs ceil ceiling floor round trunc sign mod pow power sqrt exp ln log log10 log2 pi
	acos acosh asin asinh atan atan2 atanh cos cosh degrees radians sin sinh tan tanh random
	char concat concat_ws format printf glob like hex instr length octet_length lower upper ltrim
	rtrim trim quote replace substr substring unicode unistr zeroblob
	coalesce ifnull iif if nullif likelihood likely unlikely typeof subtype max min
	date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
	avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
	row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
	json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
	json_group_object json_insert json_object json_pretty json_quote json_remove json_replace
	json_set json_type json_valid jsonb -> ->> quantity resource_of ago`)...)

// addFunctions adds the functions that edges, and other statements, use beside SQLite's, and those of SQLite that
// textFunctions replaces.
func (e *engine) addFunctions(known *resources) error {
	for _, f := range append(textFunctions(e.ctx), []function{
		{"quantity", 1, func(result sqlite3.Context, args ...sqlite3.Value) {
			text := args[0].RawText()
			if len(text) > MaxQuantity || args[0].Type() == sqlite3.NULL {
				return // no quantity is so long, and nothing ends the call while it escapes the text
			}
			if value, ok := Quantity.Value(appendJSON(nil, string(text))).(float64); ok {
				result.ResultFloat(value)
			}
		}},
		// resource_of(apiVersion, kind) is the resource of a kind, as edges name it.
		{"resource_of", 2, func(result sqlite3.Context, args ...sqlite3.Value) {
			name, ok, err := known.ofKind(args[0].Text(), args[1].Text())
			switch {
			case err != nil:
				result.ResultError(e.cause.keep(err))
			case ok:
				result.ResultText(name)
			}
		}},
	}...) {
		if err := e.conn.CreateFunction(f.name, f.arguments, sqlite3.DETERMINISTIC, f.call); err != nil {
			return err
		}
	}
	return nil
}

type function struct {
	name      string
	arguments int
	call      sqlite3.ScalarFunction
}

// textFunctions are those of SQLite of which one call takes the product of the lengths of two texts: hours, for texts of
// megabytes. SQLite asks whether to go on after 1,000 of its instructions only, which may be hundreds of calls. These take
// the sum of the lengths, or end with the query.
func textFunctions(ctx context.Context) []function {
	return []function{
		{"like", 2, matches(ctx, parseLike)},
		{"like", 3, matches(ctx, parseLike)},
		{"glob", 2, matches(ctx, parseGlob)},
		{"instr", 2, func(result sqlite3.Context, args ...sqlite3.Value) {
			inBytes := args[0].Type() == sqlite3.BLOB && args[1].Type() == sqlite3.BLOB
			ofTexts(func(result sqlite3.Context, in, part string) {
				at := strings.Index(in, part)
				if at > 0 && !inBytes {
					at = utf8.RuneCountInString(in[:at])
				}
				result.ResultInt(at + 1)
			})(result, args...)
		}},
		{"replace", 3, func(result sqlite3.Context, args ...sqlite3.Value) {
			if args[2].Type() == sqlite3.NULL {
				return
			}
			with := args[2].Text()
			ofTexts(func(result sqlite3.Context, in, part string) {
				switch {
				case part == "":
					result.ResultText(in)
				case len(in)+strings.Count(in, part)*(len(with)-len(part)) > maxValue:
					result.ResultError(sqlite3.TOOBIG)
				default:
					result.ResultText(strings.ReplaceAll(in, part, with))
				}
			})(result, args[:2]...)
		}},
		{"trim", 2, trims(strings.TrimFunc)},
		{"ltrim", 2, trims(strings.TrimLeftFunc)},
		{"rtrim", 2, trims(strings.TrimRightFunc)},
	}
}

// ofTexts is a function of two texts, which is NULL if one of them is.
func ofTexts(call func(result sqlite3.Context, a, b string)) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		if args[0].Type() != sqlite3.NULL && args[1].Type() != sqlite3.NULL {
			call(result, args[0].Text(), args[1].Text())
		}
	}
}

func trims(trim func(string, func(rune) bool) string) sqlite3.ScalarFunction {
	return ofTexts(func(result sqlite3.Context, of, characters string) {
		cut := map[rune]bool{}
		for _, r := range characters {
			cut[r] = true
		}
		result.ResultText(trim(of, func(r rune) bool { return cut[r] }))
	})
}

// letter is what a letter of a pattern matches; nil is any number of letters.
type letter func(rune) bool

func isAny(rune) bool { return true }

// maxPattern is the length of a pattern in bytes, that of SQLite's limit. A match takes the product of the lengths.
const maxPattern = 200

var (
	errPattern = errors.New("LIKE or GLOB pattern too complex")
	errEscape  = errors.New("ESCAPE expression must be a single character")
)

// matches is the function that matches a text with a pattern.
func matches(ctx context.Context, parse func(pattern []rune, escape rune) ([]letter, bool)) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		escape := rune(-1)
		if len(args) > 2 {
			if args[2].Type() == sqlite3.NULL {
				return
			}
			of := []rune(args[2].Text())
			if len(of) != 1 {
				result.ResultError(errEscape)
				return
			}
			escape = of[0]
		}
		ofTexts(func(result sqlite3.Context, pattern, text string) {
			if len(pattern) > maxPattern {
				result.ResultError(errPattern)
				return
			}
			letters, ok := parse([]rune(pattern), escape)
			found, err := match(ctx, letters, text)
			result.ResultBool(ok && found)
			result.ResultError(err)
		})(result, args[:2]...)
	}
}

// match reports whether a text matches. It fails if ctx ends.
func match(ctx context.Context, letters []letter, text string) (bool, error) {
	// From many, letters matches what begins at start, or later.
	at, many, start := 0, -1, 0
	for i, steps := 0, 1; i < len(text); steps++ {
		if steps%(1<<16) == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case at < len(letters) && letters[at] == nil:
			many, start = at, i
			at++
		case at < len(letters) && letters[at](r):
			at++
			i += size
		case many < 0:
			return false, nil
		default:
			_, size = utf8.DecodeRuneInString(text[start:])
			start += size
			at, i = many+1, start
		}
	}
	for at < len(letters) && letters[at] == nil {
		at++
	}
	return at == len(letters), nil
}

// parseLike parses a pattern of LIKE. It returns false if that matches nothing.
func parseLike(pattern []rune, escape rune) (letters []letter, ok bool) {
	fold := func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}
	for i := 0; i < len(pattern); i++ {
		switch r := pattern[i]; {
		case r == escape:
			if i++; i == len(pattern) {
				return nil, false
			}
			literal := fold(pattern[i])
			letters = append(letters, func(r rune) bool { return fold(r) == literal })
		case r == '%':
			letters = append(letters, nil)
		case r == '_':
			letters = append(letters, isAny)
		default:
			literal := fold(r)
			letters = append(letters, func(r rune) bool { return fold(r) == literal })
		}
	}
	return letters, true
}

// parseGlob parses a pattern of GLOB. It returns false if that matches nothing.
func parseGlob(pattern []rune, _ rune) (letters []letter, ok bool) {
	for i := 0; i < len(pattern); i++ {
		switch literal := pattern[i]; literal {
		case '*':
			letters = append(letters, nil)
		case '?':
			letters = append(letters, isAny)
		case '[':
			inverted := i+1 < len(pattern) && pattern[i+1] == '^'
			if inverted {
				i++
			}
			first := i + 1 // a ] in this place is a letter of the set
			end := slices.Index(pattern[min(first+1, len(pattern)):], ']')
			if end < 0 {
				return nil, false
			}
			i = first + 1 + end
			set := pattern[first:i]
			letters = append(letters, func(r rune) bool { return isInSet(set, r) != inverted })
		default:
			letters = append(letters, func(r rune) bool { return r == literal })
		}
	}
	return letters, true
}

// isInSet reports whether a letter is in a set of GLOB, such as a-z_.
func isInSet(set []rune, r rune) bool {
	first := 0 // what a range may begin with: no ] in the first place, and no end of another range
	if len(set) > 0 && set[0] == ']' {
		first = 1
	}
	for i := 0; i < len(set); i++ {
		if i > first && set[i] == '-' && i+1 < len(set) {
			if r >= set[i-1] && r <= set[i+1] {
				return true
			}
			i++
			first = i + 1
			continue
		}
		if set[i] == r {
			return true
		}
	}
	return false
}
