package server

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"byre/migrations"
)

// SQLOptions bound the queries of the group sql.byre.dev, and say where views for other SQL are. The
// usage of each flag says what its field means.
type SQLOptions struct {
	Enabled     bool
	Timeout     time.Duration
	Memory      resource.QuantityValue
	Concurrency int
	Schema      string
}

// NewSQLOptions returns the defaults.
func NewSQLOptions() SQLOptions {
	return SQLOptions{Enabled: true, Timeout: 10 * time.Second, Memory: resource.QuantityValue{Quantity: resource.MustParse("64Mi")}}
}

// AddFlags adds the flags.
func (o *SQLOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-sql", o.Enabled,
		"Serve sql.byre.dev: SQL over the objects that a user may list.")
	fs.DurationVar(&o.Timeout, "sql-timeout", o.Timeout,
		"How long a query of sql.byre.dev may take.")
	fs.Var(&o.Memory, "sql-memory",
		"How much memory the engine of a query of sql.byre.dev may take, such as 64Mi, and what the server keeps for it beside.")
	fs.IntVar(&o.Concurrency, "sql-concurrency", o.Concurrency,
		"How many queries of sql.byre.dev run at a time, of one user at most half as many; others wait for 5 seconds and are then refused with 429. 0 is half the processors, and at least 2.")
	fs.StringVar(&o.Schema, "sql-schema", o.Schema,
		"PostgreSQL: keep a view and a function of the past for each resource in the schema of this name, such as k8s, for who owns the database. It is made if there is none. If not set, there are no such views.")
}

// Parallel is how many queries run at a time.
func (o *SQLOptions) Parallel() int {
	if o.Concurrency > 0 {
		return o.Concurrency
	}
	return max(2, runtime.GOMAXPROCS(0)/2) // with one, a user's query would wait for another's
}

// smallestSQLMemory is what the engine needs for any query.
const smallestSQLMemory = 4 << 20

// Validate returns what is wrong with the options.
func (o *SQLOptions) Validate() []error {
	var errs invalid
	errs.unless(o.Timeout > 0, "--sql-timeout must be positive")
	memory := o.Memory.Value()
	errs.unless(memory >= smallestSQLMemory && memory <= 4<<30, "--sql-memory must be between 4Mi and 4Gi")
	errs.unless(o.Concurrency >= 0, "--sql-concurrency must not be negative")
	return errs
}

// checkSchema returns what is wrong with Schema.
func (o *SQLOptions) checkSchema(store *StoreOptions) error {
	if o.Schema == "" {
		return nil
	}
	endpoint, err := store.DSN()
	if err != nil {
		return nil //nolint:nilerr // StoreOptions.Validate returns it
	}
	if dialect, _, _ := migrations.ParseEndpoint(endpoint); dialect != migrations.Postgres {
		return errors.New("--sql-schema needs PostgreSQL: name a database with --endpoint, or print views of SQLite with \"byre sql views\"")
	}
	if err := migrations.CheckSchema(o.Schema); err != nil {
		return fmt.Errorf("--sql-schema: %w", err)
	}
	return nil
}
