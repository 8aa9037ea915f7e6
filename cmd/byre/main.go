package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // as kube-apiserver: CronJobs name time zones, of which the image and small machines have no files

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"

	"byre/apiserver/envtest/standin"
	"byre/apiserver/server"
	"byre/cmd/byre/client"
)

func main() { os.Exit(runProcess()) }

// runProcess sets up what a process has once, klog and the signals, runs the command of the
// process's arguments, and returns the exit status.
func runProcess() int {
	logs.InitLogs()
	defer logs.FlushLogs()
	ctx, stop := interruptible(context.Background())
	defer stop()
	return run(ctx, os.Args[0], os.Args[1:], os.Stdout, os.Stderr)
}

// run runs a command until it is done or ctx ends, and returns the exit status. The last part
// of path, by which the program was started, selects the root command; see newCommand.
//
// Several commands may run at the same time in one process, as tests do, but for those that
// change the process: a server sets its feature gates and its logger, and check with keys
// replaces the logger.
func run(ctx context.Context, path string, args []string, out, errOut io.Writer) int {
	name := filepath.Base(path)
	if name == "kubectl_complete-byre" { // kubectl starts it for the arguments of its plugin
		name, args = "kubectl-byre", slices.Concat([]string{cobra.ShellCompRequestCmd}, args)
	}
	root := newCommand(name)
	root.SetArgs(client.ProtectStatement(args))
	root.SetOut(out)
	root.SetErr(errOut)
	if err := root.ExecuteContext(ctx); err != nil {
		if asked, ok := errors.AsType[*client.VersionError](err); ok {
			fmt.Fprint(out, asked.Text)
			return 0
		}
		logs.FlushLogs()
		for _, line := range client.Messages(err) {
			fmt.Fprintln(errOut, root.Name()+": "+line)
		}
		if status, ok := errors.AsType[*statusError](err); ok {
			return status.status
		}
		return 1
	}
	return 0
}

// newCommand returns the root command of the program for the name that it was started by.
func newCommand(name string) *cobra.Command {
	switch name {
	case standin.KubeAPIServer:
		return newKubeAPIServerCommand()
	case standin.Etcd:
		return newEtcdCommand()
	case standin.Kubectl:
		return newKubectlCommand()
	case "kubectl-byre":
		return client.NewPluginCommand(versionText)
	default:
		return newRootCommand()
	}
}

func newRootCommand() *cobra.Command {
	config := newConfiguration(hostConfig)
	root := &cobra.Command{
		Use:           "byre",
		Short:         "A Kubernetes API server on SQLite or PostgreSQL",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          client.SubcommandOnly,
		RunE:          client.Help,

		PersistentPreRunE: config.setNamed,
	}
	config.addTo(root.PersistentFlags())
	client.AddVersion(root.PersistentFlags(), "", versionText)
	client.AddVersion(root.Flags(), "v", versionText)
	root.AddCommand(newServeCommand(config), newServeEtcdCommand(), newServeAPICommand(), newMigrateCommand(),
		newBackupCommand(), newRestoreCommand(), newCopyCommand(), newForkCommand(),
		newImportCommand(), newExportCommand(), newCheckCommand(), newCompactCommand(), newStatusCommand(),
		newConfigCommand(config), newTakeoverCommand(), newCertsCommand(), newKubeconfigCommand(), newTokenCommand(),
		newVersionCommand(), newManCommand())
	root.AddCommand(newEnvtestAssetsCommand())
	root.AddCommand(client.NewCommands(newSQLViewsCommand())...)
	client.AcceptDays(root)
	return root
}

// sameSignal is the time in which a second signal is taken for the first one: "timeout", and
// a shell at Ctrl-C, send theirs to the process and to its group.
const sameSignal = time.Second

// interruptible returns a context that the first SIGTERM or SIGINT ends. A second one, after
// sameSignal, ends the process at once: who sends it does not want to wait for the shutdown.
func interruptible(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	over := make(chan struct{})
	go func() {
		if awaitSecond(signals, over, cancel) {
			os.Exit(1) //nolint:revive // the second signal: nothing deferred is waited for
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		cancel()
	}
}

// awaitSecond calls first at the first signal, and returns true at the second one. It returns
// false when over is closed.
func awaitSecond(signals <-chan os.Signal, over <-chan struct{}, first func()) bool {
	var at time.Time
	for {
		select {
		case <-over:
			return false
		case <-signals:
		}
		switch {
		case at.IsZero():
			at = time.Now()
			first()
		case time.Since(at) >= sameSignal:
			return true
		}
	}
}

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
