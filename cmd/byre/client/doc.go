// Package client has the commands that ask a server, with the rights of the user of a kubeconfig: what happened and what
// there was, SQL, tools for models, and the console. They are those of the plugin of kubectl too. Package plugin does the
// work of the first.
package client
