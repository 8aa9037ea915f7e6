package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/ncruces/go-sqlite3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/watch"
)

// past reads what tables showed at earlier moments, as the user of one query may see it: by the rule of the
// resource changes. One goroutine uses it.
type past struct {
	ctx    context.Context
	log    *changes.Log
	budget *budget
	cause  *cause
	// moment is the one that the query asks for; empty for now.
	moment string
	// latest is the revision of the query: what is later, it does not see.
	latest int64
	rights *changes.Rights // see rightsOf
	// histories are those of all resources, once historiesOf has read them.
	histories []sqlstore.History
	// revisions are those of moments: in one statement a moment is the same for all tables.
	revisions map[string]int64
	// times compares the values of columns of the type Time.
	times *times
}

func (p *past) rightsOf() (_ *changes.Rights, err error) {
	if p.rights == nil {
		p.rights, err = p.log.RightsOf(p.ctx)
	}
	return p.rights, err
}

// at returns what a view shows at a moment of the statement.
func (p *past) at(v *view, moment string) (*selection, error) {
	if known := v.then[moment]; known != nil {
		return known, nil
	}
	revision, err := p.revision(moment)
	if err != nil {
		return nil, err
	}
	shown, err := p.show(v, moment, revision)
	if err != nil {
		return nil, err
	}
	if shown.forbidden != "" && v.detail == "" {
		warning.AddWarning(p.ctx, "", fmt.Sprintf("%s at %s is empty: %s", v.name, moment, shown.forbidden))
	}
	v.then[moment] = shown
	return shown, nil
}

// revision returns the revision of a moment.
func (p *past) revision(moment string) (int64, error) {
	if known, ok := p.revisions[moment]; ok {
		return known, nil
	}
	revision, err := p.find(moment)
	if err == nil {
		p.revisions[moment] = revision
	}
	return revision, err
}

func (p *past) find(text string) (int64, error) {
	at, revision, err := p.log.Revision(p.ctx, text)
	switch {
	case err != nil:
		return 0, err
	case at.Revision > p.latest:
		return 0, apierrors.NewBadRequest(fmt.Sprintf("there is no revision %d yet: the last one is %d", revision, p.latest))
	}
	return min(revision, p.latest), nil
}

// show returns what a view shows at a moment, which has a revision.
func (p *past) show(v *view, moment string, revision int64) (*selection, error) {
	rights, err := p.rightsOf()
	if err != nil {
		return nil, err
	}
	scope, err := rights.Scope(p.ctx, v.Of(), revision)
	if err != nil {
		return nil, err
	}
	shown := &selection{view: v,
		source: &stored{past: p, view: v, moment: moment, revision: revision, scope: scope,
			byNamespace: map[string][]*watch.Entry{}}}
	if !scope.All && len(scope.Namespaces) == 0 {
		shown.forbidden = fmt.Sprintf(
			"you may not list %s and changes.%s in all namespaces, nor in one that there has been since", v.Resource,
			changes.Group)
		return shown, nil
	}
	return shown, p.covers(v.Of(), moment, revision)
}

// covers fails with the code 410 if the history of a resource does not reach back to a moment.
func (p *past) covers(of sqlstore.Resource, moment string, revision int64) error {
	histories, err := p.historiesOf()
	if err != nil {
		return err
	}
	for i := range histories {
		if histories[i].Resource == of {
			return changes.Covers("the history of "+of.String(), moment, revision, histories[i])
		}
	}
	return nil // there has never been an object
}

func (p *past) historiesOf() (_ []sqlstore.History, err error) {
	if p.histories == nil {
		p.histories, err = p.log.Driver.Histories(p.ctx)
	}
	return p.histories, err
}

// stored is the source of an earlier revision: the database has what was replaced since, and the watch cache what
// was not, which takes no memory.
type stored struct {
	*past
	view     *view
	moment   string
	revision int64
	scope    changes.Scope
	// gets counts the rows that were read one by one; after mostGets of them, all are.
	gets int
	// rows are all rows, once isRead is true. Until then, byNamespace has those of the namespaces that were read.
	rows        []*watch.Entry
	isRead      bool
	byNamespace map[string][]*watch.Entry
}

const (
	mostGets = 100
	// entryBytes is about what an entry takes beside its value.
	entryBytes = 500
)

func (s *stored) all() (rows []*watch.Entry, err error) {
	if s.isRead {
		return s.rows, nil
	}
	defer func() { s.rows, s.isRead = rows, err == nil }()
	if s.scope.All {
		return s.list("", "")
	}
	for _, namespace := range slices.Sorted(maps.Keys(s.scope.Namespaces)) {
		found, err := s.list(namespace, "")
		if err != nil {
			return nil, err
		}
		rows = append(rows, found...)
	}
	return rows, nil
}

func (s *stored) in(namespace string) ([]*watch.Entry, error) {
	if !s.isRead {
		rows, ok := s.byNamespace[namespace]
		if ok {
			return rows, nil
		}
		if err := s.budget.take(hashedBytes + len(namespace)); err != nil {
			return nil, err
		}
		rows, err := s.list(namespace, "")
		if err == nil {
			s.byNamespace[namespace] = rows
		}
		return rows, err
	}
	from, _ := s.find(namespace, "")
	to, _ := s.find(namespace+"\x00", "")
	return s.rows[from:to], nil
}

func (s *stored) get(namespace, name string) (*watch.Entry, error) {
	if s.gets++; s.gets == mostGets {
		if _, err := s.all(); err != nil {
			return nil, err
		}
	}
	if s.isRead {
		if i, found := s.find(namespace, name); found {
			return s.rows[i], nil
		}
		return nil, nil
	}
	rows, err := s.list(namespace, name)
	for _, e := range rows {
		if e.Namespace == namespace && e.Name == name {
			return e, err
		}
	}
	return nil, err
}

// find returns where in rows a key is, or would be.
func (s *stored) find(namespace, name string) (int, bool) {
	wanted := watch.NewEntry(sqlstore.Record{Key: sqlstore.Key{Namespace: namespace, Name: name}})
	return slices.BinarySearchFunc(s.rows, wanted, compareKeys)
}

func compareKeys(a, b *watch.Entry) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// current yields the entries of the watch cache in a range of list.
func (s *stored) current(namespace, name string) iter.Seq[*watch.Entry] {
	if namespace == "" || name == "" {
		return s.view.snapshot.All(namespace, nil)
	}
	return func(yield func(*watch.Entry) bool) {
		if e := s.view.snapshot.Get(namespace, name); e != nil {
			yield(e)
		}
	}
}

// list reads the records of a namespace, or of all if it is empty, and those of one name unless that is empty.
func (s *stored) list(namespace, name string) (rows []*watch.Entry, err error) {
	if s.revision == 0 {
		return nil, nil // before the first change
	}
	of := s.view.Of()
	// One read: the database merges objects with their changes, and would begin anew for each page.
	q := sqlstore.Query{
		Range: sqlstore.Range{Group: of.Group, Resource: of.Resource, Owner: of.Owner, Namespace: namespace, Name: name},
		At:    s.revision, Past: true, Replaced: true,
	}
	_, err = s.log.Driver.List(s.ctx, q, func(r sqlstore.Record) error {
		if !s.scope.Includes(&r) {
			return nil
		}
		rows = append(rows, watch.NewEntry(r))
		return s.budget.take(len(r.Value) + entryBytes)
	})
	for e := range s.current(namespace, name) {
		if e.Revision <= s.revision && s.scope.Includes(&e.Record) {
			rows = append(rows, e)
		}
	}
	// What has been replaced after the snapshot is in both.
	slices.SortFunc(rows, compareKeys)
	rows = slices.CompactFunc(rows, func(a, b *watch.Entry) bool { return compareKeys(a, b) == 0 })
	if errors.Is(err, sqlstore.ErrCompacted) {
		s.histories = nil // retention has deleted changes since
		err = errors.Join(s.covers(of, s.moment, s.revision), err)
	}
	return rows, err
}

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
	if err := t.past.times.check(info, t.columns); err != nil {
		return t.cause.keep(err)
	}
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
