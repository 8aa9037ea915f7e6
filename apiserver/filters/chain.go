package filters

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	endpointfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/component-base/featuregate"
)

// Config is what the chain is made of. Options, Serializer, Authorizer,
// FeatureGate, Installed, Requests and Watches are required.
type Config struct {
	Options *Options
	// Serializer renders refusals as Status in the format the client accepts.
	Serializer runtime.NegotiatedSerializer

	// Authenticator may be nil: then every request passes without a user, and
	// authorization refuses it unless told otherwise.
	Authenticator authenticator.Request
	APIAudiences  authenticator.Audiences
	// RequestHeader, when set, has its headers stripped from requests that
	// have been authenticated.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	Authorizer    authorizer.Authorizer

	// AuditBackend and AuditPolicy are nil when auditing is off.
	AuditBackend audit.Backend
	AuditPolicy  audit.PolicyRuleEvaluator

	// FlowControl, when nil, leaves the plain in-flight limits.
	FlowControl *FlowControl

	FeatureGate featuregate.FeatureGate
	// Tracer, when nil, leaves tracing out of the chain.
	Tracer trace.TracerProvider

	// HTTP2 says whether the listener speaks HTTP/2, without which there is
	// nothing to send GOAWAY on.
	HTTP2 bool

	Lifecycle
}

// Lifecycle is what the chain must know of the server's life.
type Lifecycle struct {
	// MuxAndDiscoveryComplete is closed once every route is installed: until then an unknown
	// path is answered with 503 rather than 404, lest a garbage collector take
	// a resource that isn't there yet for one that is gone.
	MuxAndDiscoveryComplete <-chan struct{}
	// NotAcceptingNewRequest is closed when no new request is accepted any more: watches end
	// then (only if ShutdownWatchTerminationGracePeriod is set).
	NotAcceptingNewRequest <-chan struct{}
	// NonLongRunningRequests counts the requests that are not long-running, Watches the
	// watches (only if ShutdownWatchTerminationGracePeriod is set).
	NonLongRunningRequests serverfilters.RequestWaitGroup
	WatchRequests          serverfilters.RequestWaitGroup
}

// shutdownSignal adapts a Lifecycle to what watch handlers look for.
type shutdownSignal <-chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// NewRequestInfoResolver tells the parts of a request's path: /api is the only
// prefix without a group.
func NewRequestInfoResolver() *request.RequestInfoFactory {
	return &request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
}

// NewLongRunningRequestCheck tells requests that have no natural end: watches and streams.
func NewLongRunningRequestCheck() request.LongRunningRequestCheck {
	return serverfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
}

// Chain returns the gate: given a handler, it returns one that is guarded.
//
// Filters are added from the inside out, so the last one added meets a request
// first. The order is upstream's DefaultBuildHandlerChain, filter by filter.
func Chain(cfg Config) func(http.Handler) http.Handler {
	c := chain{Config: cfg, tracer: cfg.Tracer, longRunning: NewLongRunningRequestCheck(), requestInfo: NewRequestInfoResolver()}
	if c.tracer == nil {
		c.tracer = noTracing{}
	}
	return func(handler http.Handler) http.Handler {
		return c.addOuterFilters(c.addTimeoutFilters(c.addAuthenticationFilters(c.addAuthorizationFilters(handler))))
	}
}

type chain struct {
	Config
	tracer      trace.TracerProvider
	longRunning request.LongRunningRequestCheck
	requestInfo *request.RequestInfoFactory
}

// withLatencyTracking times one filter under its name for the latency metrics.
func (c *chain) withLatencyTracking(name string, handler http.Handler, filter func(http.Handler) http.Handler) http.Handler {
	handler = filterlatency.TrackCompleted(handler)
	handler = filter(handler)
	return filterlatency.TrackStarted(handler, c.tracer, name)
}

// addAuthorizationFilters is the inner part, where the user is known: may they do this, and
// may they do it now?
func (c *chain) addAuthorizationFilters(handler http.Handler) http.Handler {
	handler = c.withLatencyTracking("authorization", handler, func(h http.Handler) http.Handler {
		return endpointfilters.WithAuthorization(h, c.Authorizer, c.Serializer)
	})
	if c.FlowControl != nil {
		handler = c.withLatencyTracking("priorityandfairness", handler, func(h http.Handler) http.Handler {
			return serverfilters.WithPriorityAndFairness(h, c.longRunning, c.FlowControl.controller,
				c.FlowControl.estimator, c.Options.RequestTimeout/4)
		})
	} else {
		handler = serverfilters.WithMaxInFlightLimit(handler,
			c.Options.MaxRequestsInFlight, c.Options.MaxMutatingRequestsInFlight, c.longRunning)
	}
	if c.FeatureGate.Enabled(features.ConstrainedImpersonation) {
		handler = c.withLatencyTracking("constrainedimpersonation", handler, func(h http.Handler) http.Handler {
			return impersonation.WithConstrainedImpersonation(h, c.Authorizer, c.Serializer)
		})
	} else {
		handler = c.withLatencyTracking("impersonation", handler, func(h http.Handler) http.Handler {
			return impersonation.WithImpersonation(h, c.Authorizer, c.Serializer)
		})
	}
	return c.withLatencyTracking("audit", handler, func(h http.Handler) http.Handler {
		return endpointfilters.WithAudit(h, c.AuditBackend, c.AuditPolicy, c.longRunning)
	})
}

// addAuthenticationFilters finds out who is asking. Tracing stands behind it so that only
// those who are known can influence sampling.
func (c *chain) addAuthenticationFilters(handler http.Handler) http.Handler {
	failed := endpointfilters.Unauthorized(c.Serializer)
	failed = endpointfilters.WithFailedAuthenticationAudit(failed, c.AuditBackend, c.AuditPolicy)
	failed = filterlatency.TrackCompleted(failed)

	if c.Tracer != nil && c.FeatureGate.Enabled(features.APIServerTracing) {
		handler = endpointfilters.WithTracing(handler, c.Tracer)
	}
	return c.withLatencyTracking("authentication", handler, func(h http.Handler) http.Handler {
		return endpointfilters.WithAuthentication(h, c.Authenticator, failed, c.APIAudiences, c.RequestHeader)
	})
}

// addTimeoutFilters bounds how long a request may take, and lets a shutdown wait for it.
func (c *chain) addTimeoutFilters(handler http.Handler) http.Handler {
	handler = serverfilters.WithCORS(handler, c.Options.CORSAllowedOrigins, nil, nil, nil, "true")
	// The timeout handler serializes header writes, so the recorder must be inside it.
	handler = endpointfilters.WithWarningRecorder(handler)
	handler = withHandlerStack(handler, c.longRunning)
	handler = serverfilters.WithTimeoutForNonLongRunningRequests(handler, c.longRunning)
	handler = endpointfilters.WithRequestDeadline(handler, c.AuditBackend, c.AuditPolicy,
		c.longRunning, c.Serializer, c.Options.RequestTimeout)
	handler = serverfilters.WithWaitGroup(handler, c.longRunning, c.NonLongRunningRequests)
	if c.Options.ShutdownWatchTerminationGracePeriod > 0 {
		handler = serverfilters.WithWatchTerminationDuringShutdown(handler, shutdownSignal(c.NotAcceptingNewRequest), c.WatchRequests)
	}
	if c.HTTP2 && c.Options.GoawayChance > 0 {
		handler = serverfilters.WithProbabilisticGoaway(handler, c.Options.GoawayChance)
	}
	handler = endpointfilters.WithCacheControl(handler)
	handler = serverfilters.WithHSTS(handler, c.Options.HSTSDirectives)
	if c.Options.ShutdownSendRetryAfter {
		handler = serverfilters.WithRetryAfter(handler, c.NotAcceptingNewRequest)
	}
	return handler
}

// addOuterFilters is what every request meets first, whoever sent it.
func (c *chain) addOuterFilters(handler http.Handler) http.Handler {
	handler = serverfilters.WithHTTPLogging(handler)
	handler = endpointfilters.WithLatencyTrackers(handler)
	if c.FeatureGate.Enabled(features.APIServingWithRoutine) {
		handler = routine.WithRoutine(handler, c.longRunning)
	}
	handler = endpointfilters.WithRequestInfo(handler, c.requestInfo)
	handler = endpointfilters.WithRequestReceivedTimestamp(handler)
	handler = endpointfilters.WithMuxAndDiscoveryComplete(handler, c.MuxAndDiscoveryComplete)
	handler = serverfilters.WithPanicRecovery(handler, c.requestInfo)
	handler = endpointfilters.WithAuditInit(handler)
	return withFilterStack(handler)
}
