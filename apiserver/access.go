package apiserver

import (
	"context"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"

	"byre/apiserver/access/admission"
	"byre/apiserver/access/audit"
	"byre/apiserver/access/auth"
	"byre/apiserver/access/auth/rbac"
	"byre/apiserver/access/filters"
)

// buildAccess makes authentication, authorization, audit, admission, and priority and
// fairness. ctx ends the goroutines that their constructors start.
func (s *Server) buildAccess(ctx context.Context, resolver webhook.ServiceResolver, webhooks webhook.AuthenticationInfoResolverWrapper) error {
	o := s.config.Options
	var err error
	s.auth, err = auth.New(ctx, auth.Config{
		Options:         o.Auth,
		ServerID:        s.id,
		Client:          s.clients.kube,
		Reader:          s.clients.reader,
		Informers:       s.clients.informers,
		RBAC:            rbac.New(s.getter.Lookup, s.core.feed),
		ExternalAddress: s.externalAddress(),
		Egress:          s.egress.selector,
	})
	if err != nil {
		return err
	}
	if s.audit, err = audit.New(o.Audit, s.egress.controlPlane); err != nil {
		return err
	}
	plugins := o.Admission
	if s.core.fork != nil {
		plugins = withoutWebhooks(*plugins)
	}
	s.admission, err = admission.New(ctx, admission.Config{
		Options:                           plugins,
		ServerID:                          s.id,
		Client:                            s.clients.kube,
		Reader:                            s.clients.reader,
		DynamicClient:                     s.clients.dynamic,
		Informers:                         s.clients.informers,
		Authorizer:                        s.auth.Authorizer,
		FeatureGate:                       utilfeature.DefaultFeatureGate,
		APIResourceConfigSource:           s.config.Options.APIResources,
		EffectiveVersion:                  effectiveVersion(),
		ServiceResolver:                   resolver,
		AuthenticationInfoResolverWrapper: webhooks,
	})
	if err != nil {
		return err
	}
	s.flow = filters.NewFlowControl(o.Filters, s.clients.informers, s.clients.kube, s.getter.Stats)
	return nil
}
