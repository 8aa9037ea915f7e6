package query

import (
	"strings"

	"github.com/ncruces/go-sqlite3"
	"k8s.io/apimachinery/pkg/util/sets"

	"byre/apiserver/query/catalog"
)

// functions are the functions of SQLite that a statement may call. What is left out reads or writes
// something outside of the query, or tells of the process (load_extension, sqlite_compileoption_get, …).
var functions = sets.New(strings.Fields(`
	abs ceil ceiling floor round trunc sign mod pow power sqrt exp ln log log10 log2 pi
	acos acosh asin asinh atan atan2 atanh cos cosh degrees radians sin sinh tan tanh random
	char concat concat_ws format printf glob like hex unhex instr length octet_length lower upper ltrim
	rtrim trim quote replace substr substring unicode unistr zeroblob
	coalesce ifnull iif if nullif likelihood likely unlikely typeof subtype max min
	date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
	avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
	row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
	json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
	json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace
	json_set json_type json_valid jsonb -> ->> quantity resource_of ago`)...)

// addFunctions adds the functions that edges, and other statements, use beside SQLite's.
func (e *engine) addFunctions(known *resources) error {
	for _, f := range []struct {
		name      string
		arguments int
		call      func(result sqlite3.Context, args ...sqlite3.Value)
	}{
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
	} {
		if err := e.conn.CreateFunction(f.name, f.arguments, sqlite3.DETERMINISTIC, f.call); err != nil {
			return err
		}
	}
	return nil
}
