package query

import (
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// timeFormat is that of the time of a change: of one length, so that texts compare as times do.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// logReader reads the changes that the user of a query may see, in the order of their revisions.
type logReader struct {
	*past
	query sqlstore.ChangesQuery
}

const (
	// logChanges and logBytes bound what is read from the database at once.
	logChanges = 500
	logBytes   = 1 << 20
)

// next returns some changes; none at the end.
func (r *logReader) next() (seen []sqlstore.Change, err error) {
	rights, err := r.rightsOf()
	if err != nil {
		return nil, err
	}
	r.query.Kept, r.query.Limit, r.query.Size = true, logChanges, logBytes
	for len(seen) == 0 {
		read, err := r.log.Driver.Changes(r.ctx, r.query)
		if len(read) == 0 || err != nil {
			return nil, err
		}
		created := changes.NewCreations(r.log.Driver)
		for i := range read {
			c := &read[i]
			if r.query.After = c.Revision; c.Revision > r.latest {
				return seen, nil
			}
			if changes.IsInternal(c.New.Key) {
				continue
			}
			sees, err := rights.Sees(r.ctx, c, created)
			if err != nil {
				return nil, err
			}
			if sees {
				seen = append(seen, *c)
			}
		}
	}
	return seen, nil
}

// tableOf is the name of the table of a resource, as the column resource has it: that of a built-in one is its
// plural.
func tableOf(r sqlstore.Resource) string {
	if r.Owner == sqlstore.Custom {
		return strings.ToLower(r.String())
	}
	return r.Resource
}

// narrow takes the constraints of a plan over changes: those on namespace, name, resource, and the least revision
// and time. The names of the constraints that it uses, in the order of the arguments, become info.IdxStr.
func narrow(info *sqlite3.IndexInfo, columns []Column) {
	const many = 1e6
	info.EstimatedCost, info.EstimatedRows = many, many
	used := map[string]bool{}
	var names []string
	for i, c := range info.Constraint {
		if !c.Usable || c.Column < 0 {
			continue
		}
		equal := c.Op == sqlite3.INDEX_CONSTRAINT_EQ && info.Collation(i) == "BINARY"
		least := equal || c.Op == sqlite3.INDEX_CONSTRAINT_GT || c.Op == sqlite3.INDEX_CONSTRAINT_GE
		name := columns[c.Column].Name
		switch name {
		case "namespace", "name", "resource":
			if !equal {
				continue
			}
		case "revision", "time":
			if !least {
				continue
			}
		default:
			continue
		}
		if used[name] {
			continue
		}
		used[name] = true
		names = append(names, name)
		info.ConstraintUsage[i].ArgvIndex = len(names)
		info.EstimatedCost /= 10
		info.EstimatedRows = max(info.EstimatedRows/10, 1)
	}
	info.IdxStr = strings.Join(names, " ")
}

// selectChanges returns the query of a plan, and whether anything can match. The names are those that narrow has
// chosen. SQLite itself compares the rows with the constraints once more: a value that is of an unexpected type
// narrows nothing.
func (p *past) selectChanges(names string, args []sqlite3.Value) (q sqlstore.ChangesQuery, nonEmpty bool, err error) {
	name := ""
	for i, column := range strings.Fields(names) {
		arg := args[i]
		switch kind := arg.Type(); {
		case kind == sqlite3.NULL:
			return q, false, nil // nothing is equal to NULL, nor greater
		case kind == sqlite3.INTEGER && column == "revision":
			q.After = max(q.After, arg.Int64()-1)
		case kind != sqlite3.TEXT:
		case column == "namespace":
			q.Namespaces = []string{arg.Text()}
		case column == "name":
			name = arg.Text()
		case column == "resource":
			if q.Of, err = p.resource(arg.Text()); err != nil {
				return q, false, err
			}
		case column == "time":
			after, err := p.before(arg.Text())
			if err != nil {
				return q, false, err
			}
			q.After = max(q.After, after)
		}
	}
	if q.Namespaces != nil {
		q.Name = name
	}
	return q, true, nil
}

// resource returns the only resource whose table has a name; nil if there are others too, or none.
func (p *past) resource(name string) (of *sqlstore.Resource, err error) {
	histories, err := p.log.Driver.Histories(p.ctx)
	for i := range histories {
		if tableOf(histories[i].Resource) != name {
			continue
		}
		if of != nil {
			return nil, err
		}
		of = &histories[i].Resource
	}
	return of, err
}

// before returns a revision that is before all changes whose time is not less than a text; 0 if the text is no time.
func (p *past) before(text string) (int64, error) {
	format := "2006-01-02T15:04:05"
	if len(text) < len(format) || text[10] != 'T' {
		format = time.DateOnly // the rest of it compares in another way
	}
	t, err := time.Parse(format, text[:min(len(text), len(format))])
	if err != nil {
		return 0, nil
	}
	return p.log.Driver.RevisionAt(p.ctx, t.Add(-time.Second))
}

// ago is the function that returns the time of a duration before the beginning of the query: ago('90m').
func ago(began time.Time) sqlite3.ScalarFunction {
	return func(result sqlite3.Context, args ...sqlite3.Value) {
		d, err := time.ParseDuration(args[0].Text())
		if err != nil {
			result.ResultError(errAgo)
			return
		}
		result.ResultText(began.Add(-d).UTC().Format(timeFormat))
	}
}

// event is by whom and when a state of an object was made, or ended.
type event struct {
	revision           int64
	time               time.Time
	who, verb, manager string
}

func eventOf(c *sqlstore.Change) *event {
	return &event{c.Revision, c.Time, c.Author.User, c.Author.Verb, c.Author.Manager}
}

// textOrNull is NULL for what a change does not have.
func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
