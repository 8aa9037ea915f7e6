package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/storage/changes"
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
	// requests counts all requests, for which queries make way.
	requests atomic.Int64
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
func (s *Storage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
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
	return apiError(ctx, q.SQL, timeout, atLowPriority(func() error { return s.execute(ctx, q, parameters, most, out) }))
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
	e, err := newEngine(ctx, s.config.Memory, s.config.Log, &s.requests)
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
	if err := e.describe(s.config.Tables); err != nil {
		return err
	}
	if err := e.declareEdges(ctx, s.config.Tables, sql); err != nil {
		return err
	}
	sql = strings.ToLower(sql)
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
