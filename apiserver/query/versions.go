package query

import (
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"byre/sqlstore"
	"byre/watch"
)

// versionsSuffix makes the name of the table of versions: pods_history.
const versionsSuffix = "_history"

// versionColumns come before those of the table: when and by whom a state was made, and ended.
var versionColumns = []Column{
	NewColumn("valid_from", Time, "When this state was made; NULL if that is older than the history, or not to be seen."),
	NewColumn("valid_to", Time, "When another change ended it; NULL for the present state."),
	NewColumn("who", Text, "The user who made it."),
	NewColumn("verb", Text, "The verb of the request that made it."),
	NewColumn("manager", Text, "The field manager of that request."),
	NewColumn("ended_by", Text, "The user who ended it."),
	NewColumn("ended_verb", Text, "The verb of the request that ended it."),
}

// versions is a table with a row for each state that the history has of the objects of another.
type versions struct {
	*view
	columns []Column
}

// declareVersions makes the versions of a table known under a name.
func (e *engine) declareVersions(name string, t *Table) error {
	columns := versionColumns[:len(versionColumns):len(versionColumns)]
	for _, c := range t.Columns {
		for _, of := range versionColumns {
			if c.Name == of.Name {
				c.Name = "object_" + c.Name
			}
		}
		columns = append(columns, c)
	}
	return addModule(e, name, ddl(columns), func() versions { return versions{e.view(name, t), columns} })
}

// BestIndex implements sqlite3.VTab. The revision and the time of a change say nothing of the states before it.
func (t versions) BestIndex(info *sqlite3.IndexInfo) error {
	columns := make([]Column, len(t.columns))
	for i, c := range t.columns {
		if c.Name == "namespace" || c.Name == "name" {
			columns[i].Name = c.Name
		}
	}
	for _, c := range info.Constraint {
		if c.Column == len(versionColumns)+MomentColumn {
			return fmt.Errorf("%s takes no moment: compare valid_from and valid_to", t.name)
		}
	}
	narrow(info, columns)
	return nil
}

// Open implements sqlite3.VTab.
func (t versions) Open() (sqlite3.VTabCursor, error) {
	reader := newReader(t.view)
	reader.isPast = true
	return &versionsCursor{versions: t, reader: reader}, nil
}

// version is a state of an object.
type version struct {
	*watch.Entry
	made, ended *event // nil: not known, and not yet
}

// versionsCursor is a scan of versions. Each change gives the state that it has ended; the present ones come last.
type versionsCursor struct {
	versions
	reader *reader
	log    *logReader
	// made has by what change the last state of each object was made.
	made map[sqlstore.Key]*event
	rows []version
	at   int
	// ended is true once the present states were read.
	ended bool
}

// eventBytes is about what an object takes in made.
const eventBytes = 300

// Filter implements sqlite3.VTabCursor.
func (c *versionsCursor) Filter(_ int, names string, args ...sqlite3.Value) error {
	c.log.release()
	c.budget.left += int64(len(c.made)) * eventBytes
	*c = versionsCursor{versions: c.versions, reader: c.reader, made: map[sqlstore.Key]*event{}}
	var err error
	if c.log, err = c.past.selectChanges(names, args); c.log == nil || err != nil {
		c.ended = true
		return c.cause.keep(err)
	}
	c.log.query.Of = new(c.Of())
	return c.cause.keep(c.read())
}

// Next implements sqlite3.VTabCursor.
func (c *versionsCursor) Next() error {
	if c.at++; c.at < len(c.rows) || c.ended {
		return nil
	}
	return c.cause.keep(c.read())
}

// read reads some rows; none at the end.
func (c *versionsCursor) read() error {
	c.rows, c.at = c.rows[:0], 0
	for len(c.rows) == 0 && !c.ended {
		read, err := c.log.next()
		if err != nil {
			return err
		}
		for i := range read {
			if err := c.add(&read[i]); err != nil {
				return err
			}
		}
		if c.ended = len(read) == 0; c.ended {
			return c.addPresent()
		}
	}
	return nil
}

// add adds the state that a change has ended.
func (c *versionsCursor) add(change *sqlstore.Change) error {
	key := change.New.Key
	made := c.made[key]
	if old := change.Old; old != nil {
		c.rows = append(c.rows, version{watch.NewEntry(*old), madeAt(made, old.Revision), eventOf(change)})
	}
	if change.Op == sqlstore.Delete {
		if made != nil {
			c.budget.left += eventBytes
			delete(c.made, key)
		}
		return nil
	}
	if made == nil {
		if err := c.budget.take(eventBytes); err != nil {
			return err
		}
	}
	c.made[key] = eventOf(change)
	return nil
}

// addPresent adds the states that no change has ended.
func (c *versionsCursor) addPresent() (err error) {
	var present []*watch.Entry
	switch q := &c.log.query; {
	case q.Name != "":
		present, err = c.now.withKey(q.Namespaces[0], q.Name)
	case q.Namespaces != nil:
		present, err = c.now.in(q.Namespaces[0])
	default:
		present, err = c.now.all()
	}
	for _, e := range present {
		c.rows = append(c.rows, version{e, madeAt(c.made[e.Key], e.Revision), nil})
	}
	return err
}

// madeAt returns an event if it made the state of a revision.
func madeAt(e *event, revision int64) *event {
	if e == nil || e.revision != revision {
		return nil
	}
	return e
}

// EOF implements sqlite3.VTabCursor.
func (c *versionsCursor) EOF() bool { return c.at >= len(c.rows) }

// RowID implements sqlite3.VTabCursor: no two states have the same revision.
func (c *versionsCursor) RowID() (int64, error) { return c.rows[c.at].Revision, nil }

// Column implements sqlite3.VTabCursor.
func (c *versionsCursor) Column(result sqlite3.Context, n int) error {
	row := &c.rows[c.at]
	if of := n - len(versionColumns); of >= 0 {
		value, err := c.reader.value(row.Entry, of)
		setResult(result, value)
		return c.cause.keep(err)
	}
	from := row.made
	if name := versionColumns[n].Name; name == "valid_to" || name == "ended_by" || name == "ended_verb" {
		from = row.ended
	}
	setResult(result, from.column(versionColumns[n].Name))
	return nil
}

// column returns the value of one of versionColumns.
func (e *event) column(name string) any {
	if e == nil {
		return nil
	}
	switch name {
	case "valid_from", "valid_to":
		return e.time.UTC().Format(timeFormat)
	case "who", "ended_by":
		return textOrNull(e.who)
	case "verb", "ended_verb":
		return textOrNull(e.verb)
	}
	return textOrNull(e.manager)
}
