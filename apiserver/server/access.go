package server

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/request/union"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/access/admission"

	"byre/apiserver/access/auth"

	"byre/apiserver/access/filters"

	"byre/apiserver/process"
	"byre/apiserver/query"
)

// access decides which requests are served: authentication, authorization, audit, admission, and
// priority and fairness.
type access struct {
	auth      *auth.Auth
	audit     *admission.Audit
	admission *admission.Admission
	flow      *filters.FlowControl // nil without priority and fairness
}

// newAccess makes its parts. ctx ends the goroutines that their constructors start.
func newAccess(ctx context.Context, o Completed, n network, s *storageBackend, c clients) (*access, error) {
	authenticated, err := auth.New(ctx, auth.Config{
		Options:         o.Auth,
		ServerID:        n.id,
		Client:          c.kube,
		Reader:          c.reader,
		Informers:       c.informers,
		RBAC:            auth.NewRBAC(s.getter.Lookup, s.Feed),
		ExternalAddress: n.address,
		Dial:            n.egress.controlPlane,
		EgressSelector:  n.egress.selector,
	})
	if err != nil {
		return nil, err
	}
	audited, err := admission.NewAudit(o.Audit, n.egress.selector)
	if err != nil {
		return nil, err
	}
	plugins := o.Admission
	if s.fork != nil {
		plugins = withoutWebhooks(*plugins)
	}
	admitted, err := admission.New(ctx, admission.Config{
		Options:                           plugins,
		ServerID:                          n.id,
		Client:                            c.kube,
		Reader:                            c.reader,
		DynamicClient:                     c.dynamic,
		Informers:                         c.informers,
		Authorizer:                        authenticated.Authorizer,
		FeatureGate:                       utilfeature.DefaultFeatureGate,
		APIResourceConfigSource:           o.APIResources,
		EffectiveVersion:                  effectiveVersion(),
		ServiceResolver:                   c.resolver,
		AuthenticationInfoResolverWrapper: c.webhooks,
	})
	if err != nil {
		return nil, err
	}
	var flow *filters.FlowControl
	if o.Features.EnablePriorityAndFairness {
		flow = filters.NewFlowControl(o.Generic.MaxRequestsInFlight+o.Generic.MaxMutatingRequestsInFlight, c.informers, c.kube, s.getter.Stats,
			schema.GroupResource{Group: query.GroupName, Resource: "queries"})
	}
	return &access{authenticated, audited, admitted, flow}, nil
}

// filterConfig configures the filters of requests of a lifecycle.
func (a *access) filterConfig(o Completed, tracer tracing.TracerProvider, l filters.Lifecycle) filters.Config {
	config := filters.Config{
		Options:       o.Generic,
		Serializer:    legacyscheme.Codecs,
		Authenticator: process.LoopbackAuthenticator(),
		APIAudiences:  a.auth.APIAudiences,
		RequestHeader: a.auth.RequestHeader,
		Authorizer:    a.auth.Authorizer,
		AuditBackend:  a.audit.Backend,
		AuditPolicy:   a.audit.Policy,
		FlowControl:   a.flow,
		FeatureGate:   utilfeature.DefaultFeatureGate,
		HTTP2:         !o.Serving.DisableHTTP2,
		Tracer:        tracer,
		Lifecycle:     l,
	}
	if a.auth.Authenticator != nil {
		config.Authenticator = union.New(process.LoopbackAuthenticator(), a.auth.Authenticator)
	}
	return config
}
