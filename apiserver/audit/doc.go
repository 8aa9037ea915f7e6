// Package audit records who did what: upstream's policy evaluation and backends
// (a rotated log file, a webhook), behind kube-apiserver's flags.
//
// Without a policy file nothing is recorded, whatever backends are named, as in
// kube-apiserver. Even so every request carries an audit context, which handlers
// rely on and whose ID the store keeps beside each change: the filter chain adds it.
//
// New opens files and starts nothing. Run starts the backends and, when its
// context ends, stops them: events that were recorded before are flushed.
package audit
