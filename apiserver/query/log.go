package query

import (
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
)

// timeFormat is that of the time of a change: of one length, so that texts compare as times do.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// logReader reads the changes that the user of a query may see, in the order of their revisions, or the newest
// first.
type logReader struct {
	*past
	query sqlstore.ChangesQuery
	// last is the last revision to read.
	last int64
	// charged is what the budget has given for what next has returned last, in bytes.
	charged int
}

// release gives back what next has taken from the budget. A nil reader has taken nothing.
func (r *logReader) release() {
	if r != nil {
		r.budget.left += int64(r.charged)
		r.charged = 0
	}
}

const (
	// fewChanges and mostChanges are how many changes are read from the database at once: more each time, since
	// a statement may need the first ones only. logBytes bounds their values.
	fewChanges  = 64
	mostChanges = 2048
	logBytes    = 1 << 20
)

// newestFirst reverses the order. It is called before next.
func (r *logReader) newestFirst() { r.query.Before = r.last + 1 }

// next returns some changes; none at the end. The caller does not keep those before.
func (r *logReader) next() (seen []sqlstore.Change, err error) {
	r.release()
	if seen, err = r.read(); err != nil {
		return nil, err
	}
	for i := range seen {
		r.charged += changeBytes + seen[i].Size()
	}
	return seen, r.budget.take(r.charged)
}

// changeBytes is about what a change takes beside its values.
const changeBytes = 500

func (r *logReader) read() (seen []sqlstore.Change, err error) {
	rights, err := r.rightsOf()
	if err != nil {
		return nil, err
	}
	r.query.Kept, r.query.Size = true, logBytes
	for len(seen) == 0 {
		r.query.Limit = min(max(2*r.query.Limit, fewChanges), mostChanges)
		read, err := r.log.Driver.Changes(r.ctx, r.query)
		if len(read) == 0 || err != nil {
			return nil, err
		}
		created := changes.NewCreations(r.log.Driver)
		for i := range read {
			c := &read[i]
			if r.query.Before != 0 {
				r.query.Before = c.Revision
			} else if r.query.After = c.Revision; c.Revision > r.last {
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

// narrow takes the constraints of a plan over changes: those on namespace, name, resource, revision, and the least
// time. The columns and operators of the constraints that it uses, in the order of the arguments, become info.IdxStr.
func narrow(info *sqlite3.IndexInfo, columns []Column) {
	const many = 1e6
	info.EstimatedCost, info.EstimatedRows = many, many
	var used []string
	for i, c := range info.Constraint {
		if !c.Usable || c.Column < 0 {
			continue
		}
		operator, ok := operators[c.Op]
		switch columns[c.Column].Name {
		case "namespace", "name", "resource":
			ok = operator == "=" && info.Collation(i) == "BINARY"
		case "revision":
		case "time":
			ok = operator == ">" || operator == "=" && info.Collation(i) == "BINARY"
		default:
			continue
		}
		use := columns[c.Column].Name + operator
		if !ok || slices.Contains(used, use) {
			continue
		}
		used = append(used, use)
		info.ConstraintUsage[i].ArgvIndex = len(used)
		info.EstimatedCost /= 10
		info.EstimatedRows = max(info.EstimatedRows/10, 1)
	}
	info.IdxStr = strings.Join(used, " ")
}

// operators are those of the constraints that narrow uses: equal, at least or more, at most or less.
var operators = map[sqlite3.IndexConstraintOp]string{
	sqlite3.INDEX_CONSTRAINT_EQ: "=", sqlite3.INDEX_CONSTRAINT_GT: ">", sqlite3.INDEX_CONSTRAINT_GE: ">",
	sqlite3.INDEX_CONSTRAINT_LT: "<", sqlite3.INDEX_CONSTRAINT_LE: "<",
}

// selectChanges returns the reader of a plan; nil if nothing can match. The constraints are those that narrow has
// chosen. SQLite itself compares the rows with the constraints once more: a value that is of an unexpected type
// narrows nothing.
func (p *past) selectChanges(constraints string, args []sqlite3.Value) (*logReader, error) {
	r, name := &logReader{past: p, last: p.latest}, ""
	for i, constraint := range strings.Fields(constraints) {
		arg := args[i]
		column, operator := constraint[:len(constraint)-1], constraint[len(constraint)-1]
		switch kind := arg.Type(); {
		case kind == sqlite3.NULL:
			return nil, nil // nothing is equal to NULL, nor greater
		case kind == sqlite3.INTEGER && column == "revision":
			if operator != '<' {
				r.query.After = max(r.query.After, max(arg.Int64(), 1)-1)
			}
			if operator != '>' {
				r.last = min(r.last, arg.Int64())
			}
		case kind != sqlite3.TEXT:
		case column == "namespace":
			r.query.Namespaces = []string{arg.Text()}
		case column == "name":
			name = arg.Text()
		case column == "resource":
			of, err := p.resource(arg.Text())
			if err != nil {
				return nil, err
			}
			r.query.Of = of
		case column == "time":
			after, err := p.before(arg.Text())
			if err != nil {
				return nil, err
			}
			r.query.After = max(r.query.After, after)
		}
	}
	if r.query.Namespaces != nil {
		r.query.Name = name
	}
	if r.last <= r.query.After {
		return nil, nil
	}
	return r, nil
}

// resource returns the only resource whose table has a name; nil if there are others too, or none.
func (p *past) resource(name string) (of *sqlstore.Resource, err error) {
	histories, err := p.historiesOf()
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
