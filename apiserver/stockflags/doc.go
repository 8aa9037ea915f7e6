// Package stockflags has a test only, which compares the flags of byre serve with
// those of kube-apiserver. It stands apart as it links all of kube-apiserver.
package stockflags
