package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"

	"byre/apiserver/server"

	"byre/cmd/byre/client"
	"byre/cmd/byre/sqlviews"
	"byre/crd"
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
