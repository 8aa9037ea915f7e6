package query

import "github.com/ncruces/go-sqlite3"

// addFunctions adds the functions that edges, and other statements, use beside SQLite's.
func (e *engine) addFunctions(known *resources) error {
	for _, f := range []struct {
		name      string
		arguments int
		call      func(result sqlite3.Context, args ...sqlite3.Value)
	}{
		{"quantity", 1, func(result sqlite3.Context, args ...sqlite3.Value) {
			if value, ok := quantity(appendJSON(nil, args[0].Text())).(float64); ok && args[0].Type() != sqlite3.NULL {
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
