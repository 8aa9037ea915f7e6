package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/moment"
)

// NewCommands returns the commands that show what is and what happened, and reverse it, through the API server.
// owners are further commands of "sql", which open the database.
func NewCommands(owners ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{newLogCommand(), newShowCommand(), newDiffCommand(), newBlameCommand(),
		newTimelineCommand(), newUndoCommand(), newUndeleteCommand(), newRollbackCommand(), newSQLCommand(owners...),
		newMCPCommand(), newConsoleCommand()}
}

// NewPluginCommand returns the root command of the program as a plugin of kubectl, whose file is called
// kubectl-byre.
func NewPluginCommand(version func() string) *cobra.Command {
	root := &cobra.Command{
		Use: "kubectl-byre", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl byre"},
		Short:        "Show and reverse what happened in a cluster, and ask it in SQL",
		SilenceUsage: true, SilenceErrors: true,
		Args: SubcommandOnly, RunE: Help,
	}
	AddVersion(root.PersistentFlags(), "", version)
	root.AddCommand(NewCommands()...)
	AcceptDays(root)
	return root
}

// ClusterFlags are kubectl's flags for a cluster and a user.
type ClusterFlags struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// AddTo adds the flags to a command.
func (f *ClusterFlags) AddTo(cmd *cobra.Command) {
	f.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	cmd.Flags().StringVar(&f.rules.ExplicitPath, "kubeconfig", "",
		"Path of the kubeconfig. If not set, that of $KUBECONFIG, or ~/.kube/config.")
	clientcmd.BindOverrideFlags(&f.overrides, cmd.Flags(), clientcmd.RecommendedConfigOverrideFlags(""))
}

// Load returns what the flags and the kubeconfig say of the server and the namespace.
func (f *ClusterFlags) Load() (config *rest.Config, namespace string, err error) {
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.rules, &f.overrides)
	if config, err = loaded.ClientConfig(); err != nil {
		return nil, "", err
	}
	namespace, _, err = loaded.Namespace()
	return config, namespace, err
}

// connect returns a client in the namespace of the flags or the kubeconfig.
func (f *ClusterFlags) connect() (*Client, error) {
	config, namespace, err := f.Load()
	if err != nil {
		return nil, err
	}
	return NewClient(config, namespace)
}

// find connects, and finds the object that the arguments name.
func (f *ClusterFlags) find(args []string) (*Client, Object, error) {
	client, err := f.connect()
	if err != nil {
		return nil, Object{}, err
	}
	o, err := client.Find(args)
	return client, o, err
}

func newShowCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var at MomentFlag
	cmd := &cobra.Command{
		Use:     "show TYPE/NAME --at T",
		Short:   "Print an object as it was",
		Long:    "Print an object as it was at a moment. T is " + moment.Help + ".",
		Example: "  kubectl byre show configmap/settings --at -2h",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			then, err := at.Parse(cmd)
			if err != nil {
				return err
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			v, err := client.At(cmd.Context(), o, then)
			if err != nil {
				return err
			}
			if v.Content == nil {
				return fmt.Errorf("%s did not exist at %s", o, then)
			}
			return page(cmd, func(out io.Writer) error { return output.Print(out, v.Content, nil) })
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, "yaml", "json")
	cmd.ValidArgsFunction = completeObject(&flags, false)
	at.AddTo(cmd, "at", "The moment")
	_ = cmd.MarkFlagRequired("at") // the flag is there
	return cmd
}

func newDiffCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var color colorFlag
	var secrets secretsFlag
	var at, to MomentFlag
	cmd := &cobra.Command{
		Use:   "diff TYPE/NAME [--at T] [--to T]",
		Short: "Compare an object with itself at another moment",
		Long: "Compare an object as it was at one moment with what it was at another. T is " + moment.Help + ".\n" +
			"Without --at, the last change is shown, and without --to the object is compared as it is now.\n" +
			"As JSON and YAML it is a list of the changed fields, as the resource changes has them.",
		Example: "  kubectl byre diff deployment/web --at -1d",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			colored, err := color.use(cmd.OutOrStdout())
			if err != nil {
				return err
			}
			from, fromErr := at.Parse(cmd)
			until, untilErr := to.Parse(cmd)
			if err := errors.Join(fromErr, untilErr); err != nil {
				return err
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			older, newer, err := compareMoments(cmd.Context(), client, o, from, until)
			if err != nil {
				return err
			}
			older.Content, newer.Content = secrets.mask(o, older.Content, newer.Content)
			text, err := diff(o, older, newer)
			if err != nil {
				return err
			}
			if colored {
				text = colorDiff(text)
			}
			var fields []history.FieldChange
			if output.IsData() {
				if fields, err = client.compare(older.Content, newer.Content); err != nil {
					return err
				}
			}
			return page(cmd, func(out io.Writer) error {
				return output.Print(out, fields, func(out io.Writer) error {
					_, err := io.WriteString(out, text)
					return err
				})
			})
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, "diff", "json", "yaml")
	color.addTo(cmd)
	secrets.addTo(cmd)
	cmd.ValidArgsFunction = completeObject(&flags, false)
	at.AddTo(cmd, "at", "The first moment; if not set, before the last change")
	to.AddTo(cmd, "to", "The second moment; if not set, now")
	return cmd
}

// secretsFlag is the flag --show-secrets of a command.
type secretsFlag struct{ show bool }

func (f *secretsFlag) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.show, "show-secrets", false, "Show the values of Secrets, which are masked otherwise.")
}

// mask masks two versions of an object, if it is a Secret and the flag does not say otherwise.
func (f *secretsFlag) mask(o Object, before, after map[string]any) (maskedBefore, maskedAfter map[string]any) {
	if f.show || !o.IsSecret() {
		return before, after
	}
	return changes.MaskSecret(before, after)
}

// compareMoments returns an object at two moments. Without the second one, it is as it is now; without the
// first one, as it was before its last change until the second one.
func compareMoments(
	ctx context.Context, client *Client, o Object, from, until moment.Moment,
) (older, newer Version, err error) {
	if until.IsZero() {
		until = latest()
	}
	if newer, err = client.At(ctx, o, until); err != nil {
		return older, newer, err
	}
	switch {
	case !from.IsZero():
	case newer.Revision <= 1: // no change is left, or none was before
		from = until
	default:
		from = moment.Moment{Revision: newer.Revision - 1}
	}
	older, err = client.At(ctx, o, from)
	return older, newer, err
}

// latest is a moment after the last change, whatever clocks say.
func latest() moment.Moment { return moment.Moment{Revision: math.MaxInt64} }

// diff returns the unified diff of two versions of an object.
func diff(o Object, older, newer Version) (string, error) {
	return history.Diff(older.Content, newer.Content, o.String()+title(older), o.String()+title(newer))
}

func title(v Version) string {
	switch {
	case v.Content == nil:
		return ", which did not exist"
	case v.Revision == 0:
		return ", older than the history"
	}
	return fmt.Sprintf(" at revision %d", v.Revision)
}

func newBlameCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var secrets secretsFlag
	cmd := &cobra.Command{
		Use:   "blame TYPE/NAME",
		Short: "Show who gave each field of an object its value, and when",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			leaves, err := client.Blame(cmd.Context(), o, secrets.show)
			if err != nil {
				return err
			}
			return page(cmd, func(out io.Writer) error {
				return output.Print(out, leaves, func(out io.Writer) error { return printBlame(out, leaves) })
			})
		},
	}
	flags.AddTo(cmd)
	cmd.ValidArgsFunction = completeObject(&flags, false)
	output.AddTo(cmd, "table", "json", "yaml")
	secrets.addTo(cmd)
	return cmd
}

func printBlame(out io.Writer, leaves []Leaf) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "REVISION\tTIME\tWHO\tMANAGER\tFIELD\tVALUE")
	for _, leaf := range leaves {
		value, err := json.Marshal(leaf.Value)
		if err != nil {
			return err
		}
		if leaf.Change == nil {
			PrintRow(w, []any{fmt.Sprintf("≤ %d", leaf.Since), "", "", "", leaf.Path, string(value)})
			continue
		}
		c := leaf.Change
		PrintRow(w, []any{c.Revision, c.Time.UTC().Format(time.RFC3339), c.Who, c.Manager, leaf.Path, string(value)})
	}
	return w.Flush()
}

func newLogCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var since, until MomentFlag
	var who string
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
			"  kubectl byre log -n shop --since \"yesterday 14:00\" --until \"yesterday 15:00\"\n" +
			"  kubectl byre log -n shop --follow",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Cobra's own groups of flags give a command without a parent those of the process, such as another --version.
			if follow && cmd.Flags().Changed("until") {
				return errors.New("--follow waits for what comes: use it without --until")
			}
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
			after, err := since.Parse(cmd)
			if err != nil {
				return err
			}
			if !after.IsZero() {
				query.Fields["since"] = after.Selector()
			}
			last, err := until.Parse(cmd)
			if err != nil {
				return err
			}
			if !last.IsZero() {
				query.Fields["until"] = last.Selector()
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
	since.AddTo(cmd, "since", "Only changes after this moment")
	until.AddTo(cmd, "until", "Only changes up to this moment")
	cmd.Flags().StringVar(&who, "who", "", "Only changes of this user.")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "The changes of all namespaces.")
	cmd.Flags().BoolVar(&withStatus, "status", false, "The changes of the status too.")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Print further changes as they are made.")
	return cmd
}

// logPrinter prints changes after a moment, from the server's tables.
type logPrinter struct {
	out    io.Writer
	output *Output
	// after is zero for all changes.
	after  moment.Moment
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
			if i := slices.IndexFunc(p.columns, func(c metav1.TableColumnDefinition) bool {
				return c.Name == history.ChangedColumn
			}); i >= 0 && item.IsOfSecret() {
				row.Cells[i] = item.Summary()
			}
		}
		switch {
		case p.isBefore(&item):
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

// isBefore reports whether a change was made until p.after. Of its time the metadata have the second.
func (p *logPrinter) isBefore(item *history.Change) bool {
	if p.after.IsZero() {
		return false
	}
	revision, _ := strconv.ParseInt(item.Name, 10, 64) // a change is named after its revision
	return p.after.Covers(revision, item.CreationTimestamp.Add(time.Second-1))
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

// completeObject returns the completion of TYPE/NAME and TYPE NAME: with the names of objects that exist,
// or that were deleted.
func completeObject(flags *ClusterFlags, deleted bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		client, err := flags.connect()
		if err != nil || len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		kind, _, isObject := strings.Cut(word, "/")
		prefix := kind + "/"
		switch {
		case len(args) == 1:
			kind, prefix = args[0], ""
		case !isObject:
			var types []string
			for _, name := range client.Types() {
				types = append(types, name+"/")
			}
			return withPrefix(types, word), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		names, err := client.Names(cmd.Context(), kind, deleted)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for i := range names {
			names[i] = prefix + names[i]
		}
		return withPrefix(names, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRevision returns the completion of a revision: the last ones that can be undone, each with who
// changed what.
func completeRevision(flags *ClusterFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		client, err := flags.connect()
		if err != nil || len(args) > 0 {
			return nil, directive
		}
		changes, err := client.Recent(cmd.Context())
		if err != nil {
			return nil, directive
		}
		var revisions []string
		for i := range changes {
			c := &changes[i]
			revisions = append(revisions, c.Name+"\t"+Visible(fmt.Sprintf("%s %s %s", c.Who, c.FullVerb(), c.Object.FullName())))
		}
		revisions = withPrefix(revisions, word)
		return revisions[:min(len(revisions), shownRevisions)], directive
	}
}

// shownRevisions is how many revisions a completion has.
const shownRevisions = 20

func withPrefix(words []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(word string) bool { return !strings.HasPrefix(word, prefix) })
}
