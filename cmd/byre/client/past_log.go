package client

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
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"byre/apiserver/history"
	"byre/apiserver/server"
)

func newLogCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var since, who string
	var everywhere, withStatus, follow bool
	var secrets secretsFlag
	cmd := &cobra.Command{
		Use:   "log [TYPE/NAME]",
		Short: "List the changes of an object, or of a namespace",
		Long: "List the changes of an object, or of a namespace, the oldest first: what the user of the\n" +
			"kubeconfig may list, in the resource changes and in that of each object. As JSON and YAML it is a\n" +
			"list of them; with --follow each is a document.",
		Example: "  kubectl byre log deployment/web\n" +
			"  kubectl byre log -n shop --since 2h --who alice\n" +
			"  kubectl byre log -n shop --follow",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.connect()
			if err != nil {
				return err
			}
			query := Query{Namespace: client.Namespace(), Fields: fields.Set{}, WithStatus: withStatus}
			if everywhere {
				query.Namespace = ""
			}
			if len(args) > 0 {
				o, err := client.Find(args)
				if err != nil {
					return err
				}
				query = o.Query(withStatus)
			}
			if who != "" {
				query.Fields["who"] = who
			}
			after := time.Time{}
			if since != "" {
				if after, err = parseSince(since); err != nil {
					return err
				}
				query.Fields["since"] = after.UTC().Format(time.RFC3339)
			}
			query.WithItems = output.IsData() || secrets.show
			write := func(out io.Writer) error {
				p := logPrinter{
					out: out, output: &output, after: after, follow: follow, showSecrets: secrets.show,
					rows: tabwriter.NewWriter(out, 0, 0, 3, ' ', 0), items: []history.Change{},
				}
				return p.printLog(cmd, client, query)
			}
			if follow {
				return write(cmd.OutOrStdout())
			}
			return page(cmd, write)
		},
	}
	flags.AddTo(cmd)
	secrets.addTo(cmd)
	output.AddTo(cmd, "table", "wide", "json", "yaml", "name")
	cmd.ValidArgsFunction = completeObject(&flags, false)
	cmd.Flags().StringVar(&since, "since", "", "Only changes of this time, such as 2h or 3d.")
	cmd.Flags().StringVar(&who, "who", "", "Only changes of this user.")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "The changes of all namespaces.")
	cmd.Flags().BoolVar(&withStatus, "status", false, "The changes of the status too.")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Print further changes as they are made.")
	return cmd
}

// parseSince returns the time that is so long ago.
func parseSince(since string) (time.Time, error) {
	age, err := server.ParseDuration(since)
	if err != nil || age <= 0 {
		return time.Time{}, fmt.Errorf("--since: %q is not a time such as 2d, 12h or 5m", since)
	}
	return time.Now().Add(-age), nil
}

// logPrinter prints changes after a time, from the server's tables.
type logPrinter struct {
	out    io.Writer
	output *Output
	after  time.Time
	follow bool
	// showSecrets has the values of Secrets read, change by change. The query is WithItems then.
	showSecrets bool
	// columns are nil before the first table.
	columns []metav1.TableColumnDefinition
	// rows aligns the rows that are printed at once, and widths are those of the cells of all rows
	// until now, in characters, so that what follow adds is aligned with what is there.
	rows   *tabwriter.Writer
	widths [16]int
	// items are what printItems prints as JSON or YAML.
	items []history.Change
}

// printLog prints the changes, and with follow those to come, until the command's context ends. Of a
// history that does not reach back to the time it prints what there is, and says so.
func (p *logPrinter) printLog(cmd *cobra.Command, client *Client, query Query) error {
	ctx := cmd.Context()
	printTable := func(table *metav1.Table) error { return p.print(ctx, client, table) }
	revision, err := client.Tables(ctx, query, printTable)
	if query.Fields.Has("since") && p.columns == nil && apierrors.IsResourceExpired(err) {
		fmt.Fprintln(cmd.ErrOrStderr(), "not all changes are there any more:", err)
		delete(query.Fields, "since")
		revision, err = client.Tables(ctx, query, printTable)
	}
	if err = errors.Join(err, p.rows.Flush()); err != nil {
		return err
	}
	if err := p.printItems(revision); err != nil || !p.follow {
		return err
	}
	return client.Follow(ctx, query, revision, func(table *metav1.Table) error {
		return errors.Join(printTable(table), p.rows.Flush(), p.printItems(""))
	})
}

// print prints the rows of a table, or keeps their items.
func (p *logPrinter) print(ctx context.Context, client *Client, table *metav1.Table) error {
	if p.columns == nil && len(table.ColumnDefinitions) > 0 {
		p.columns = table.ColumnDefinitions
		var names []any
		for _, column := range p.columns {
			names = append(names, strings.ToUpper(column.Name))
		}
		if p.output.Format == "table" || p.output.Format == "wide" {
			p.printRow(names)
		}
	}
	for _, row := range table.Rows {
		var item history.Change // its metadata alone, unless the query is WithItems
		if err := json.Unmarshal(row.Object.Raw, &item); err != nil {
			return err
		}
		if p.showSecrets {
			if err := client.ShowSecrets(ctx, &item); err != nil {
				return err
			}
			if i := slices.IndexFunc(p.columns, func(c metav1.TableColumnDefinition) bool { return c.Name == history.ChangedColumn }); i >= 0 && item.IsOfSecret() {
				row.Cells[i] = item.Summary()
			}
		}
		switch {
		case item.CreationTimestamp.Time.Before(p.after):
		case p.output.IsData():
			p.items = append(p.items, item)
		case p.output.Format == "name":
			fmt.Fprintf(p.out, "change.%s/%s\n", history.GroupName, item.Name)
		default:
			p.printRow(row.Cells)
		}
	}
	return nil
}

// printRow prints the cells of a row that the format shows.
func (p *logPrinter) printRow(all []any) {
	var cells []any
	for i, cell := range all {
		if i >= len(p.columns) || p.columns[i].Priority == 0 || p.output.Format == "wide" {
			cells = append(cells, Visible(fmt.Sprint(cell)))
		}
	}
	for i := range min(len(cells)-1, len(p.widths)) {
		p.widths[i] = max(p.widths[i], utf8.RuneCountInString(cells[i].(string)))
		cells[i] = fmt.Sprintf("%-*s", p.widths[i], cells[i])
	}
	PrintRow(p.rows, cells)
}

// printItems prints the items as JSON or YAML: a list at this revision, or with follow a document each.
func (p *logPrinter) printItems(revision string) error {
	if !p.output.IsData() {
		return nil
	}
	if !p.follow {
		return p.output.Print(p.out, &history.ChangeList{
			TypeMeta: metav1.TypeMeta{APIVersion: history.GroupName + "/v1", Kind: "ChangeList"},
			ListMeta: metav1.ListMeta{ResourceVersion: revision}, Items: p.items,
		}, nil)
	}
	for i := range p.items {
		if p.output.Format == "yaml" {
			fmt.Fprintln(p.out, "---")
		}
		if err := p.output.Print(p.out, &p.items[i], nil); err != nil {
			return err
		}
	}
	p.items = nil
	return nil
}
