package client

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
			object := Object{Resource: schema.GroupVersionResource{Group: c.Object.Group, Resource: c.Object.Resource}, Name: c.Object.Name}
			revisions = append(revisions, c.Name+"\t"+Visible(fmt.Sprintf("%s %s %s", c.Who, path.Join(c.Verb, c.Subresource), object)))
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
