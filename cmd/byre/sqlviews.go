package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"

	"byre/apiserver/process"
	"byre/apiserver/query"
	"byre/apiserver/server"
	"byre/cmd/byre/sqlviews"
	"byre/crd"
	"byre/migrations"
	"byre/sqlstore"
)

func newSQLViewsCommand() *cobra.Command {
	store := server.NewStoreOptions()
	cmd := &cobra.Command{
		Use:   "views",
		Short: "Print views of a SQLite database that have the tables of SQL",
		Long: "Print CREATE TEMP VIEW statements for the sqlite3 shell, which make a view for each table that\n" +
			"\"byre sql\" asks, with its columns. They are for who owns the database: they follow no access rights,\n" +
			"and what is encrypted has only its key. The database is only read, also while byre runs.\n" +
			"On PostgreSQL the server keeps the views: \"byre serve --sql-schema\".",
		Example: "  byre sql views --data-dir /var/lib/byre > views.sql\n" +
			"  sqlite3 -readonly -init views.sql /var/lib/byre/byre.db \"SELECT node, count(*) FROM pods GROUP BY node\"",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return printViews(cmd, store) },
	}
	store.AddDatabaseFlags(cmd.Flags())
	return cmd
}

// printViews prints the views of all tables. It warns of definitions of which there is none.
func printViews(cmd *cobra.Command, store server.StoreOptions) error {
	endpoint, err := usedEndpoint(store)
	if err != nil {
		return err
	}
	dialect, path, err := migrations.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if dialect != migrations.SQLite {
		return errors.New("\"byre sql views\" is for SQLite: on PostgreSQL \"byre serve --sql-schema\" keeps the views")
	}
	if err := checkSource(endpoint); err != nil {
		return err
	}
	tables, err := builtinTables(compatibility.DefaultBuildEffectiveVersion())
	if err != nil {
		return err
	}
	definitions, err := sqlviews.Definitions(cmd.Context(), path)
	if err != nil {
		return err
	}
	for _, text := range definitions {
		var of apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal([]byte(text), &of); err != nil {
			continue // "byre check" reports it
		}
		t, err := crd.Describe(&of)
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "Warning: there is no view of %s: %v\n", of.Name, err)
		}
		if t != nil {
			tables = append(tables, sqlviews.Table{Table: t, IsCustom: true})
		}
	}
	_, err = io.WriteString(cmd.OutOrStdout(), sqlviews.SQLiteStatements(tables))
	return err
}

func builtinTables(of basecompatibility.EffectiveVersion) (tables []sqlviews.Table, err error) {
	described, err := server.Tables(of)
	for _, t := range described {
		tables = append(tables, sqlviews.Table{Table: t})
	}
	return tables, err
}

const (
	// viewsElection is the time between two tries to become the server that keeps the views.
	viewsElection = 2 * time.Second
	// viewsGather is how long changes of definitions are gathered: one that is installed changes several times.
	viewsGather = 500 * time.Millisecond
	// viewsRetry is the time after which a view is tried again that a transaction has read.
	viewsRetry = 2 * time.Second
	// viewsInterval is the time after which the views are compared again although no definition has changed.
	viewsInterval = time.Minute
	// viewsTimeout bounds one comparison, with all changes that it makes.
	viewsTimeout = 5 * time.Minute
)

// newViewsFeature makes the feature of --sql-schema.
func newViewsFeature() server.Feature {
	var name string
	return server.Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) {
			section("store").StringVar(&name, "sql-schema", name,
				"PostgreSQL: keep a view and a function of the past for each resource in the schema of this name, such as k8s, for who owns the database. It is made if there is none. If not set, there are no such views.")
		},
		Validate: func(o *server.Options) []error {
			if err := checkViewsSchema(name, &o.Store); err != nil {
				return []error{err}
			}
			return nil
		},
		New: func(b *server.Base) (part server.Part, _ error) {
			if name != "" {
				k := &viewKeeper{store: b.Options.Store, schema: name}
				part.Work = []process.Component{{Name: "views for SQL", Run: func(ctx context.Context) error {
					return k.Run(ctx, b.Database, b.Loopback)
				}}}
			}
			return part, nil
		},
	}
}

// checkViewsSchema returns what is wrong with --sql-schema.
func checkViewsSchema(name string, store *server.StoreOptions) error {
	if name == "" {
		return nil
	}
	endpoint, err := store.DSN()
	if err != nil {
		return nil //nolint:nilerr // StoreOptions.Validate returns it
	}
	if dialect, _, _ := migrations.ParseEndpoint(endpoint); dialect != migrations.Postgres {
		return errors.New(
			"--sql-schema needs PostgreSQL: name a database with --endpoint, or print views of SQLite with \"byre sql views\"")
	}
	if err := migrations.CheckSchema(name); err != nil {
		return fmt.Errorf("--sql-schema: %w", err)
	}
	return nil
}

// viewKeeper keeps the views of --sql-schema. Of the servers of a database one does so at a time: those of two versions
// would otherwise replace each other's views again and again.
type viewKeeper struct {
	store  server.StoreOptions
	schema string
	// logged are the problems that have been logged and have not ended.
	logged []string
}

// Run keeps the views until ctx ends, while no other server does.
func (k *viewKeeper) Run(ctx context.Context, database server.Database, loopback *rest.Config) error {
	shared, ok := database.Driver.(sqlstore.Shared)
	if !ok {
		return fmt.Errorf("--sql-schema: %s is not shared", database.Kind)
	}
	for {
		_, err := shared.WithLock(ctx, "sql schema "+k.schema, func(ctx context.Context) error {
			return k.keep(ctx, loopback)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, sqlviews.ErrOwnTables):
			return fmt.Errorf("--sql-schema: %w", err)
		case err != nil:
			k.report(map[string]error{k.schema: err})
		}
		if !pause(ctx, nil, viewsElection) {
			return nil
		}
	}
}

// pause waits until an event or for a time. It returns false if ctx ends.
func pause(ctx context.Context, event <-chan struct{}, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-event:
	case <-time.After(most):
	}
	return true
}

// keep keeps the views until ctx ends.
func (k *viewKeeper) keep(ctx context.Context, loopback *rest.Config) error {
	builtin, err := builtinTables(
		compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent))
	if err != nil {
		return err
	}
	client, err := clientset.NewForConfig(loopback)
	if err != nil {
		return err
	}
	factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTransform(describe))
	informer, changed := factory.Apiextensions().V1().CustomResourceDefinitions().Informer(), make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
		return nil
	}
	for {
		select { // the definitions are read after this
		case <-changed:
		default:
		}
		wait, err := k.update(ctx, builtin, informer.GetStore().List())
		if err != nil || !pause(ctx, changed, wait) || !pause(ctx, nil, viewsGather) {
			return err
		}
	}
}

// described is a definition of which only the table is kept in memory.
type described struct {
	metav1.ObjectMeta
	// table is nil if the definition has none.
	table *query.Table
}

// describe is the transform of an informer of definitions.
func describe(object any) (any, error) {
	of, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return object, nil
	}
	table, err := crd.Describe(of)
	if err != nil {
		klog.V(1).InfoS("A definition has no view", "definition", of.Name, "err", err)
	}
	return &described{metav1.ObjectMeta{Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion}, table}, nil
}

// update makes the schema have the views of the tables, and returns when to look again. It fails only if it can never
// succeed.
func (k *viewKeeper) update(ctx context.Context, builtin []sqlviews.Table, definitions []any) (time.Duration, error) {
	tables := slices.Clip(builtin)
	for _, object := range definitions {
		if d, ok := object.(*described); ok && d.table != nil {
			tables = append(tables, sqlviews.Table{Table: d.table, IsCustom: true})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, viewsTimeout)
	defer cancel()
	left, err := k.updateSchema(ctx, tables)
	switch {
	case errors.Is(err, sqlviews.ErrOwnTables):
		return 0, err
	case ctx.Err() != nil:
		return viewsRetry, nil
	case err != nil:
		left = map[string]error{k.schema: err}
	}
	wait := viewsInterval
	for name, err := range left {
		if errors.Is(err, sqlviews.ErrLocked) {
			wait = viewsRetry
			delete(left, name)
		}
	}
	k.report(left)
	return wait, nil
}

func (k *viewKeeper) updateSchema(ctx context.Context, tables []sqlviews.Table) (left map[string]error, err error) {
	endpoint, err := k.store.DSN()
	if err != nil {
		return nil, err
	}
	schema, err := sqlviews.OpenSchema(ctx, endpoint, k.schema)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, schema.Close()) }()
	return schema.Update(ctx, tables)
}

// report logs why views are not up to date, each reason once until it has ended.
func (k *viewKeeper) report(left map[string]error) {
	names := map[string][]string{}
	for name, err := range left {
		names[err.Error()] = append(names[err.Error()], name)
	}
	logged := k.logged
	k.logged = nil
	for reason, of := range names {
		slices.Sort(of)
		const most = 5 // of one reason, such as a lost connection
		if more := len(of) - most; more > 0 {
			of = append(of[:most:most], fmt.Sprintf("%d more", more))
		}
		k.logged = append(k.logged, reason)
		if !slices.Contains(logged, reason) {
			klog.Warningf("--sql-schema %s: not up to date, and tried again every minute: %s: %s", k.schema,
				strings.Join(of, ", "), reason)
		}
	}
}
