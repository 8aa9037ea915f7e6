package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// outputFlag is the flag --output of a command that prints text, JSON or YAML.
type outputFlag struct{ format string }

func (o *outputFlag) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "Output format: text, json or yaml.")
	// The flag is there, so that this can't fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

func (o *outputFlag) validate() error {
	switch o.format {
	case "text", "json", "yaml":
		return nil
	default:
		return fmt.Errorf("--output must be text, json or yaml, not %q", o.format)
	}
}

// print writes a value in the format; text writes it for a person.
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
