// Package clienttest has a cluster in memory, for tests of what asks a server for changes and objects, and
// writes objects. The resource changes is the server's own (apiserver/history) over the model of a store; the
// objects have what the verbs of package client rely on: preconditions, dry runs, finalizers, JSON patches, and
// namespaces that must exist. There are no defaults, no validation and no controllers.
package clienttest
