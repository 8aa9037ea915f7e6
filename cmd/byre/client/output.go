package client

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

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
