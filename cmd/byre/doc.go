// Package configfile reads and writes the server's configuration file: the flags of
// "byre serve" as YAML.
//
//	apiVersion: byre.dev/v1alpha1
//	kind: ServerConfiguration
//	secure-port: 8443
//	authorization-mode: [Node, RBAC]
//	retention-for: {events: 2d}
//
// A field is named after its flag and has its meaning. Booleans and numbers are YAML's;
// durations, addresses and other values are strings in the flag's format; a flag that takes
// several values is a list, and one that takes pairs is a mapping. Load refuses an unknown field,
// a field that is given twice, and a value of the wrong type, in one line that names the file, the
// line and the field. A flag of the command line, which is parsed before, replaces the field of its
// name as a whole. Load of what Encode has written sets every flag to the value that it had.
package main
