// Package audit configures auditing: upstream's policy evaluation and upstream's
// backends (a rotated log file, a webhook), with kube-apiserver's flags.
//
// Without a policy file no event is recorded, whichever backends the flags name, as
// in kube-apiserver. The filter chain adds an audit context to every request in
// either case: upstream's handlers need it, and the store records its audit ID with
// each change.
//
// New opens the log file and starts no goroutine. Run starts the backends. When Run's
// context ends, Run flushes the events recorded so far and stops the backends. The
// caller ends that context after the last request.
package admission
