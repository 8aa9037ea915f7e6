package client

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"byre/apiserver/query"
)

// The statements that list the tables and the columns. Of a description they have the first sentence.
const (
	selectTables = `SELECT table_name, "group", version, substr(description, 1, instr(description || '. ', '. ')) AS description FROM byre_tables`

	selectColumns = `SELECT name, type, path, substr(description, 1, instr(description || '. ', '. ')) AS description FROM byre_columns WHERE table_name = ?1`
)

func newSQLTablesCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	cmd := &cobra.Command{
		Use:   "tables",
		Short: "List the tables that SQL can ask",
		Long:  "List the tables that SQL can ask, the rows of byre_tables.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printDescription(cmd, &flags, &output, selectTables)
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, sqlFormats()...)
	return cmd
}

func newSQLColumnsCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	cmd := &cobra.Command{
		Use:     "columns TABLE",
		Short:   "List the columns of a table that SQL can ask",
		Long:    "List the columns of a table that SQL can ask, its rows of byre_columns.",
		Example: "  kubectl byre sql columns deployments.apps",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printDescription(cmd, &flags, &output, selectColumns, args[0])
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			client, err := flags.connectSQL()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return withPrefix(client.texts(cmd.Context(), `SELECT table_name FROM byre_tables`), word), cobra.ShellCompDirectiveNoFileComp
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, sqlFormats()...)
	return cmd
}

func printDescription(cmd *cobra.Command, flags *ClusterFlags, output *Output, statement string, parameters ...string) error {
	client, err := flags.connectSQL()
	if err != nil {
		return err
	}
	return client.describe(cmd.Context(), cmd, output, statement, parameters...)
}

// describe prints the rows of selectTables, or of selectColumns for a table.
func (c *sqlClient) describe(ctx context.Context, cmd *cobra.Command, output *Output, statement string, parameters ...string) error {
	rows, err := c.print(ctx, cmd, query.NewQuery(statement, query.Texts(parameters...)...), output)
	if err == nil && rows == 0 && len(parameters) > 0 {
		err = fmt.Errorf("there is no table %q: \"byre sql tables\" lists them", parameters[0])
	}
	return err
}

// texts returns the first column of an answer, for completion: nil if there is no answer.
func (c *sqlClient) texts(ctx context.Context, statement string, parameters ...string) (texts []string) {
	q := query.NewQuery(statement, query.Texts(parameters...)...)
	if _, err := c.answer(ctx, q); err != nil {
		return nil
	}
	for _, row := range q.Status.Rows {
		texts = append(texts, cell(row[0]))
	}
	return texts
}
