package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/util/compatibility"

	"byre/apiserver"
)

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := apiserver.Version(compatibility.DefaultBuildEffectiveVersion())
			switch output {
			case "":
				fmt.Fprint(cmd.OutOrStdout(), versionText())
				return nil
			case "json":
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(info)
			default:
				return fmt.Errorf("--output must be json, not %q", output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "Output format: json, or nothing for text.")
	return cmd
}

// versionText is what a person reads of the version.
func versionText() string {
	info := apiserver.Version(compatibility.DefaultBuildEffectiveVersion())
	return fmt.Sprintf("byre %s\nKubernetes API %s\n%s %s\n", apiserver.ProgramVersion(), info.GitVersion, info.GoVersion, info.Platform)
}
