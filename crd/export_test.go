package crd

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"

	"byre/crd/instances"
)

// Cleaner is the interface by which the finalizer deletes the instances of a definition.
func (s *Server) Cleaner(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	crd = crd.DeepCopy()
	instances.Strip(crd)
	return cleaners{s.resolver, s.calls}.GetCustomResourceListerCollectionDeleter(crd)
}
