package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/term"
	"sigs.k8s.io/yaml"

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

// AddVersion adds a flag --version that ends the parsing of the command line with a VersionError, so that no argument
// and no other flag is needed beside it. Cobra's own prints by a template, and a program that may execute templates
// keeps all methods of all types.
func AddVersion(flags *pflag.FlagSet, shorthand string, text func() string) {
	flag := flags.VarPF(versionFlag{text}, "version", shorthand, "Print the version and exit.")
	flag.NoOptDefVal = "true"
}

// VersionError is what a command fails with that is asked for the version.
type VersionError struct{ Text string }

// Error says what a caller prints that does not know a VersionError.
func (*VersionError) Error() string { return "the version is asked for" }

type versionFlag struct{ text func() string }

// String, Type and Set implement pflag.Value.
func (versionFlag) String() string { return "false" }
func (versionFlag) Type() string   { return "bool" }
func (f versionFlag) Set(value string) error {
	isAsked, err := strconv.ParseBool(value)
	if err == nil && isAsked {
		err = &VersionError{f.text()}
	}
	return err
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
	// only the outermost is a list of wrong flags
	if joined, ok := err.(interface{ Unwrap() []error }); ok && isList(err, joined.Unwrap()) {
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

// IsYes reads an answer, and reports whether it is yes. It fails if there is none, as in a cron job, and when ctx ends;
// in is then still being read, because nothing ends the read of a terminal.
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

// Output is the flag --output of a command.
type Output struct {
	// Format is the one that was asked for, and Allowed are those that the command has.
	Format  string
	Allowed []string
}

// AddTo adds the flag with the formats that it allows, of which the first is the default. The command refuses others
// before it runs.
func (o *Output) AddTo(cmd *cobra.Command, formats ...string) {
	o.Allowed = formats
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.validate() }
	cmd.Flags().StringVarP(&o.Format, "output", "o", formats[0], "Output format: "+OneOf(formats)+".")
	// The flag is there, so that this can't fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// validate fails if the format is none that the command has.
func (o *Output) validate() error {
	if slices.Contains(o.Allowed, o.Format) {
		return nil
	}
	return fmt.Errorf("--output must be %s, not %q", OneOf(o.Allowed), o.Format)
}

// IsData reports whether the format is one for programs.
func (o *Output) IsData() bool { return o.Format == "json" || o.Format == "yaml" }

// Print writes a value in the format; text writes it in one that is neither JSON nor YAML.
func (o *Output) Print(out io.Writer, value any, text func(io.Writer) error) error {
	switch o.Format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	default:
		return text(out)
	}
}

// OneOf returns words as people write them: a, b or c.
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// PrintRow prints the cells of a row. A cell has one line: other people have written what is in it.
func PrintRow(w io.Writer, cells []any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, Visible(fmt.Sprint(cell)))
	}
	fmt.Fprintln(w)
}

// Visible replaces control characters, which could move a terminal's cursor, and those that reorder others.
func Visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Bidi_Control) {
			return '·'
		}
		return r
	}, text)
}

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
	cmd.Flags().StringVar(&f.when, "color", choices[0],
		"Colour: "+OneOf(choices)+". auto means on a terminal, unless NO_COLOR is set.")
	// the flag is there
	_ = cmd.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
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
