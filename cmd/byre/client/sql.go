package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"byre/apiserver/query"
)

func newSQLCommand(owners ...*cobra.Command) *cobra.Command {
	var flags ClusterFlags
	var output Output
	var file string
	var at MomentFlag
	var parameters []string
	cmd := &cobra.Command{
		Use:   "sql [STATEMENT]",
		Short: "Ask the cluster in SQL",
		Long: "Ask the cluster in SQL: one SELECT, in SQLite's dialect, over the objects that the user of the\n" +
			"kubeconfig may list. A table is the plural of a resource, such as pods or \"deployments.apps\".\n" +
			"Without a statement, it is read from the standard input; on a terminal, a shell begins.",
		Example: "  kubectl byre sql \"SELECT node, count(*) FROM pods GROUP BY node\"\n" +
			"  kubectl byre sql -o csv \"SELECT name, data FROM configmaps WHERE namespace = ?1\" -p shop\n" +
			"  kubectl byre sql --at -2h \"SELECT name, node FROM pods\"\n" +
			"  kubectl byre sql \"SELECT time, who, old, new FROM field_changes WHERE name = 'web' AND path = 'spec.replicas'\"\n" +
			"  kubectl byre sql columns pods",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.connect()
			if err != nil {
				return err
			}
			then, err := at.Parse(cmd)
			if err != nil {
				return err
			}
			newQuery := func(statement string) *query.Query {
				q := query.NewQuery(statement, parseParameters(parameters)...)
				if !then.IsZero() {
					q.Spec.At = then.Selector()
				}
				return q
			}
			if len(args) == 0 && file == "" && cmd.InOrStdin() == os.Stdin && isTerminal(os.Stdin) &&
				isTerminal(cmd.OutOrStdout()) {
				return runSQLShell(cmd, client, &output, newQuery)
			}
			statement, err := readStatement(cmd.InOrStdin(), file, args)
			if err != nil {
				return err
			}
			_, err = client.print(cmd.Context(), cmd, newQuery(statement), &output)
			return err
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, sqlFormats()...)
	cmd.AddCommand(newSQLTablesCommand(), newSQLColumnsCommand())
	cmd.AddCommand(owners...)
	cmd.Flags().StringVarP(&file, "filename", "f", "", "File with the statement; - is the standard input.")
	at.AddTo(cmd, "at", "The moment that the tables show; if not set, now")
	cmd.Flags().StringArrayVarP(&parameters, "parameter", "p", nil,
		"Value of ?1, ?2, …, in this order: a number, true, false, null, or else a text. Quotes make a text of anything.")
	return cmd
}

// sqlFormats are the formats of answers, of which the first is the default.
func sqlFormats() []string { return []string{"table", "csv", "json", "ndjson", "yaml"} }

// ProtectStatement returns the arguments of a command line, in which a statement of "sql" that begins with a comment,
// two dashes and a blank, has a blank before it. No flag begins so, and the parser of flags would refuse it.
func ProtectStatement(args []string) []string {
	sql := slices.Index(args, "sql")
	args = slices.Clone(args)
	for i := sql + 1; sql >= 0 && i < len(args); i++ {
		if strings.HasPrefix(args[i], "-- ") {
			args[i] = " " + args[i]
		}
	}
	return args
}

// readStatement returns the statement of the arguments, of a file, or of the standard input.
func readStatement(in io.Reader, file string, args []string) (string, error) {
	switch {
	case len(args) > 0 && file != "":
		return "", errors.New("name a statement or --filename, not both")
	case len(args) > 0:
		return args[0], nil
	case file == "" && in == os.Stdin && isTerminal(os.Stdin):
		return "", errors.New("no statement: give one, such as \"SELECT name FROM nodes\", or a file with -f")
	case file == "" || file == "-":
		text, err := io.ReadAll(in)
		return string(text), err
	}
	text, err := os.ReadFile(file)
	return string(text), err
}

// parseParameters returns the values of parameters as JSON: what is none is a text.
func parseParameters(parameters []string) (values []json.RawMessage) {
	for _, p := range parameters {
		value := json.RawMessage(p)
		var scalar any
		if err := json.Unmarshal(value, &scalar); err != nil {
			value, _ = json.Marshal(p) // a string can't fail
		}
		values = append(values, value)
	}
	return values
}

// print asks a query until ctx ends, prints the answer, and returns how many rows it has.
func (c *Client) print(
	ctx context.Context, cmd *cobra.Command, q *query.Query, output *Output,
) (rows int, err error) {
	accept := runtime.ContentTypeJSON
	switch output.Format {
	case "csv":
		accept = query.CSV
	case "ndjson":
		accept = query.NDJSON
	}
	response, warnings, err := c.ask(ctx, q, accept)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for _, warning := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", warning)
	}
	truncated := false
	if accept == runtime.ContentTypeJSON {
		if err := decodeAnswer(response.Body, q); err != nil {
			return 0, err
		}
		rows, truncated = len(q.Status.Rows), q.Status.Truncated
		err = page(cmd, func(out io.Writer) error {
			return output.Print(out, q, func(out io.Writer) error { return printRows(out, &q.Status) })
		})
	} else {
		rows, err = copyRows(cmd.OutOrStdout(), response.Body, accept)
		truncated = strconv.Itoa(rows) == response.Header.Get(query.LimitHeader)
	}
	if truncated {
		fmt.Fprintln(cmd.ErrOrStderr(), "there may be more rows: select fewer, or up to 100000 with -o csv or -o ndjson")
	}
	return rows, err
}

// copyRows copies a stream, and returns how many rows it has.
func copyRows(out io.Writer, stream io.Reader, media string) (rows int, err error) {
	stream = io.TeeReader(stream, out)
	if media == query.CSV {
		reader := csv.NewReader(stream)
		reader.ReuseRecord = true
		for rows = -1; err == nil; rows++ { // the first record has the names
			_, err = reader.Read()
		}
		rows--
	} else {
		reader := bufio.NewReader(stream)
		for ; err == nil; rows++ {
			_, err = reader.ReadBytes('\n')
		}
		rows--
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return rows, err
}

// answer asks a query, and fills in its status. It returns the server's warnings.
func (c *Client) answer(ctx context.Context, q *query.Query) (warnings []string, err error) {
	response, warnings, err := c.ask(ctx, q, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return warnings, decodeAnswer(response.Body, q)
}

// decodeAnswer fills in the status of a query. It reads the body to its end: the server takes one that is closed
// before for a client that has gone away.
func decodeAnswer(body io.Reader, q *query.Query) error {
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, q)
}

// ask sends a query, and returns the answer with the server's warnings. The caller closes the body.
func (c *Client) ask(
	ctx context.Context, q *query.Query, accept string,
) (response *http.Response, warnings []string, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.server+query.Path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", runtime.ContentTypeJSON)
	request.Header.Set("Accept", accept)
	if response, err = c.http.Do(request); err != nil {
		return nil, nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		defer response.Body.Close()
		return nil, nil, readError(response)
	}
	headers, _ := utilnet.ParseWarningHeaders(response.Header.Values("Warning"))
	for _, header := range headers {
		warnings = append(warnings, header.Text)
	}
	return response, warnings, nil
}

// readError returns the error that the server has answered with.
func readError(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	var status metav1.Status
	if err := json.Unmarshal(text, &status); err != nil || status.Message == "" {
		return fmt.Errorf("the server answered %s: %.200s", response.Status, text)
	}
	if response.StatusCode == http.StatusNotFound {
		return errors.New("the server has no resource queries of " + query.GroupName + ": is it byre, with --enable-sql?")
	}
	return errors.New(status.Message)
}

// printRows prints a result as kubectl prints tables.
func printRows(out io.Writer, result *query.Status) error {
	rows, cells := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0), make([]any, len(result.Columns))
	for i, column := range result.Columns {
		cells[i] = strings.ToUpper(column.Name)
	}
	PrintRow(rows, cells)
	for _, row := range result.Rows {
		for i, value := range row {
			cells[i] = cell(value)
		}
		PrintRow(rows, cells)
	}
	return rows.Flush()
}

// cell is a value in a table: a text without its quotes.
func cell(value json.RawMessage) string {
	if string(value) == "null" {
		return "<none>"
	}
	return query.CellText(value)
}

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
			client, err := flags.connect()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return withPrefix(client.texts(cmd.Context(), `SELECT table_name FROM byre_tables`), word),
				cobra.ShellCompDirectiveNoFileComp
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, sqlFormats()...)
	return cmd
}

func printDescription(
	cmd *cobra.Command, flags *ClusterFlags, output *Output, statement string, parameters ...string,
) error {
	client, err := flags.connect()
	if err != nil {
		return err
	}
	return client.describe(cmd.Context(), cmd, output, statement, parameters...)
}

// describe prints the rows of selectTables, or of selectColumns for a table.
func (c *Client) describe(
	ctx context.Context, cmd *cobra.Command, output *Output, statement string, parameters ...string,
) error {
	rows, err := c.print(ctx, cmd, query.NewQuery(statement, query.Texts(parameters...)...), output)
	if err == nil && rows == 0 && len(parameters) > 0 {
		err = fmt.Errorf("there is no table %q: \"byre sql tables\" lists them", parameters[0])
	}
	return err
}

// texts returns the first column of an answer, for completion: nil if there is no answer.
func (c *Client) texts(ctx context.Context, statement string, parameters ...string) (texts []string) {
	q := query.NewQuery(statement, query.Texts(parameters...)...)
	if _, err := c.answer(ctx, q); err != nil {
		return nil
	}
	for _, row := range q.Status.Rows {
		texts = append(texts, cell(row[0]))
	}
	return texts
}
