package controllers

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/tools/cache"
)

// gatedFactory has the informers of the factory below it for one constructor. The handlers that
// the constructor adds wait at the gate.
//
// Invariant: each method that returns informers asks InformerFor of this factory for them. A method
// of the embedded factory would ask its own, without the gate.
type gatedFactory struct {
	informers.SharedInformerFactory
	gate gate
}

// InformerFor implements informers.SharedInformerFactory.
func (f gatedFactory) InformerFor(object runtime.Object, newInformer internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return gatedInformer{f.SharedInformerFactory.InformerFor(object, newInformer), f.gate}
}

// ForResource implements informers.SharedInformerFactory. No controller with a gate needs it.
func (f gatedFactory) ForResource(schema.GroupVersionResource) (informers.GenericInformer, error) {
	return nil, errors.ErrUnsupported
}

func (f gatedFactory) Apps() apps.Interface                 { return apps.New(f, "", nil) }
func (f gatedFactory) Autoscaling() autoscaling.Interface   { return autoscaling.New(f, "", nil) }
func (f gatedFactory) Batch() batch.Interface               { return batch.New(f, "", nil) }
func (f gatedFactory) Certificates() certificates.Interface { return certificates.New(f, "", nil) }
func (f gatedFactory) Coordination() coordination.Interface { return coordination.New(f, "", nil) }
func (f gatedFactory) Core() core.Interface                 { return core.New(f, "", nil) }
func (f gatedFactory) Discovery() discovery.Interface       { return discovery.New(f, "", nil) }
func (f gatedFactory) Events() events.Interface             { return events.New(f, "", nil) }
func (f gatedFactory) Extensions() extensions.Interface     { return extensions.New(f, "", nil) }
func (f gatedFactory) Flowcontrol() flowcontrol.Interface   { return flowcontrol.New(f, "", nil) }
func (f gatedFactory) Lifecycle() lifecycle.Interface       { return lifecycle.New(f, "", nil) }
func (f gatedFactory) Networking() networking.Interface     { return networking.New(f, "", nil) }
func (f gatedFactory) Node() node.Interface                 { return node.New(f, "", nil) }
func (f gatedFactory) Policy() policy.Interface             { return policy.New(f, "", nil) }
func (f gatedFactory) Rbac() rbac.Interface                 { return rbac.New(f, "", nil) }
func (f gatedFactory) Resource() resource.Interface         { return resource.New(f, "", nil) }
func (f gatedFactory) Scheduling() scheduling.Interface     { return scheduling.New(f, "", nil) }
func (f gatedFactory) Storage() storage.Interface           { return storage.New(f, "", nil) }

func (f gatedFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

func (f gatedFactory) Internal() apiserverinternal.Interface {
	return apiserverinternal.New(f, "", nil)
}

func (f gatedFactory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
