// Package cli is what the commands of byre share: their outputs, questions and errors, and the help of commands that
// have only subcommands.
package client
