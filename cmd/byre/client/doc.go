// Package client has the commands that ask a server, with the rights of the user of a kubeconfig: what
// happened and what there was (log, show, diff, blame, timeline), its reversal (undo, undelete, rollback),
// SQL (sql), tools for models (mcp), and the console. NewCommands returns them for byre, and
// NewPluginCommand for the plugin of kubectl, "kubectl byre".
//
// # History
//
// A Client reads the resource changes of history.byre.dev. All that it shows and does goes through the
// API server, so that the rights, the admission and the audit of the user hold. Its methods return
// what a command prints, or a plan; only Do and Create write. They do not overwrite what somebody has
// changed since the plan was made.
//
// # What commands share
//
// The rest is of all commands of byre: outputs (Output), questions (Ask), errors (Messages), durations in days, and
// the help of commands that have only subcommands.
package client
