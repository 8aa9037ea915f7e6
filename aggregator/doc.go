// Package aggregator serves apiregistration.k8s.io: what API servers there are
// besides this one, and which group versions are theirs.
package aggregator
