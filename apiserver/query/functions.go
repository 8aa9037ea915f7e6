package query

import (
	"strings"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/query/catalog"
)

// functions are the functions of SQLite that a statement may call. What is left out reads or writes
// something outside of the query, or tells of the process (load_extension, sqlite_compileoption_get, …). So are unhex
// and json_patch: one call may take the product of the lengths of its arguments, and nothing can end it.
var functions = func() map[string]bool {
	allowed := map[string]bool{}
	for name := range strings.FieldsSeq(`
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
		json_set json_type json_valid jsonb -> ->> quantity resource_of ago`) {
		allowed[name] = true
	}
	return allowed
}()

// addFunctions adds the functions that edges, and other statements, use beside SQLite's, and those of SQLite that
// textFunctions replaces.
func (e *engine) addFunctions(known *resources) error {
	for _, f := range append(textFunctions(), []function{
		{"quantity", 1, func(result sqlite3.Context, args ...sqlite3.Value) {
			if value, ok := catalog.Quantity.Value(appendJSON(nil, args[0].Text())).(float64); ok && args[0].Type() != sqlite3.NULL {
				result.ResultFloat(value)
			}
		}},
		// resource_of(apiVersion, kind) is the resource of a kind, as edges name it.
		{"resource_of", 2, func(result sqlite3.Context, args ...sqlite3.Value) {
			name, ok, err := known.ofKind(args[0].Text(), args[1].Text())
			switch {
			case err != nil:
				result.ResultError(err)
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
// megabytes. SQLite asks whether to go on between its instructions only. These take the sum of the lengths.
func textFunctions() []function {
	return []function{
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
