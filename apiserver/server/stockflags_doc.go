// Package stockflags has only a test, which compares the flags of byre serve with those
// of kube-apiserver. It is a package of its own because it links all of kube-apiserver.
package server
