package admission

import (
	"slices"

	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// newPlugins returns a registry of all plugins of kube-apiserver.
func newPlugins() *admission.Plugins {
	registry := admission.NewPlugins()
	genericapiserver.RegisterAllAdmissionPlugins(registry)
	options.RegisterAllAdmissionPlugins(registry)
	return registry
}

// allPlugins returns the names of the plugins in the order of the chain.
func allPlugins() []string { return options.AllOrderedPlugins }

// defaultPlugins returns the names of those that are on by default, in the same order. Several of
// them do nothing unless a feature gate is on too.
func defaultPlugins() []string {
	off := options.DefaultOffAdmissionPlugins()
	return slices.DeleteFunc(slices.Clone(allPlugins()), off.Has)
}
