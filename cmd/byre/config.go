package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"

	"byre/apiserver/options"
	"byre/cmd/byre/configfile"
)

func newConfigCommand() *cobra.Command {
	var config configFlag
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration that serve would run with, as YAML",
		Long: "Print the configuration that \"byre serve\" would run with: its flags, the file of\n" +
			"--config and the defaults, as a file for --config.\n\n" +
			"A flag of the command line replaces the field of the file. Values that are empty are\n" +
			"left out. If --endpoint has a password, the output contains it.",
		Example: "  byre config --secure-port 8443 >/etc/byre/config.yaml\n" +
			"  byre serve --config /etc/byre/config.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.load(); err != nil {
				return err
			}
			text, err := configfile.Encode(config.flags)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	addServerFlags(cmd, options.New().Flags(), &config)
	return cmd
}

// configFlag is --config of a command with the flags of the server.
type configFlag struct {
	path string
	// flags are those that the file can set.
	flags *pflag.FlagSet
}

// load sets the flags that the file names. The command line must have been parsed.
func (c *configFlag) load() error {
	if c.path == "" {
		return nil
	}
	return configfile.Load(c.path, c.flags)
}

// addServerFlags adds the flags of the server, --config and --help, and shows them in
// their sections.
func addServerFlags(cmd *cobra.Command, sets cliflag.NamedFlagSets, config *configFlag) {
	config.flags = pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		config.flags.AddFlagSet(set)
	}
	global := sets.FlagSet("global")
	global.BoolP("help", "h", false, "help for "+cmd.Name())
	global.Bool("version", false, "Print the version and exit.")
	cmd.Version = versionText()
	cmd.SetVersionTemplate("{{.Version}}")
	global.StringVar(&config.path, "config", "",
		"File with a "+configfile.Kind+" ("+configfile.APIVersion+"): these flags as fields of YAML, such as \"byre config\" prints. Flags of the command line win.")
	cmd.Flags().AddFlagSet(config.flags)
	cmd.Flags().AddFlagSet(global)
	width, _, err := term.TerminalSize(cmd.OutOrStdout())
	if err != nil {
		width = 0 // not a terminal: don't wrap
	}
	cliflag.SetUsageAndHelpFunc(cmd, sets, width)
}
