package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// completeObject returns the completion of TYPE/NAME and TYPE NAME: with the names of objects that exist,
// or that were deleted.
func completeObject(flags *clusterFlags, deleted bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		client, _, err := flags.connect()
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

func withPrefix(words []string, prefix string) (selected []string) {
	for _, word := range words {
		if strings.HasPrefix(word, prefix) {
			selected = append(selected, word)
		}
	}
	return selected
}
