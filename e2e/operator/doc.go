// Package operator does what docs/operations tells an operator to do: it types its
// lists of commands, as they stand there, on hosts of a test.
//
// A Host is a directory in place of the root of a machine. Type replaces only what must differ
// in a test: paths, byre's port, the user and the group of the package. Programs that change a
// whole machine are stood in for: apt installs the files of packaging/ without a package,
// systemctl starts the program of a unit as a child of the test's process, runuser changes no
// user, and scp copies to another Host of the test. All processes end with the test.
package operator
