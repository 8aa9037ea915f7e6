package server

import (
	"net/http"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/mux"

	"byre/apiserver/handlers"
	"byre/apiserver/query"
)

// newSQLFeature makes the feature of the group sql.byre.dev.
func newSQLFeature() Feature {
	o := &sqlOptions{Enabled: true, Timeout: 10 * time.Second,
		Memory: resource.QuantityValue{Quantity: resource.MustParse("64Mi")}}
	return Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) { o.addFlags(section("store")) },
		Validate: o.validate,
		New: func(b *Base) (Part, error) {
			if !o.Enabled {
				return Part{}, nil
			}
			var tables query.Servers // each server of the chain has its own
			queries := query.New(query.Config{
				Feed: b.Storage.Feed, Log: b.Changes, Tables: &tables,
				Timeout: o.Timeout, Memory: o.Memory.Value(), Concurrency: o.parallel(),
			})
			return Part{
				Groups:      []handlers.Group{query.NewGroup(queries)},
				Definitions: query.Definitions,
				Expensive:   []schema.GroupResource{{Group: query.GroupName, Resource: "queries"}},
				Handle: func(paths *mux.PathRecorderMux, api http.Handler) {
					paths.UnlistedHandle(query.Path, query.NewHandler(queries, b.Admission, api))
				},
				Complete: func(c Chain) error {
					builtin, err := query.NewBuiltinTables(c.Kubernetes, c.Lookup, c.Schemas)
					if err != nil {
						return err
					}
					tables = query.Servers{builtin}
					for _, server := range c.Servers {
						if own, ok := server.(query.Tables); ok {
							tables = append(tables, own)
						}
					}
					return nil
				},
			}, nil
		},
	}
}

// sqlOptions bound the queries of the group sql.byre.dev. The
// usage of each flag says what its field means.
type sqlOptions struct {
	Enabled     bool
	Timeout     time.Duration
	Memory      resource.QuantityValue
	Concurrency int
}

func (o *sqlOptions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-sql", o.Enabled,
		"Serve sql.byre.dev: SQL over the objects that a user may list.")
	fs.DurationVar(&o.Timeout, "sql-timeout", o.Timeout,
		"How long a query of sql.byre.dev may take.")
	fs.Var(&o.Memory, "sql-memory",
		"How much memory the engine of a query of sql.byre.dev may take, such as 64Mi, and what the server keeps for it beside.")
	fs.IntVar(&o.Concurrency, "sql-concurrency", o.Concurrency,
		"How many queries of sql.byre.dev run at a time, of one user at most half as many; others wait for 5 seconds and are then refused with 429. 0 is half the processors, and at least 2.")
}

// parallel is how many queries run at a time.
func (o *sqlOptions) parallel() int {
	if o.Concurrency > 0 {
		return o.Concurrency
	}
	return max(2, runtime.GOMAXPROCS(0)/2) // with one, a user's query would wait for another's
}

// smallestSQLMemory is what the engine needs for any query.
const smallestSQLMemory = 4 << 20

func (o *sqlOptions) validate(*Options) []error {
	var errs invalid
	errs.unless(o.Timeout > 0, "--sql-timeout must be positive")
	memory := o.Memory.Value()
	errs.unless(memory >= smallestSQLMemory && memory <= 4<<30, "--sql-memory must be between 4Mi and 4Gi")
	errs.unless(o.Concurrency >= 0, "--sql-concurrency must not be negative")
	return errs
}
