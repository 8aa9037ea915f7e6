package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"byre/apiserver/query"
)

func newSQLCommand() *cobra.Command {
	var flags clusterFlags
	var output outputFlag
	var file, at string
	var parameters []string
	cmd := &cobra.Command{
		Use:   "sql [STATEMENT]",
		Short: "Ask the cluster in SQL",
		Long: "Ask the cluster in SQL: one SELECT, in SQLite's dialect, over the objects that the user of the\n" +
			"kubeconfig may list. A table is the plural of a resource, such as pods or \"deployments.apps\".\n" +
			"Without a statement, it is read from the standard input.",
		Example: "  kubectl byre sql \"SELECT node, count(*) FROM pods GROUP BY node\"\n" +
			"  kubectl byre sql -o csv \"SELECT name, data FROM configmaps WHERE namespace = ?1\" -p shop\n" +
			"  kubectl byre sql --at -2h \"SELECT name, node FROM pods\"\n" +
			"  kubectl byre sql \"SELECT time, who, old, new FROM field_changes WHERE name = 'web' AND path = 'spec.replicas'\"\n" +
			"  kubectl byre sql \"SELECT name, type FROM byre_columns WHERE table_name = 'pods'\"",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			statement, err := readStatement(cmd.InOrStdin(), file, args)
			if err != nil {
				return err
			}
			config, _, err := flags.load()
			if err != nil {
				return err
			}
			client, err := newSQLClient(config)
			if err != nil {
				return err
			}
			q := newQuery(statement, parameters)
			q.Spec.At = at
			return client.print(cmd, q, &output)
		},
	}
	flags.addTo(cmd)
	output.addTo(cmd, "table", "csv", "json", "ndjson", "yaml")
	cmd.Flags().StringVarP(&file, "filename", "f", "", "File with the statement; - is the standard input.")
	cmd.Flags().StringVar(&at, "at", "", "Moment that the tables show: a time of RFC 3339, a revision, or a duration before now such as -2h.")
	cmd.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "Value of ?1, ?2, …, in this order: a number, true, false, null, or else a text. Quotes make a text of anything.")
	return cmd
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

func newQuery(statement string, parameters []string) *query.Query {
	q := &query.Query{
		TypeMeta: metav1.TypeMeta{Kind: "Query", APIVersion: query.GroupName + "/v1"},
		Spec:     query.Spec{SQL: statement},
	}
	for _, p := range parameters {
		value := json.RawMessage(p)
		var scalar any
		if err := json.Unmarshal(value, &scalar); err != nil {
			value, _ = json.Marshal(p) // a string can't fail
		}
		q.Spec.Parameters = append(q.Spec.Parameters, value)
	}
	return q
}

// sqlClient sends queries to a server.
type sqlClient struct {
	client *http.Client
	url    string
}

func newSQLClient(config *rest.Config) (*sqlClient, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &sqlClient{client, strings.TrimSuffix(server.String(), "/") + query.Path}, nil
}

// print asks a query, and prints the answer.
func (c *sqlClient) print(cmd *cobra.Command, q *query.Query, output *outputFlag) error {
	accept := runtime.ContentTypeJSON
	switch output.format {
	case "csv":
		accept = query.CSV
	case "ndjson":
		accept = query.NDJSON
	}
	response, err := c.ask(cmd, q, accept)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	warnings, _ := utilnet.ParseWarningHeaders(response.Header.Values("Warning"))
	for _, warning := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", warning.Text)
	}
	truncated := false
	if accept == runtime.ContentTypeJSON {
		if err := json.NewDecoder(response.Body).Decode(q); err != nil {
			return err
		}
		truncated = q.Status.Truncated
		err = page(cmd, func(out io.Writer) error {
			return output.print(out, q, func(out io.Writer) error { return printRows(out, &q.Status) })
		})
	} else {
		var rows int
		rows, err = copyRows(cmd.OutOrStdout(), response.Body, accept)
		truncated = strconv.Itoa(rows) == response.Header.Get(query.LimitHeader)
	}
	if truncated {
		fmt.Fprintln(cmd.ErrOrStderr(), "there may be more rows: select fewer, or up to 100000 with -o csv or -o ndjson")
	}
	return err
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

// ask sends a query. The caller closes the body of the answer.
func (c *sqlClient) ask(cmd *cobra.Command, q *query.Query, accept string) (*http.Response, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", runtime.ContentTypeJSON)
	request.Header.Set("Accept", accept)
	response, err := c.client.Do(request)
	if err != nil || response.StatusCode < http.StatusBadRequest {
		return response, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var status metav1.Status
	if err := json.Unmarshal(text, &status); err != nil || status.Message == "" {
		return nil, fmt.Errorf("the server answered %s: %.200s", response.Status, text)
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, errors.New("the server has no resource queries of " + query.GroupName + ": is it byre, with --enable-sql?")
	}
	return nil, errors.New(status.Message)
}

// printRows prints a result as kubectl prints tables.
func printRows(out io.Writer, result *query.Status) error {
	rows, cells := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0), make([]any, len(result.Columns))
	for i, column := range result.Columns {
		cells[i] = strings.ToUpper(column.Name)
	}
	printRow(rows, cells)
	for _, row := range result.Rows {
		for i, value := range row {
			cells[i] = cell(value)
		}
		printRow(rows, cells)
	}
	return rows.Flush()
}

// cell is a value in a table: a text without its quotes.
func cell(value json.RawMessage) string {
	var text string
	switch {
	case string(value) == "null":
		return "<none>"
	case json.Unmarshal(value, &text) != nil:
		return string(value)
	}
	return text
}
