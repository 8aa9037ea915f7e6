package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/term"
)

// isTerminal reports whether out is a terminal that can show colours and pages.
func isTerminal(out io.Writer) bool {
	_, _, err := term.TerminalSize(out)
	return err == nil && !slices.Contains([]string{"", "dumb"}, os.Getenv("TERM"))
}

// page runs write with the output of a command. On a terminal what it has written is shown, as git does,
// by the program of $PAGER, or by less if it is there.
func page(cmd *cobra.Command, write func(io.Writer) error) error {
	out := cmd.OutOrStdout()
	program, isSet := os.LookupEnv("PAGER")
	if _, err := exec.LookPath("less"); !isSet && err == nil {
		program = "less"
	}
	if program == "" || !isTerminal(out) {
		return write(out)
	}
	var text bytes.Buffer
	if err := write(&text); err != nil {
		_, writeErr := text.WriteTo(out)
		return errors.Join(err, writeErr)
	}
	pager := exec.CommandContext(context.WithoutCancel(cmd.Context()), "sh", "-c", program)
	pager.Stdin, pager.Stdout, pager.Stderr = &text, out, cmd.ErrOrStderr()
	if _, isSet := os.LookupEnv("LESS"); !isSet {
		pager.Env = append(os.Environ(), "LESS=FRX")
	}
	err := pager.Start()
	if err == nil {
		signal.Ignore(os.Interrupt) // Ctrl-C is for the pager, which needs the terminal to itself until it ends
		err = pager.Wait()
	}
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.Exited()) { // not ended by a signal
		return fmt.Errorf("the pager %q: %w: set PAGER to another program, or to cat", program, err)
	}
	return nil
}

// colorFlag is the flag --color of a command.
type colorFlag struct{ when string }

func (f *colorFlag) addTo(cmd *cobra.Command) {
	choices := []string{"auto", "always", "never"}
	cmd.Flags().StringVar(&f.when, "color", choices[0], "Colour: "+OneOf(choices)+". auto means on a terminal, unless NO_COLOR is set.")
	_ = cmd.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// use reports whether what a command prints to out has colours.
func (f *colorFlag) use(out io.Writer) (bool, error) {
	switch f.when {
	case "auto":
		return os.Getenv("NO_COLOR") == "" && isTerminal(out), nil
	case "always", "never":
		return f.when == "always", nil
	}
	return false, fmt.Errorf("--color must be auto, always or never, not %q", f.when)
}

// colorDiff returns a unified diff in the colours of git.
func colorDiff(diff string) string {
	const bold, red, green, cyan = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m"
	var b strings.Builder
	i := 0
	for line := range strings.Lines(diff) {
		color := map[byte]string{'-': red, '+': green, '@': cyan}[line[0]]
		if i++; i <= 2 {
			color = bold // the names of the versions
		}
		if color != "" {
			line = color + strings.TrimSuffix(line, "\n") + "\x1b[m\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
