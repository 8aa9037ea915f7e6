package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"

	"byre/apiserver/query"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
	"byre/cmd/byre/sqlviews"
	"byre/crd"
	"byre/sqlstore"
)

func newSQLViewsCommand() *cobra.Command {
	store := server.NewStoreOptions()
	var schema string
	cmd := &cobra.Command{
		Use:   "views",
		Short: "Print views of the database that have the tables of SQL",
		Long: "Print CREATE TEMP VIEW statements for the sqlite3 shell, or for psql, which make a view for each\n" +
			"table that \"byre sql\" asks, with its columns. They are for who owns the database: they follow no\n" +
			"access rights, and what is encrypted has only its key. The database is only read, also while byre\n" +
			"runs. On PostgreSQL --schema prints views that stay, in a schema of that name.",
		Example: "  byre sql views --data-dir /var/lib/byre > views.sql\n" +
			"  sqlite3 -readonly -init views.sql /var/lib/byre/byre.db \"SELECT node, count(*) FROM pods GROUP BY node\"\n" +
			"  byre sql views --endpoint postgres://byre@host/byre --schema k8s | psql postgres://byre@host/byre",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withTables(cmd, store, func(d *sqlviews.Database, tables []sqlviews.Table) error {
				if d.Store() == "" {
					if schema != "" {
						return errors.New("--schema is for PostgreSQL: views of a SQLite file are temporary")
					}
					_, err := io.WriteString(cmd.OutOrStdout(), sqlviews.SQLiteStatements(tables))
					return err
				}
				views, err := d.Views(cmd.Context(), schema)
				if err == nil {
					_, err = io.WriteString(cmd.OutOrStdout(), views.Statements(tables))
				}
				return err
			})
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&schema, "schema", "", "PostgreSQL: the schema of the views. If not set, they are temporary.")
	return cmd
}

// withTables opens the database for its owner, and calls do with all tables of SQL. It warns of definitions of which there
// is none.
func withTables(cmd *cobra.Command, store server.StoreOptions, do func(*sqlviews.Database, []sqlviews.Table) error) error {
	return withOwner(cmd.Context(), store, func(d *sqlviews.Database) error {
		tables, err := builtinTables(compatibility.DefaultBuildEffectiveVersion())
		if err != nil {
			return err
		}
		definitions, err := d.Definitions(cmd.Context())
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
		return do(d, tables)
	})
}

func builtinTables(of basecompatibility.EffectiveVersion) (tables []sqlviews.Table, err error) {
	described, err := server.Tables(of)
	for _, t := range described {
		tables = append(tables, sqlviews.Table{Table: t})
	}
	return tables, err
}

// withOwner opens the database for its owner, and calls do with it.
func withOwner(ctx context.Context, store server.StoreOptions, do func(*sqlviews.Database) error) (err error) {
	endpoint, err := usedEndpoint(store)
	if err != nil {
		return err
	}
	if err := checkSource(endpoint); err != nil {
		return err
	}
	d, err := sqlviews.Open(ctx, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return do(d)
}

func newSQLIndexCommand() *cobra.Command {
	store := server.NewStoreOptions()
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Make, list and drop indexes that views and their queries use",
		Long: "Make, list and drop indexes on columns of the views that \"byre sql views\" prints. They are expression\n" +
			"indexes in the database, which every write keeps up to date. byre must not be running on a SQLite\n" +
			"file; on PostgreSQL the index is made without stopping writes, and views that were printed before do\n" +
			"not use it. Queries through the API server use none of them.",
		Example: "  byre sql index create pods_by_node pods node --data-dir /var/lib/byre",
		Args:    client.SubcommandOnly,
		RunE:    client.Help,
	}
	store.AddDatabaseFlags(cmd.PersistentFlags())
	var output client.Output
	list := &cobra.Command{
		Use: "list", Short: "List the indexes that were made", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listIndexes(cmd, store, &output) },
	}
	output.AddTo(list, "table", "json", "yaml")
	cmd.AddCommand(list, &cobra.Command{
		Use: "create NAME TABLE COLUMN", Short: "Make an index on a column", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			return explainInUse(withTables(cmd, store, func(d *sqlviews.Database, tables []sqlviews.Table) error {
				return d.CreateIndex(cmd.Context(), args[0], tables, args[1], args[2])
			}), "stop it first")
		},
	}, &cobra.Command{
		Use: "drop NAME", Short: "Drop an index", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withOwner(cmd.Context(), store, func(d *sqlviews.Database) error {
				return explainInUse(d.DropIndex(cmd.Context(), args[0]), "stop it first")
			})
		},
	})
	return cmd
}

func listIndexes(cmd *cobra.Command, store server.StoreOptions, output *client.Output) error {
	var indexes []sqlviews.Index
	err := withOwner(cmd.Context(), store, func(d *sqlviews.Database) (err error) {
		indexes, err = d.Indexes(cmd.Context())
		return err
	})
	if err != nil {
		return err
	}
	return output.Print(cmd.OutOrStdout(), indexes, func(out io.Writer) error {
		rows := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		client.PrintRow(rows, []any{"NAME", "TABLE", "COLUMN"})
		for _, index := range indexes {
			client.PrintRow(rows, []any{index.Name, index.Table, index.Column})
		}
		return rows.Flush()
	})
}

func newSQLGrantCommand() *cobra.Command {
	store := server.NewStoreOptions()
	grant := sqlviews.Grant{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "grant ROLE --namespaces a,b",
		Short: "Print the SQL of a PostgreSQL role that reads the objects of some namespaces",
		Long: "Print the SQL of a PostgreSQL role that reads the objects of some namespaces, and nothing else: through\n" +
			"views with security_barrier, in a schema of the role's name. This is static: it does not follow RBAC,\n" +
			"and definitions that are installed later have no view. Secrets are left out without --secrets.",
		Example: "  byre sql grant reporting --namespaces shop,bank --endpoint postgres://byre@host/byre | psql postgres://byre@host/byre",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(grant.Namespaces) == 0 || slices.Contains(grant.Namespaces, "") { // "" is that of cluster-scoped objects
				return errors.New("--namespaces must name namespaces")
			}
			return withTables(cmd, store, func(d *sqlviews.Database, tables []sqlviews.Table) error {
				if d.Store() == "" {
					return errors.New("SQLite has no roles: who reads the file reads all of it")
				}
				grant.Role, grant.Store = args[0], d.Store()
				if yes {
					return d.Execute(cmd.Context(), grant.Statements(tables))
				}
				_, err := io.WriteString(cmd.OutOrStdout(), grant.Statements(tables))
				return err
			})
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&grant.Namespaces, "namespaces", nil, "The namespaces whose objects the role reads.")
	cmd.Flags().BoolVar(&grant.Secrets, "secrets", false, "The role reads Secrets too.")
	cmd.Flags().BoolVar(&yes, "yes", false, "Execute the SQL instead of printing it.")
	_ = cmd.MarkFlagRequired("namespaces") // the flag is there
	return cmd
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

// viewKeeper keeps the views of --sql-schema. Of the servers of a database one does so at a time: those of two versions
// would otherwise replace each other's views again and again.
type viewKeeper struct {
	store  server.StoreOptions
	schema string
	// logged are the problems that have been logged and have not ended.
	logged []string
}

// errOwnSchema ends the server.
var errOwnSchema = errors.New("--sql-schema")

// Run keeps the views until ctx ends, while no other server does.
func (k *viewKeeper) Run(ctx context.Context, database server.Database, loopback *rest.Config) error {
	shared, ok := database.Driver.(sqlstore.Shared)
	if !ok {
		return fmt.Errorf("--sql-schema: %s is not shared", database.Kind)
	}
	for {
		_, err := shared.WithLock(ctx, "sql schema "+k.schema, func(ctx context.Context) error { return k.keep(ctx, loopback) })
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errOwnSchema):
			return err
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
	builtin, err := builtinTables(compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent))
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
	case errors.Is(err, errOwnSchema):
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
	d, err := sqlviews.Open(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	schema, err := d.Schema(k.schema)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errOwnSchema, err)
	}
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
			klog.Warningf("--sql-schema %s: not up to date, and tried again every minute: %s: %s", k.schema, strings.Join(of, ", "), reason)
		}
	}
}
