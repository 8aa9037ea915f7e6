package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"byre/apiserver/storage/moment"
)

// writeFlags are those of commands that write.
type writeFlags struct {
	secretsFlag

	dryRun string
	yes    bool
}

func (f *writeFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dryRun, "dry-run", "none",
		"none, or server: the server checks the request and stores nothing.")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "Do not ask.")
	f.secretsFlag.addTo(cmd)
}

// confirm asks, unless a flag says what the answer is. It reports whether the request is to be made.
func (f *writeFlags) confirm(cmd *cobra.Command) (bool, error) {
	if f.dryRun != "none" && f.dryRun != "server" {
		return false, fmt.Errorf("--dry-run must be none or server, not %q", f.dryRun)
	}
	if f.yes || f.isDry() {
		return true, nil
	}
	return Ask(cmd)
}

func (f *writeFlags) isDry() bool { return f.dryRun == "server" }

// done says what was done.
func (f *writeFlags) done(out io.Writer, what string) {
	if f.isDry() {
		what += " (server dry run)"
	}
	fmt.Fprintln(out, what)
}

func newUndoCommand() *cobra.Command {
	var flags ClusterFlags
	var write writeFlags
	cmd := &cobra.Command{
		Use:   "undo REVISION",
		Short: "Reverse a change",
		Long: "Reverse a change of an object: by a patch of the fields that it changed, or by a deletion if it\n" +
			"created the object. If a later change has changed one of them, nothing is done.\n" +
			"The change is one of the namespace; those of objects without one are in \"default\".",
		Example: "  kubectl byre undo 4711 -n shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || revision < 1 {
				return fmt.Errorf("%q is not a revision", args[0])
			}
			client, err := flags.connect()
			if err != nil {
				return err
			}
			undo, err := client.PlanUndo(cmd.Context(), revision)
			if err != nil {
				return err
			}
			out, object := cmd.OutOrStdout(), Visible(undo.Object.String())
			switch {
			case undo.Verb == "delete":
				fmt.Fprintln(out, "delete", object)
			case len(undo.Patch) == 0:
				fmt.Fprintln(out, "nothing to undo")
				return nil
			default:
				fmt.Fprintln(out, "patch", object)
				write.printPatch(out, undo)
			}
			if ok, err := write.confirm(cmd); err != nil || !ok {
				return err
			}
			if err := client.Do(cmd.Context(), nil, undo, write.isDry()); err != nil {
				return err
			}
			write.done(out, fmt.Sprintf("revision %d of %s is undone", revision, object))
			return nil
		},
	}
	flags.AddTo(cmd)
	cmd.ValidArgsFunction = completeRevision(&flags)
	write.addTo(cmd)
	return cmd
}

// printPatch prints the operations of a step's patch; tests are not for people.
func (f *writeFlags) printPatch(out io.Writer, step *Step) {
	patch := step.Patch
	if !f.show {
		patch = step.MaskedPatch()
	}
	for _, o := range patch {
		value, _ := json.Marshal(o.Value) // it was JSON
		switch o.Op {
		case "test":
			continue
		case "remove":
			value = nil
		}
		PrintRow(out, []any{"  " + strings.TrimSpace(o.Op+" "+o.Field+" "+string(value))})
	}
}

func newUndeleteCommand() *cobra.Command {
	var flags ClusterFlags
	var write writeFlags
	cmd := &cobra.Command{
		Use:   "undelete {TYPE/NAME | -n NAMESPACE}",
		Short: "Create a deleted object, or a deleted namespace, again",
		Long: "Create the last version of a deleted object again, without what the server sets, and say what\n" +
			"was left out. It is a new object, with another UID.\n" +
			"With a namespace alone, create the deleted namespace again with the objects that its deletion\n" +
			"deleted, but for those that controllers make. It needs the rights of a cluster administrator.",
		Example: "  kubectl byre undelete configmap/settings\n" +
			"  kubectl byre undelete -n shop",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if !cmd.Flags().Changed("namespace") {
					return errors.New("name an object, as TYPE/NAME, or a namespace with -n")
				}
				client, err := flags.connect()
				if err != nil {
					return err
				}
				plan, err := client.PlanUndeleteNamespace(cmd.Context())
				if err != nil {
					return err
				}
				return write.carryOut(cmd, client, plan)
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			undelete, err := client.PlanUndelete(cmd.Context(), o)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if undelete.Content == nil {
				fmt.Fprintf(out, "%s exists: nothing to do\n", o)
				return nil
			}
			fmt.Fprintf(out, "create %s as it was before revision %d deleted it\n", o, undelete.Revision)
			if ok, err := write.confirm(cmd); err != nil || !ok {
				return err
			}
			if _, err := client.Create(cmd.Context(), undelete, write.isDry()); err != nil {
				return err
			}
			for _, what := range undelete.LeftOut {
				fmt.Fprintln(out, "left out: "+Visible(what))
			}
			write.done(out, o.String()+" is created again")
			return nil
		},
	}
	flags.AddTo(cmd)
	cmd.ValidArgsFunction = completeObject(&flags, true)
	write.addTo(cmd)
	return cmd
}

func newRollbackCommand() *cobra.Command {
	var flags ClusterFlags
	var write writeFlags
	var at MomentFlag
	var selector string
	var prune bool
	cmd := &cobra.Command{
		Use:   "rollback --at T",
		Short: "Make the objects of a namespace again what they were",
		Long: "Make the objects of a namespace again what they were at a moment: create what was deleted since,\n" +
			"replace what was changed, and with --prune delete what was created. What controllers own, and the\n" +
			"status, are left to the controllers. T is " + moment.Help + ".",
		Example: "  kubectl byre rollback -n shop --at -2h\n" +
			"  kubectl byre rollback -n shop --at 4711 -l app=web --prune",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			then, err := at.Parse(cmd)
			if err != nil {
				return err
			}
			selected, err := labels.Parse(selector)
			if err != nil {
				return fmt.Errorf("--selector: %w", err)
			}
			client, err := flags.connect()
			if err != nil {
				return err
			}
			plan, err := client.PlanRollback(cmd.Context(), then, selected, prune)
			if err != nil {
				return err
			}
			return write.carryOut(cmd, client, plan)
		},
	}
	flags.AddTo(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	write.addTo(cmd)
	at.AddTo(cmd, "at", "The moment")
	_ = cmd.MarkFlagRequired("at") // the flag is there
	cmd.Flags().StringVarP(&selector, "selector", "l", "",
		"Only objects that have these labels, or had them then, such as app=web.")
	cmd.Flags().BoolVar(&prune, "prune", false, "Delete what was created since.")
	return cmd
}

// carryOut prints a plan, asks, and makes its requests. A request that fails does not keep it from
// making the others.
func (f *writeFlags) carryOut(cmd *cobra.Command, client *Client, plan *Plan) error {
	out := cmd.OutOrStdout()
	for _, step := range plan.Steps {
		fmt.Fprintln(out, step.Verb, Visible(step.Object.String()))
		f.printPatch(out, step)
	}
	for _, what := range plan.LeftOut {
		fmt.Fprintln(out, "left out: "+Visible(what))
	}
	if len(plan.Steps) == 0 {
		fmt.Fprintln(out, "nothing to do")
		return nil
	}
	if ok, err := f.confirm(cmd); err != nil || !ok {
		return err
	}
	failed := 0
	for _, step := range plan.Steps {
		object := Visible(step.Object.String())
		err := client.Do(cmd.Context(), plan, step, f.isDry())
		for _, what := range step.LeftOut {
			fmt.Fprintf(out, "left out of %s: %s\n", object, Visible(what))
		}
		isNamespace := step.Object.Resource.Resource == "namespaces"
		switch {
		case errors.Is(err, ErrExists):
			continue
		case err != nil && (isNamespace || cmd.Context().Err() != nil):
			return err
		case err != nil:
			failed++
			fmt.Fprintf(cmd.ErrOrStderr(), "%s %s: %s\n", step.Verb, object, Visible(err.Error()))
			continue
		}
		f.done(out, object+" is "+pastOf[step.Verb])
		if isNamespace && f.isDry() {
			fmt.Fprintln(out, "the server can't check the other objects, as the namespace does not exist")
			return nil
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d requests failed: run the command again when their causes are gone", failed,
			len(plan.Steps))
	}
	return nil
}

// pastOf is what the verbs of steps have done.
var pastOf = map[string]string{"create": "created again", "update": "as it was", "delete": "deleted"}
