package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// outputFlag is the flag --output of a command.
type outputFlag struct {
	format  string
	allowed []string
}

// addTo adds the flag with the formats that it allows, of which the first is the default.
func (o *outputFlag) addTo(cmd *cobra.Command, formats ...string) {
	o.allowed = formats
	cmd.Flags().StringVarP(&o.format, "output", "o", formats[0], "Output format: "+oneOf(formats)+".")
	// The flag is there, so that this can't fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func (o *outputFlag) validate() error {
	if slices.Contains(o.allowed, o.format) {
		return nil
	}
	return fmt.Errorf("--output must be %s, not %q", oneOf(o.allowed), o.format)
}

// isData reports whether the format is one for programs.
func (o *outputFlag) isData() bool { return o.format == "json" || o.format == "yaml" }

// print writes a value in the format; text writes it in one that is neither JSON nor YAML.
func (o *outputFlag) print(out io.Writer, value any, text func(io.Writer) error) error {
	switch o.format {
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

// oneOf returns words as people write them: a, b or c.
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
