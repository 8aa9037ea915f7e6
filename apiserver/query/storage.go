package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/watch"
)

const (
	// mostRows and mostStreamed bound the rows of an answer.
	mostRows     = 10_000
	mostStreamed = 100_000
	// patience is how long a query waits for others to end; see turns.
	patience = 5 * time.Second
)

// Config is what New needs. All fields are required.
type Config struct {
	// Feed has the objects of the Tables' Stores.
	Feed *watch.Feed
	// Log has their changes, and asks the authorizer.
	Log    *changes.Log
	Tables Tables
	// Timeout bounds a query. Memory bounds what its engine takes, and what is kept for it beside, in
	// bytes. Concurrency is how many run at a time.
	Timeout     time.Duration
	Memory      int64
	Concurrency int
}

// Storage is the rest.Storage of queries. It is safe for concurrent use.
type Storage struct {
	config Config
	turns  *turns
}

var (
	_ rest.Creater              = (*Storage)(nil)
	_ rest.TableConvertor       = (*Storage)(nil)
	_ rest.Scoper               = (*Storage)(nil)
	_ rest.SingularNameProvider = (*Storage)(nil)
)

// New makes a Storage. It starts nothing.
func New(config Config) *Storage {
	return &Storage{config: config, turns: newTurns(config.Concurrency, patience, config.Timeout)}
}

// New implements rest.Storage.
func (*Storage) New() runtime.Object { return &Query{} }

// Destroy implements rest.Storage.
func (*Storage) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Storage) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (*Storage) GetSingularName() string { return "query" }

// Create implements rest.Creater: it answers with the result.
func (s *Storage) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions,
) (runtime.Object, error) {
	q, ok := obj.(*Query)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Query: %T", obj))
	}
	if err := validate(ctx, obj); err != nil {
		return nil, err
	}
	q.Status, q.ManagedFields = Status{Rows: [][]json.RawMessage{}}, nil
	return q, s.run(ctx, &q.Spec, mostRows, &collector{status: &q.Status})
}

// result takes the rows of a query.
type result interface {
	// begin is called once, before the rows.
	begin(h head) error
	// row takes a row, which is valid until it returns.
	row(values []any) error
	// end is called after the rows. truncated says that there are more.
	end(truncated bool) error
}

// head is what is known of a result before its rows.
type head struct {
	// revision is the one that all tables show.
	revision string
	columns  []ResultColumn
	// most is how many rows there are at most.
	most int64
	// deadline is when the query's time is over.
	deadline time.Time
	// budget is what the rows may take in memory.
	budget *budget
}

// collector keeps the result.
type collector struct {
	head
	status *Status
}

func (c *collector) begin(h head) error {
	c.head = h
	c.status.ResourceVersion, c.status.Columns = h.revision, h.columns
	return nil
}

func (c *collector) row(values []any) error {
	row := make([]json.RawMessage, len(values))
	for i, v := range values {
		row[i] = appendJSON(nil, v)
		if err := c.budget.take(len(row[i]) + sliceBytes); err != nil {
			return err
		}
	}
	c.status.Rows = append(c.status.Rows, row)
	return nil
}

// sliceBytes is about what a slice takes beside its bytes.
const sliceBytes = 32

func (c *collector) end(truncated bool) error {
	c.status.Truncated = truncated
	return nil
}

// run executes a query, and gives up to most rows to out. Its errors are API errors.
func (s *Storage) run(ctx context.Context, q *Spec, most int64, out result) error {
	parameters, err := q.check()
	if err != nil {
		return err
	}
	if q.Limit != nil {
		most = min(most, *q.Limit)
	}
	timeout := s.config.Timeout
	if q.TimeoutSeconds != nil {
		timeout = min(timeout, time.Duration(*q.TimeoutSeconds)*time.Second)
	}
	name := ""
	if who, ok := request.UserFrom(ctx); ok {
		name = who.GetName()
	}
	release, err := s.turns.acquire(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	return apiError(ctx, q.SQL, timeout, s.execute(ctx, q, parameters, most, out))
}

// check returns the parameters.
func (q *Spec) check() (parameters []any, err error) {
	var errs field.ErrorList
	at := field.NewPath("spec")
	if strings.TrimSpace(q.SQL) == "" {
		errs = append(errs, field.Required(at.Child("sql"), "a SELECT"))
	}
	if len(q.SQL) > maxSQL {
		errs = append(errs, field.TooLong(at.Child("sql"), "", maxSQL))
	}
	if q.TimeoutSeconds != nil && *q.TimeoutSeconds < 1 {
		errs = append(errs, field.Invalid(at.Child("timeoutSeconds"), *q.TimeoutSeconds, "must be positive"))
	}
	if q.Limit != nil && *q.Limit < 1 {
		errs = append(errs, field.Invalid(at.Child("limit"), *q.Limit, "must be positive"))
	}
	for i, raw := range q.Parameters {
		value, err := parameter(raw)
		if err != nil {
			errs = append(errs, field.Invalid(at.Child("parameters").Index(i), string(raw), err.Error()))
		}
		parameters = append(parameters, value)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(queryKind.GroupKind(), "", errs)
	}
	return parameters, nil
}

// parameter decodes a parameter: nil, or a bool, int64, float64 or string.
func parameter(raw json.RawMessage) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, errors.New("must be JSON")
	}
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		return v.Float64()
	case map[string]any, []any:
		return nil, errors.New("must be a string, a number, a boolean or null")
	}
	return value, nil
}

// execute runs a statement.
func (s *Storage) execute(ctx context.Context, q *Spec, parameters []any, most int64, out result) error {
	e, err := newEngine(ctx, s.config.Memory, s.config.Log)
	if err != nil {
		return err
	}
	defer e.close()
	if err := s.declare(ctx, e, q.SQL); err != nil {
		return err
	}
	if err := s.prepare(e, q); err != nil {
		return err
	}
	if err := e.bind(parameters); err != nil {
		return err
	}
	revision, err := s.fill(ctx, e.past, e.views)
	if err != nil {
		return err
	}
	warn(ctx, q.SQL, e.views)
	columns := e.columns()
	deadline, _ := ctx.Deadline()
	if err := out.begin(head{revision, columns, most, deadline, e.budget}); err != nil {
		return err
	}
	rows, truncated := int64(0), false
	err = e.run(columns, func(values []any) (bool, error) {
		if truncated = rows == most; truncated {
			return false, nil
		}
		rows++
		return true, out.row(values)
	})
	if err != nil {
		return err
	}
	return out.end(truncated)
}

// declare makes the tables known that a statement may name: a table that it does name is in its text.
func (s *Storage) declare(ctx context.Context, e *engine, sql string) error {
	sql = strings.ToLower(sql)
	if err := e.describe(s.config.Tables, sql); err != nil {
		return err
	}
	if err := e.declareDetails(ctx, s.config.Tables, sql); err != nil {
		return err
	}
	for _, name := range s.config.Tables.Names() {
		if !strings.Contains(sql, name) {
			continue
		}
		table, err := s.config.Tables.Table(ctx, name)
		if err != nil {
			return err
		}
		if table == nil {
			continue
		}
		if err := e.declare(name, table); err != nil {
			return err
		}
		if strings.Contains(sql, name+versionsSuffix) {
			if err := e.declareVersions(name+versionsSuffix, table); err != nil {
				return err
			}
		}
	}
	return e.declareChanges()
}

// resources finds tables by the name that detail tables give to a resource: the shortest name of its table. It belongs
// to one query.
type resources struct {
	ctx    context.Context
	tables Tables
	// byName and byKind are all tables, once all has been called.
	byName map[string]*Table
	byKind map[schema.GroupKind]string
}

func newResources(ctx context.Context, tables Tables) *resources {
	return &resources{ctx: ctx, tables: tables}
}

// table returns the table of the resource with a name; nil if there is none.
func (r *resources) table(name string) (*Table, error) {
	t, err := r.tables.Table(r.ctx, name)
	if t == nil || err != nil || t.Resource.Resource == name {
		return t, err
	}
	if short, err := r.tables.Table(r.ctx, t.Resource.Resource); short == nil || err != nil ||
		short.Resource != t.Resource {
		return t, err
	}
	return nil, nil
}

// all returns the tables of all resources, by name.
func (r *resources) all() (map[string]*Table, error) {
	if r.byName != nil {
		return r.byName, nil
	}
	byName, byKind := map[string]*Table{}, map[schema.GroupKind]string{}
	for _, name := range r.tables.Names() {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
		t, err := r.table(name)
		if err != nil {
			return nil, err
		}
		if t != nil {
			byName[name] = t
			byKind[schema.GroupKind{Group: t.Resource.Group, Kind: t.Kind}] = name
		}
	}
	r.byName, r.byKind = byName, byKind
	return byName, nil
}

// ofKind returns the name of the resource of a kind; false if there is none.
func (r *resources) ofKind(apiVersion, kind string) (string, bool, error) {
	if _, err := r.all(); err != nil {
		return "", false, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return "", false, nil //nolint:nilerr // no API version: no resource
	}
	name, ok := r.byKind[schema.GroupKind{Group: gv.Group, Kind: kind}]
	return name, ok, nil
}

// prepare compiles the statement of a query. If there is an error the statement may name a resource whose definition
// is gone: what is left of its history is looked for then only.
func (s *Storage) prepare(e *engine, q *Spec) error {
	e.past.moment = q.At
	err := e.prepare(q.SQL)
	if err == nil || e.cause.err != nil || errors.Is(err, errTooDeep) || errors.Is(err, errTooLarge) {
		return err // after these two the engine must not be used
	}
	found, goneErr := s.declareGone(e, strings.ToLower(q.SQL))
	switch {
	case goneErr != nil:
		return goneErr
	case found:
		return e.prepare(q.SQL)
	}
	return err
}

// declareGone makes the tables of resources known whose definitions are gone and whose past the user may see, and
// reports whether the statement may name one. Nothing is known of such a resource but the members of every object.
func (s *Storage) declareGone(e *engine, sql string) (found bool, err error) {
	histories, err := e.past.historiesOf()
	if err != nil {
		return false, err
	}
	rights, err := e.past.rightsOf()
	if err != nil {
		return false, err
	}
	names := s.config.Tables.Names()
	for i := range histories {
		of := histories[i].Resource
		gr := schema.GroupResource{Group: of.Group, Resource: of.Resource}
		name := FullName(gr)
		if of.Owner != sqlstore.Custom || !strings.Contains(sql, name) || slices.Contains(names, name) {
			continue
		}
		if scope, err := rights.Scope(e.ctx, of, 0); err != nil {
			return false, err
		} else if !scope.All {
			continue // to others it is as if it had never been
		}
		found = true
		table := &Table{Resource: gr, Columns: NewColumns(&spec.Schema{}, nil, nil), Gone: of}
		if err := e.declare(name, table); err != nil {
			return false, err
		}
		if err := e.declareVersions(name+versionsSuffix, table); err != nil {
			return false, err
		}
	}
	return found, nil
}

// fill fills the tables of a query with the rows that its user may list, all at one revision that is not
// older than the request, or at the one of the moment that the query asks for. It returns the revision.
//
// As for a list, the authorizer is asked before the rows are read: about all namespaces, and if
// the answer is no, about each namespace in which there are rows. Objects of a resource whose definition
// is not known, if it has any, have been left behind or are newer than what is known: they are shown by the rights of
// the past.
func (s *Storage) fill(ctx context.Context, p *past, views []*view) (revision string, err error) {
	at := p.moment
	if p.latest, err = s.config.Feed.Latest(ctx); err != nil {
		return "", err
	}
	resources := make([]sqlstore.Resource, len(views))
	for i, v := range views {
		resources[i] = v.Of()
	}
	snapshots, err := s.config.Feed.Snapshots(ctx, resources...)
	if err != nil {
		return "", err
	}
	namespaces := make([][]string, len(views))
	known := make([]map[string]bool, len(views))
	for i := range known {
		known[i] = map[string]bool{}
	}
	for asked := true; asked; {
		asked = false
		for i, v := range views {
			if at != "" || v.Store == nil {
				continue
			}
			answers := len(known[i])
			if namespaces[i], err = s.mayList(ctx, v.Table, snapshots[i], known[i]); err != nil {
				return "", err
			}
			asked = asked || len(known[i]) > answers
		}
		// There may be rows in other namespaces meanwhile.
		if asked {
			if snapshots, err = s.config.Feed.Snapshots(ctx, resources...); err != nil {
				return "", err
			}
		}
	}
	for i, v := range views {
		p.latest = snapshots[i].Revision()
		v.snapshot = snapshots[i]
		if at != "" || v.Store == nil {
			continue // v.now is what it showed then, by the rights of the past
		}
		v.now = &selection{view: v, source: &cached{snapshots[i], namespaces[i]}}
		if namespaces[i] != nil && len(namespaces[i]) == 0 {
			v.now.forbidden = fmt.Sprintf("you may not list %s in all namespaces, nor in one that has some", v.Resource)
		}
	}
	shown := p.latest
	if at != "" {
		if shown, err = p.revision(at); err != nil {
			return "", err
		}
		p.latest = shown
	}
	for _, v := range views {
		if v.now != nil {
			continue
		}
		if v.now, err = p.show(v, at, shown); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(shown, 10), nil
}

// mayList returns the namespaces in which the user may list the objects of a table; nil means all. known has the
// answers of the authorizer, by namespace.
func (s *Storage) mayList(
	ctx context.Context, t *Table, snapshot watch.Snapshot, known map[string]bool,
) ([]string, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("the request has no user"))
	}
	if all, err := s.may(ctx, who, t, "", known); all || err != nil {
		return nil, err
	}
	namespaces := []string{}
	for namespace := range snapshot.Namespaces() {
		if namespace == "" {
			continue // objects without a namespace
		}
		may, err := s.may(ctx, who, t, namespace, known)
		if err != nil {
			return nil, err
		}
		if may {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces, nil
}

// may asks the authorizer what the handler of lists asks, unless the answer is known.
func (s *Storage) may(
	ctx context.Context, who user.Info, t *Table, namespace string, known map[string]bool,
) (bool, error) {
	if allowed, ok := known[namespace]; ok {
		return allowed, nil
	}
	decision, _, err := s.config.Log.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "list", Namespace: namespace, APIGroup: t.Resource.Group, APIVersion: t.Version,
		Resource: t.Resource.Resource, ResourceRequest: true,
	})
	if known[namespace] = decision == authorizer.DecisionAllow; !known[namespace] && err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return known[namespace], nil
}

// warn adds a warning for each table and detail table that a statement names, and that is empty because its user may
// list nothing of what it has.
func warn(ctx context.Context, sql string, views []*view) {
	sql = strings.ToLower(sql)
	for _, v := range views {
		if v.detail == "" && v.now.forbidden != "" && strings.Contains(sql, v.name) {
			warning.AddWarning(ctx, "", fmt.Sprintf("%s is empty: %s", v.name, v.now.forbidden))
		}
	}
	for name, of := range detailsIn(sql) {
		var parts []*selection
		var pods *podsByNamespace
		for _, v := range views {
			switch {
			case v.detail != name:
			case of.Selectors != nil && v.name == podsTable:
				pods = &podsByNamespace{shown: v.now}
			default:
				parts = append(parts, v.now)
			}
		}
		if isEmpty(parts, pods) {
			warnEmpty(ctx, name)
		}
	}
}

func warnEmpty(ctx context.Context, detail string) {
	warning.AddWarning(ctx, "", detail+" is empty: you may not list what it is made of")
}

// isEmpty reports whether the user may list no row of any part of a detail table, or none of the Pods that it selects
// from, if it does.
func isEmpty(parts []*selection, pods *podsByNamespace) bool {
	if pods != nil && pods.shown.forbidden != "" {
		return true
	}
	return len(parts) > 0 && !slices.ContainsFunc(parts, func(part *selection) bool { return part.forbidden == "" })
}
