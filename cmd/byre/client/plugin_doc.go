// Package plugin is what "byre log", "diff", "show", "blame", "undo", "undelete", "rollback" and "mcp" do, and
// the same as "kubectl byre": all of it through the API server, by the resource changes of
// history.byre.dev, with the rights of the user of the kubeconfig.
package client
