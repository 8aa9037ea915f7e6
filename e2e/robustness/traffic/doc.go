// Package traffic uses a store as the parts of a Kubernetes cluster do, and records
// what it did and saw: compare-and-swap updates of few objects, creates and deletes,
// reads at the latest, at past and at any revision, lists by page and by label, watches
// from past and present revisions and with initial events, resumed where they broke off.
package traffic
