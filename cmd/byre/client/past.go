package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
)

// NewCommands returns the commands that show what is and what happened, and reverse it, through the API server.
// owners are further commands of "sql", which open the database.
func NewCommands(owners ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{newLogCommand(), newShowCommand(), newDiffCommand(), newBlameCommand(), newUndoCommand(), newUndeleteCommand(), newRollbackCommand(), newSQLCommand(owners...), newMCPCommand(), newConsoleCommand()}
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
	AddVersion(root, root.Flags(), "", version)
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
	cmd.Flags().StringVar(&f.rules.ExplicitPath, "kubeconfig", "", "Path of the kubeconfig. If not set, that of $KUBECONFIG, or ~/.kube/config.")
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
	var at string
	cmd := &cobra.Command{
		Use:     "show TYPE/NAME --at T",
		Short:   "Print an object as it was",
		Long:    "Print an object as it was at a moment. T is " + MomentHelp + ".",
		Example: "  kubectl byre show configmap/settings --at -2h",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			moment, err := ParseMoment(at)
			if err != nil {
				return fmt.Errorf("--at: %w", err)
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			v, err := client.At(cmd.Context(), o, moment)
			if err != nil {
				return err
			}
			if v.Content == nil {
				return fmt.Errorf("%s did not exist at %s", o, moment)
			}
			return page(cmd, func(out io.Writer) error { return output.Print(out, v.Content, nil) })
		},
	}
	flags.AddTo(cmd)
	output.AddTo(cmd, "yaml", "json")
	cmd.ValidArgsFunction = completeObject(&flags, false)
	cmd.Flags().StringVar(&at, "at", "", "The moment: "+MomentHelp+".")
	_ = cmd.MarkFlagRequired("at") // the flag is there
	return cmd
}

func newDiffCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var color colorFlag
	var secrets secretsFlag
	var at, to string
	cmd := &cobra.Command{
		Use:   "diff TYPE/NAME [--at T] [--to T]",
		Short: "Compare an object with itself at another moment",
		Long: "Compare an object as it was at one moment with what it was at another. T is " + MomentHelp + ".\n" +
			"Without --at, the last change is shown, and without --to the object is compared as it is now.\n" +
			"As JSON and YAML it is a list of the changed fields, as the resource changes has them.",
		Example: "  kubectl byre diff deployment/web --at -1d",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			colored, err := color.use(cmd.OutOrStdout())
			if err != nil {
				return err
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			older, newer, err := compareMoments(cmd.Context(), client, o, at, to)
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
			fields, err := history.Compare(older.Content, newer.Content)
			if err != nil {
				return err
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
	cmd.Flags().StringVar(&at, "at", "", "The first moment: "+MomentHelp+".")
	cmd.Flags().StringVar(&to, "to", "", "The second moment: "+MomentHelp+". If not set, now.")
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
func compareMoments(ctx context.Context, client *Client, o Object, at, to string) (older, newer Version, err error) {
	until := latest()
	if to != "" {
		if until, err = ParseMoment(to); err != nil {
			return older, newer, fmt.Errorf("--to: %w", err)
		}
	}
	if newer, err = client.At(ctx, o, until); err != nil {
		return older, newer, err
	}
	from := Moment{Revision: newer.Revision - 1}
	if newer.Revision <= 1 { // no change is left, or none was before
		from = until
	}
	if at != "" {
		if from, err = ParseMoment(at); err != nil {
			return older, newer, fmt.Errorf("--at: %w", err)
		}
	}
	older, err = client.At(ctx, o, from)
	return older, newer, err
}

// latest is a moment after the last change, whatever clocks say.
func latest() Moment { return Moment{Revision: math.MaxInt64} }

// diff returns the unified diff of two versions of an object.
func diff(o Object, older, newer Version) (string, error) {
	before, err := older.YAML()
	if err != nil {
		return "", err
	}
	after, err := newer.YAML()
	if err != nil {
		return "", err
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(before), FromFile: o.String() + title(older),
		B: difflib.SplitLines(after), ToFile: o.String() + title(newer),
		Context: 3,
	})
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
