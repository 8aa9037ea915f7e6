package client

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/history"
	"byre/apiserver/storage/moment"
)

const (
	// timelineBefore and timelineAfter are the window around a moment.
	timelineBefore, timelineAfter = time.Hour, 10 * time.Minute
	// shownRows is how many rows of a timeline are shown without --all: a screen.
	shownRows = 25
	// shownWhat is how many characters of what has changed a row has without --all.
	shownWhat = 100
)

func newTimelineCommand() *cobra.Command {
	var flags ClusterFlags
	var output Output
	var since, around MomentFlag
	var all bool
	cmd := &cobra.Command{
		Use:   "timeline TYPE/NAME [--around T] [--since T]",
		Short: "Show what changed before an object broke",
		Long: "Show what has changed in the last hour that bears on an object, the newest first: the object, its owners,\n" +
			"what it owns, what its Pods name, what selects, scales or limits them, and their Nodes. What controllers\n" +
			"have changed is counted in the row of the change before it, \"+37 by controllers\". You see what you may list.",
		Example: "  kubectl byre timeline deployment/web\n" +
			"  kubectl byre timeline deployment/web --around 14:02",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, fromErr := since.Parse(cmd)
			broke, brokeErr := around.Parse(cmd)
			if err := errors.Join(fromErr, brokeErr); err != nil {
				return err
			}
			client, o, err := flags.find(args)
			if err != nil {
				return err
			}
			t := history.Timeline{Since: time.Now().Add(-timelineBefore), All: all}
			if !broke.IsZero() {
				at, err := client.timeOf(cmd, o, broke)
				if err != nil {
					return err
				}
				t.Since, t.Until = at.Add(-timelineBefore), at.Add(timelineAfter)
			}
			if !from.IsZero() {
				if t.Since, err = client.timeOf(cmd, o, from); err != nil {
					return err
				}
			}
			kind, err := client.mapper.KindFor(o.Resource)
			if err != nil {
				return err
			}
			t.APIVersion = o.Resource.GroupVersion().String()
			t.Object = history.ObjectReference{Group: o.Resource.Group, Resource: o.Resource.Resource, Kind: kind.Kind,
				Namespace: o.Namespace, Name: o.Name}
			found, err := t.Read(client.getter(cmd.Context()))
			if err != nil {
				return err
			}
			return page(cmd, func(out io.Writer) error {
				return output.Print(out, found, func(out io.Writer) error { return printTimeline(out, &t, found) })
			})
		},
	}
	flags.AddTo(cmd)
	cmd.ValidArgsFunction = completeObject(&flags, false)
	output.AddTo(cmd, "table", "json", "yaml")
	since.AddTo(cmd, "since", "Only changes after this moment")
	around.AddTo(cmd, "around", "The changes from an hour before this moment to 10 minutes after it")
	cmd.Flags().BoolVar(&all, "all", false, "A row for each change and each Event, also of controllers.")
	return cmd
}

// timeOf returns the time of a moment. A revision has that of its change, which is in the namespace of the object.
func (c *Client) timeOf(cmd *cobra.Command, o Object, m moment.Moment) (time.Time, error) {
	if m.Revision == 0 {
		return m.Time, nil
	}
	change, err := c.Change(cmd.Context(), o.changesIn(), m.Revision)
	return change.Time.Time, err
}

// printTimeline prints what a Timeline has found: at most a screen, unless all is asked for.
func printTimeline(out io.Writer, t *history.Timeline, found *history.Incident) error {
	rows := found.Rows
	if !t.All {
		rows = rows[:min(len(rows), shownRows)]
	}
	layout := time.TimeOnly
	if end := cmp.Or(t.Until, time.Now()); t.Since.Local().Format(time.DateOnly) != end.Local().Format(time.DateOnly) {
		layout = time.DateTime
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(rows) > 0 {
		fmt.Fprintln(w, "TIME\tWHO\tVERB\tOBJECT\tCHANGED\tWHY")
	}
	for i := range rows {
		row := &rows[i]
		var notes []string
		switch {
		case row.Count > 1 && row.First != nil:
			notes = append(notes, fmt.Sprintf("%d times since %s", row.Count, row.First.Local().Format(layout)))
		case row.Count > 1:
			notes = append(notes, fmt.Sprintf("%d times", row.Count))
		}
		if row.Folded > 0 {
			notes = append(notes, fmt.Sprintf("+%d by controllers", row.Folded))
		}
		what := row.What
		if runes := []rune(what); len(runes) > shownWhat && !t.All {
			what = string(runes[:shownWhat]) + "…"
		}
		if len(notes) > 0 {
			what = strings.TrimSpace(what + " (" + strings.Join(notes, ", ") + ")")
		}
		who := strings.ReplaceAll(row.Who, "system:serviceaccount:", "")
		PrintRow(w, []any{row.Time.Local().Format(layout), who, row.Verb, row.Object.FullName(), what, row.Why})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	span := "since " + t.Since.Local().Format(time.RFC3339)
	switch left := len(found.Rows) - len(rows); {
	case len(rows) == 0:
		fmt.Fprintf(out, "nothing that bears on it has changed %s: ask for more with --since\n", span)
	case left > 0:
		fmt.Fprintf(out, "%d earlier rows %s: --all shows them\n", left, span)
	}
	for _, why := range found.Incomplete {
		fmt.Fprintln(out, "incomplete:", Visible(why))
	}
	if len(found.NotAsked) > 0 {
		fmt.Fprintf(out, "not asked: %s (no right to list)\n", strings.Join(found.NotAsked, ", "))
	}
	return nil
}
