package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"byre/apiserver/server"
)

// AcceptDays makes all flags for durations of a command, and of its subcommands, take days too.
func AcceptDays(cmd *cobra.Command) {
	cmd.Flags().VisitAll(server.AcceptDays)
	cmd.PersistentFlags().VisitAll(server.AcceptDays)
	for _, sub := range cmd.Commands() {
		AcceptDays(sub)
	}
}

// Help prints the help of a command that has only subcommands.
func Help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// SubcommandOnly refuses what is not a subcommand, and names the one that may have
// been meant. (Cobra itself prints the help, and exits with 0.)
func SubcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	next := "see \"" + cmd.CommandPath() + " --help\""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		next = "did you mean " + strings.Join(names, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q for %q: %s", args[0], cmd.CommandPath(), next)
}

// AddVersion adds a flag --version to a command, among flags of it, that prints a text instead of running the
// command. Cobra's own prints by a template, and a program that may execute templates keeps all methods of all types.
func AddVersion(cmd *cobra.Command, flags *pflag.FlagSet, shorthand string, text func() string) {
	asked := flags.BoolP("version", shorthand, false, "Print the version and exit.")
	prepare, run := cmd.PersistentPreRunE, cmd.RunE
	cmd.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if *asked || prepare == nil {
			return nil
		}
		return prepare(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *asked {
			_, err := io.WriteString(cmd.OutOrStdout(), text())
			return err
		}
		return run(cmd, args)
	}
}

// Messages returns the lines that the user is shown for an error: one for each thing that
// is wrong. Of a flag that byre refuses, it leaves out the flag parser's words around the
// reason.
func Messages(err error) []string {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if refused, ok := errors.AsType[*server.RefusedFlagError](err); ok {
			return []string{"--" + invalid.GetFlag().Name + " is not supported: " + refused.Error()}
		}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && isList(err, joined.Unwrap()) { // only the outermost is a list of wrong flags
		var lines []string
		for _, err := range joined.Unwrap() {
			lines = append(lines, Messages(err)...)
		}
		return lines
	}
	text := noObject.ReplaceAllString(err.Error(), "it has no apiVersion and kind, or is neither YAML nor JSON")
	return []string{Visible(strings.NewReplacer("\r", "", "\n\t", " ", "\n", " ").Replace(text))}
}

// isList reports whether an error is a list of errors, as errors.Join makes it. An error of
// fmt.Errorf that wraps several has a text of its own, with the file and the remedy.
func isList(err error, parts []error) bool {
	var texts []string
	for _, part := range parts {
		texts = append(texts, part.Error())
	}
	return err.Error() == strings.Join(texts, "\n")
}

// noObject is the text of upstream's error for a file that is no object. The error has no type by
// which it could be recognized, and its text shows the Go type of a decoder.
var noObject = regexp.MustCompile(`couldn't get version/kind; json parse error: .*?Kind string[^}]*}`)

// Ask asks whether the command is to do what it has said. It says so if the answer is no.
func Ask(cmd *cobra.Command) (bool, error) {
	fmt.Fprint(cmd.OutOrStdout(), "Do it? [y/N] ")
	yes, err := IsYes(cmd.Context(), cmd.InOrStdin())
	if err == nil && !yes {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing done")
	}
	return yes, err
}

// IsYes reads an answer, and reports whether it is yes. It fails if there is none, as in a cron job, and when ctx ends; in is then
// still being read, because nothing ends the read of a terminal.
func IsYes(ctx context.Context, in io.Reader) (bool, error) {
	answers := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(in).ReadString('\n') // what can't be read is no answer
		answers <- strings.ToLower(answer)
	}()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case answer := <-answers:
		if answer == "" {
			return false, errors.New("nothing done: nobody answered; use --yes")
		}
		answer = strings.TrimSpace(answer)
		return answer == "y" || answer == "yes", nil
	}
}
