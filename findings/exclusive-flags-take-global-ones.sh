#!/bin/sh
# github.com/spf13/cobra v1.10.2 and github.com/spf13/pflag v1.0.10: a command that declares two of its flags to be
# exclusive before it is added to its parent, as a constructor of the command does.
#
# Expected: MarkFlagsMutuallyExclusive concerns the flags that it names.
# Seen: for a command without a parent it makes all flags of pflag.CommandLine persistent ones of the command. One that
# has the name of a persistent flag of the later parent, such as the --version that k8s.io/component-base registers
# there, replaces it in this command only. The same command without the call, or with it after AddCommand, has the
# parent's.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod GOWORK=off
go mod init example.com/finding >/dev/null 2>&1
cat >main.go <<'GO'
package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func usageOfVersion(isMarkedFirst bool) string {
	root := &cobra.Command{Use: "tool"}
	root.PersistentFlags().Bool("version", false, "that of the root")
	child := &cobra.Command{Use: "log", RunE: func(*cobra.Command, []string) error { return nil }}
	child.Flags().Bool("follow", false, "")
	child.Flags().Bool("until", false, "")
	if isMarkedFirst {
		child.MarkFlagsMutuallyExclusive("follow", "until")
	}
	root.AddCommand(child)
	if !isMarkedFirst {
		child.MarkFlagsMutuallyExclusive("follow", "until")
	}
	root.SetArgs([]string{"log"})
	if err := root.Execute(); err != nil {
		panic(err)
	}
	return child.Flags().Lookup("version").Usage
}

func main() {
	pflag.CommandLine.Bool("version", false, "that of a library")
	fmt.Println("marked after AddCommand: --version is", usageOfVersion(false))
	fmt.Println("marked before AddCommand: --version is", usageOfVersion(true))
}
GO
go get github.com/spf13/cobra@v1.10.2 github.com/spf13/pflag@v1.0.10 >/dev/null 2>&1
go run . | tee seen
cat >expected <<'TEXT'
marked after AddCommand: --version is that of the root
marked before AddCommand: --version is that of a library
TEXT
cmp expected seen
echo "still so"
