package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"byre/apiserver/server"
)

// newManCommand makes a hidden command. The build of the packages runs it.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages of all commands into a directory",
		Long:   "Write the manual pages of all commands into a directory, dated by SOURCE_DATE_EPOCH if it is set.",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			escapeUsages(root)
			root.DisableAutoGenTag = true // a page names the version, not the day on which it was written
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "8",
				Source:  "byre " + server.ProgramVersion(),
				Manual:  "byre",
			}, args[0])
		},
	}
}

// escapeUsages keeps what cobra takes for Markdown in the usages of flags: <placeholders>
// would be left out as HTML, and *.example.com would begin an emphasis.
func escapeUsages(cmd *cobra.Command) {
	escaper := strings.NewReplacer("<", `\<`, "*", `\*`)
	for _, flags := range []*pflag.FlagSet{cmd.LocalNonPersistentFlags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { f.Usage = escaper.Replace(f.Usage) })
	}
	for _, child := range cmd.Commands() {
		escapeUsages(child)
	}
}
