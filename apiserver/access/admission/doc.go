// Package admission builds the chain of admission plugins that every write passes
// after it is decoded and before it is stored. It also configures auditing.
//
// # Admission
//
// The plugins are upstream's: all plugins of kube-apiserver, in kube-apiserver's
// order, with the same plugins enabled by default.
//
// They differ from upstream's in this (plugins.go):
//   - Pods are read from the watch cache on demand; upstream keeps every Pod decoded
//     in an informer.
//   - The plugins of policies and webhooks are skipped while no policy and no
//     configuration of a webhook exists.
//   - Where a namespace has several quotas, the plugin ResourceQuota checks its requests one at a time.
//
// The caller starts the informer factory and calls Run. New registers informers with
// the factory. New starts no goroutine of its own, but the constructors of upstream's
// policy plugins do; those goroutines end with the context given to New. A request
// that arrives before the informers have synced waits for them for a few seconds.
//
// # Auditing
//
// An Audit evaluates upstream's policy and records with upstream's backends (a rotated log file, a
// webhook), by kube-apiserver's flags. Without a policy file no event is recorded, whichever backends
// the flags name, as in kube-apiserver. The filter chain adds an audit context to every request in
// either case: upstream's handlers need it, and the store records its audit ID with each change.
//
// NewAudit opens the log file and starts no goroutine. Audit.Run starts the backends. When its
// context ends, it flushes the events recorded so far and stops the backends. The
// caller ends that context after the last request.
package admission
