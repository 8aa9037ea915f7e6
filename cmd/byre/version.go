package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	"sigs.k8s.io/yaml"

	"byre/apiserver"
	"byre/migrations"
)

// versionInfo is the output of "byre version": the fields of /version, and byre's own.
type versionInfo struct {
	version.Info `json:",inline"`
	// ByreVersion is the version of byre itself; GitVersion is that of Kubernetes' API.
	ByreVersion string `json:"byreVersion"`
	// SchemaVersions has the newest schema that the program knows of each database.
	SchemaVersions schemaVersions `json:"schemaVersions"`
}

type schemaVersions struct {
	Postgres migrations.Version `json:"postgres"`
	SQLite   migrations.Version `json:"sqlite"`
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := formatVersion(output)
			if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "Output format: json, yaml, or nothing for text.")
	// The flag is there, so that this can't fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// formatVersion returns the version in a format of kubectl version, or as text.
func formatVersion(format string) (string, error) {
	switch format {
	case "", "json", "yaml":
	default:
		return "", errors.New("--output must be 'yaml' or 'json'")
	}
	info, err := readVersion()
	if err != nil {
		return "", err
	}
	switch format {
	case "json":
		text, err := json.MarshalIndent(info, "", "  ")
		return string(text) + "\n", err
	case "yaml":
		text, err := yaml.Marshal(info)
		return string(text), err
	default:
		return info.text(), nil
	}
}

func readVersion() (versionInfo, error) {
	info := versionInfo{
		Info:        apiserver.Version(compatibility.DefaultBuildEffectiveVersion()),
		ByreVersion: apiserver.ProgramVersion(),
	}
	var err error
	if info.SchemaVersions.Postgres, err = migrations.Latest(migrations.Postgres); err != nil {
		return info, err
	}
	info.SchemaVersions.SQLite, err = migrations.Latest(migrations.SQLite)
	return info, err
}

// text is what a person reads.
func (v versionInfo) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "byre %s\n", v.ByreVersion)
	switch {
	case v.GitCommit == "":
		b.WriteString("commit unknown: built without Git\n")
	case v.GitTreeState != "clean":
		fmt.Fprintf(&b, "commit %s of %s, with changes that are not committed\n", v.GitCommit, v.BuildDate)
	default:
		fmt.Fprintf(&b, "commit %s of %s\n", v.GitCommit, v.BuildDate)
	}
	fmt.Fprintf(&b, "Kubernetes API %s\n", v.GitVersion)
	fmt.Fprintf(&b, "schema %d on PostgreSQL, %d on SQLite\n", v.SchemaVersions.Postgres, v.SchemaVersions.SQLite)
	fmt.Fprintf(&b, "%s %s\n", v.GoVersion, v.Platform)
	return b.String()
}

// versionText is what --version prints.
func versionText() string {
	text, err := formatVersion("")
	if err != nil {
		return "byre " + apiserver.ProgramVersion() + "\n"
	}
	return text
}
