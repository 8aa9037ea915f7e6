package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
)

const (
	policyWorkers = 5
	// discoveryRefreshInterval is how old the type checker's knowledge of resources may
	// become; kube-controller-manager's value.
	discoveryRefreshInterval = 30 * time.Second
)

// newPolicyStatus makes the controller that checks the types of
// ValidatingAdmissionPolicies. It takes all schemas from the server's OpenAPI
// documents, and so none while there is no policy; kube-controller-manager, which
// has the built-in ones compiled in, keeps tens of megabytes of them.
func newPolicyStatus(_ context.Context, t *controllerContext) (func(context.Context), error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(t.kube.Discovery()))
	c, err := validatingadmissionpolicystatus.NewController(
		t.informers.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		t.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: t.kube.Discovery()},
			RestMapper:     mapper,
		})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		var group wait.Group
		defer group.Wait()
		group.StartWithContext(ctx, func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, discoveryRefreshInterval)
		})
		c.Run(ctx, policyWorkers)
	}, nil
}
