// Package admission builds the chain of admission plugins that every write passes
// after it is decoded and before it is stored.
//
// The plugins are upstream's: all plugins of kube-apiserver, in kube-apiserver's
// order, with the same plugins enabled by default.
//
// Two plugin dependencies differ from upstream's:
//   - Pods are read from the watch cache on demand; upstream keeps every Pod decoded
//     in an informer (pods.go).
//   - The plugins of policies and webhooks are skipped while no policy and no
//     configuration of a webhook exists (configured.go).
//
// The caller starts the informer factory and calls Run. New registers informers with
// the factory. New starts no goroutine of its own, but the constructors of upstream's
// policy plugins do; those goroutines end with the context given to New. A request
// that arrives before the informers have synced waits for them for a few seconds.
package admission
