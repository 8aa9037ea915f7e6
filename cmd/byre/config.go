package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"

	"byre/apiserver/server"
	"byre/cmd/byre/client"
)

// hostConfig is the configuration of the server that a host runs as a service.
const hostConfig = "/etc/byre/config.yaml"

func newConfigCommand(config *configuration) *cobra.Command {
	var changed bool
	flags := newServerOptions().Flags()
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration that serve would run with, as YAML",
		Long: "Print the configuration that \"byre serve\" would run with, as a file for --config: its\n" +
			"flags, the BYRE_... variables, the file of --config, and the defaults.\n\n" +
			"Values that are empty are left out. With --changed only what differs from the defaults is\n" +
			"printed, each with what has set it. If --endpoint has a password, the output contains it.",
		Example: "  byre config --secure-port 8443 >byre.yaml\n" +
			"  byre serve --config byre.yaml\n" +
			"  byre config --changed",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text := encodeConfigFile(serverFlags(flags))
		if changed {
			text = encodeChangedFlags(serverFlags(flags), config.sources)
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	addServerFlags(cmd, flags, config, versionText)
	flags.FlagSet("global").BoolVar(&changed, "changed", false,
		"Print only what differs from the defaults, and whether a flag, a variable or the file has set it.")
	cmd.Flags().AddFlag(flags.FlagSet("global").Lookup("changed"))
	return cmd
}

// configuration sets the flags of the server that the command line leaves out, for each command that
// has some of them: by BYRE_... variables, and then by the file of --config.
type configuration struct {
	// path is --config.
	path string
	// host is the file that is read without --config, if it exists; empty means none.
	host string
	// sources says what has set a flag, by its name.
	sources map[string]string
	// unread is why the file of the host is not read, although it exists.
	unread error
}

func newConfiguration(host string) *configuration {
	return &configuration{host: host, sources: make(map[string]string)}
}

// addTo adds --config.
func (c *configuration) addTo(flags *pflag.FlagSet) {
	usage := "File of YAML that maps flags of \"byre serve\" to their values, such as \"byre config\" prints. " +
		"Flags of the command line and BYRE_... variables win."
	if c.host != "" {
		usage += " If not set, " + c.host + " if it exists, unless --data-dir or --endpoint is given."
	}
	flags.StringVar(&c.path, "config", "", usage)
}

// namedFlags name the server, its database and its backups, for every command. Other flags of the same
// name as one of the server, such as kubectl's --request-timeout, mean something else.
var namedFlags = []string{"data-dir", "endpoint", "database-schema", "cert-dir", "encryption-provider-config",
	"backup-to", "replicate-to", "s3-endpoint", "s3-region"}

// setNamed sets the namedFlags of a command. A command line with
// --data-dir or --endpoint means another server: nothing of the configuration is about that one.
func (c *configuration) setNamed(cmd *cobra.Command, _ []string) error {
	flags := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	for _, name := range namedFlags {
		if flag := cmd.Flags().Lookup(name); flag != nil {
			flags.AddFlag(flag)
		}
	}
	if execute := cmd.RunE; execute != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			sayDataDir(cmd, flags)
			return execute(cmd, args)
		}
	}
	switch {
	case cmd.Flags().Lookup("kubeconfig") != nil:
		return c.setKubeconfig(cmd.Flags())
	case !flags.HasFlags() || c.path == "" && namesServer(flags):
		return nil
	}
	if err := c.set(flags, serverFlags(newServerOptions().Flags())); err != nil || c.unread == nil {
		return err
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if _, own := errors.AsType[*statusError](err); err == nil || own {
			return err
		}
		return fmt.Errorf("%w (and %w: run it as root to use that configuration)", err, c.unread)
	}
	return nil
}

// sayDataDir says where a command works if nobody has named a data directory, or another database.
func sayDataDir(cmd *cobra.Command, flags *pflag.FlagSet) {
	dir := flags.Lookup("data-dir")
	if dir == nil || namesServer(flags) || cmd.Flags().Lookup("kubeconfig") != nil {
		return
	}
	path := dir.Value.String()
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "no --data-dir is named: using %s\n", path)
}

// setKubeconfig has a client use the administrator's kubeconfig of the server: that of its --data-dir, or that of the
// configuration if it would find no other one and its command line names none.
func (c *configuration) setKubeconfig(flags *pflag.FlagSet) error {
	if dir := flags.Lookup("data-dir"); dir != nil && dir.Changed && !flags.Changed("kubeconfig") {
		return flags.Set("kubeconfig", (&certsFlags{dataDir: dir.Value.String()}).config().Kubeconfig)
	}
	if _, err := os.Stat(clientcmd.RecommendedHomeFile); err == nil ||
		os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" ||
		slices.ContainsFunc([]string{"kubeconfig", clientcmd.FlagAPIServer, clientcmd.FlagClusterName, clientcmd.FlagContext},
			flags.Changed) {
		return nil
	}
	store := server.NewStoreOptions()
	named := pflag.NewFlagSet("", pflag.ContinueOnError)
	store.AddDatabaseFlags(named)
	if err := c.set(named, serverFlags(newServerOptions().Flags())); err != nil || !named.Changed("data-dir") {
		return err
	}
	path := (&certsFlags{dataDir: store.DataDir}).config().Kubeconfig
	if _, err := os.Stat(path); err != nil {
		return nil //nolint:nilerr // the client says that there is no kubeconfig
	}
	return flags.Set("kubeconfig", path)
}

// set sets the flags that are not set yet. server are all flags of the server.
func (c *configuration) set(flags, server *pflag.FlagSet) error {
	c.recordSource(flags, func(string) string { return "flag" })
	if err := setVariables(flags); err != nil {
		return err
	}
	c.recordSource(flags, variableOf)
	path := cmp.Or(c.path, os.Getenv(variableOf("config")))
	isHost := path == "" && !namesServer(flags)
	if isHost {
		path = c.host
	}
	if path == "" {
		return nil
	}
	err := loadConfigFile(path, flags, server)
	switch {
	case isHost && errors.Is(err, fs.ErrNotExist):
		return nil
	case isHost && errors.Is(err, fs.ErrPermission):
		c.unread = err
		return nil
	}
	c.recordSource(flags, func(string) string { return path })
	return err
}

func (c *configuration) recordSource(flags *pflag.FlagSet, source func(name string) string) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if c.sources[flag.Name] == "" && flag.Changed {
			c.sources[flag.Name] = source(flag.Name)
		}
	})
}

// namesServer reports whether flags name a server.
func namesServer(flags *pflag.FlagSet) bool {
	return flags.Changed("data-dir") || flags.Changed("endpoint")
}

// variableOf returns the variable of the environment that sets a flag.
func variableOf(flag string) string {
	return "BYRE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// setVariables sets the flags whose variable is not empty, unless they are set.
func setVariables(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := variableOf(flag.Name)
		value := os.Getenv(name)
		if value == "" || flag.Changed {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// serverFlags returns the flags that a file can set.
func serverFlags(sets cliflag.NamedFlagSets) *pflag.FlagSet {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	for name, set := range sets.FlagSets {
		if name != "global" {
			flags.AddFlagSet(set)
		}
	}
	return flags
}

// addServerFlags adds the flags of the server, --config, --version and --help, and shows them in
// their sections.
func addServerFlags(cmd *cobra.Command, sets cliflag.NamedFlagSets, config *configuration, version func() string) {
	flags := serverFlags(sets)
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return config.set(flags, flags) }
	global := sets.FlagSet("global")
	global.BoolP("help", "h", false, "help for "+cmd.Name())
	client.AddVersion(global, "", version)
	config.addTo(global)
	cmd.Flags().AddFlagSet(flags)
	cmd.Flags().AddFlagSet(global)
	width, _, err := term.TerminalSize(cmd.OutOrStdout())
	if err != nil {
		width = 0 // not a terminal: don't wrap
	}
	cliflag.SetUsageAndHelpFunc(cmd, sets, width)
}
