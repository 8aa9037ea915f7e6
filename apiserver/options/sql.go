package options

import (
	"errors"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// SQLOptions bound the queries of the group sql.byre.dev.
type SQLOptions struct {
	// Enabled serves the group.
	Enabled bool
	// Timeout bounds a query.
	Timeout time.Duration
	// Memory bounds what the engine of a query takes, and what the server keeps for it beside, in bytes.
	Memory resource.QuantityValue
	// Concurrency is how many queries run at a time; 0 is half the processors, and at least 1.
	Concurrency int
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
		"How many queries of sql.byre.dev run at a time; others wait for 5 seconds and are then refused with 429. 0 is half the processors, and at least 1.")
}

// Parallel is how many queries run at a time.
func (o *SQLOptions) Parallel() int {
	if o.Concurrency > 0 {
		return o.Concurrency
	}
	return max(1, runtime.GOMAXPROCS(0)/2)
}

// smallestSQLMemory is what the engine needs for any query.
const smallestSQLMemory = 4 << 20

// Validate returns what is wrong with the options.
func (o *SQLOptions) Validate() (errs []error) {
	if o.Timeout <= 0 {
		errs = append(errs, errors.New("--sql-timeout must be positive"))
	}
	if memory := o.Memory.Value(); memory < smallestSQLMemory || memory > 4<<30 {
		errs = append(errs, errors.New("--sql-memory must be between 4Mi and 4Gi"))
	}
	if o.Concurrency < 0 {
		errs = append(errs, errors.New("--sql-concurrency must not be negative"))
	}
	return errs
}
