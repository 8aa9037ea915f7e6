package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"

	"byre/apiserver/server"
	"byre/cmd/byre/client"
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
	var output client.Output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "json", "yaml"}, output.Format) {
				return errors.New("--output must be 'yaml' or 'json'")
			}
			info, err := readVersion()
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), info, func(w io.Writer) error {
				_, err := io.WriteString(w, info.text())
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&output.Format, "output", "o", "", "Output format: json, yaml, or nothing for text.")
	// The flag is there, so that this can't fail.
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func readVersion() (versionInfo, error) {
	info := versionInfo{
		Info:        server.Version(compatibility.DefaultBuildEffectiveVersion()),
		ByreVersion: server.ProgramVersion(),
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
	info, err := readVersion()
	if err != nil {
		return "byre " + server.ProgramVersion() + "\n"
	}
	return info.text()
}
