// Package admission puts together the chain of admission plugins that every
// write passes between decoding and storing.
//
// The plugins are upstream's, all of those that kube-apiserver knows, in its order
// and with its choice of which are on (package k8s.io/kubernetes/pkg/kubeapiserver/
// options, not imported because it brings a whole server with it; a test reads that
// package's source and compares). Quota and the webhooks come last, because they must
// see what the others made of an object.
//
// What differs from upstream is what the plugins are given: Services that webhooks
// are reached by are looked up when needed rather than kept decoded, and OpenAPI is
// not built before the first MutatingAdmissionPolicy exists (see openapi.go).
//
// New registers informers with the caller's factory and starts nothing, except that
// upstream's policy plugins begin with their construction: they end with the context
// given to New, and wait for the informers until then. Requests that arrive before
// the informers are in sync wait shortly, or are let through by plugins that can
// look up what they need (NamespaceLifecycle).
package admission
