package filters

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	authenticationv1 "k8s.io/api/authentication/v1"
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
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/component-base/featuregate"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/write"
)

// Config holds the dependencies of the chain. Options, Serializer, Authorizer,
// FeatureGate, MuxAndDiscoveryComplete, NonLongRunningRequests and WatchRequests are
// required.
type Config struct {
	Options *options.ServerRunOptions
	// Serializer encodes the Status of a rejected request in a format that the
	// client accepts.
	Serializer runtime.NegotiatedSerializer

	// Authenticator may be nil. Requests then have no user, and the authorizer
	// decides about them.
	Authenticator authenticator.Request
	APIAudiences  authenticator.Audiences
	// RequestHeader, if not nil, names the headers that are removed from
	// authenticated requests.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	Authorizer    authorizer.Authorizer

	// AuditBackend and AuditPolicy are nil when auditing is off.
	AuditBackend audit.Backend
	AuditPolicy  audit.PolicyRuleEvaluator

	// FlowControl is API priority and fairness. If it is nil, the limits of requests
	// in flight apply.
	FlowControl *FlowControl

	FeatureGate featuregate.FeatureGate
	// Tracer records spans; nil means no tracing.
	Tracer trace.TracerProvider

	// HTTP2 says that the listener speaks HTTP/2. GOAWAY exists only there.
	HTTP2 bool

	Lifecycle Lifecycle
}

// Lifecycle holds the lifecycle signals and request counters that the filters use. The
// names are those of k8s.io/apiserver/pkg/server/lifecycle_signals.go.
type Lifecycle struct {
	// MuxAndDiscoveryComplete is closed when every route is installed. Before that,
	// an unknown path is answered with 503 instead of 404: a garbage collector would
	// conclude from 404 that the resource does not exist.
	MuxAndDiscoveryComplete <-chan struct{}
	// NotAcceptingNewRequest is closed when the server stops accepting requests.
	// Watches end then if ShutdownWatchTerminationGracePeriod is set.
	NotAcceptingNewRequest <-chan struct{}
	// NonLongRunningRequests counts the requests that are not long-running.
	// WatchRequests counts the watches if ShutdownWatchTerminationGracePeriod is
	// set.
	NonLongRunningRequests serverfilters.RequestWaitGroup
	WatchRequests          serverfilters.RequestWaitGroup
}

// shutdownSignal adapts NotAcceptingNewRequest to the interface that upstream's watch
// handler reads from the request's context.
type shutdownSignal <-chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// NewRequestInfoResolver returns the parser of request paths. /api is the only prefix
// without a group.
func NewRequestInfoResolver() *request.RequestInfoFactory {
	return &request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
}

// NewLongRunningRequestCheck returns the check for long-running requests: watches and
// streams. It is kube-apiserver's.
func NewLongRunningRequestCheck() request.LongRunningRequestCheck {
	return serverfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
}

// Chain returns a function that wraps a handler in the chain of filters. The functions
// below add filters from the inside out: a request passes the filter that is added last
// first. The order is that of upstream's DefaultBuildHandlerChain.
func Chain(cfg Config) func(http.Handler) http.Handler {
	c := chain{Config: cfg, tracer: cfg.Tracer, longRunning: NewLongRunningRequestCheck(),
		requestInfo: NewRequestInfoResolver()}
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

// withLatencyTracking adds filter and records its latency under name.
func (c *chain) withLatencyTracking(
	name string, handler http.Handler, filter func(http.Handler) http.Handler,
) http.Handler {
	handler = filterlatency.TrackCompleted(handler)
	handler = filter(handler)
	return filterlatency.TrackStarted(handler, c.tracer, name)
}

// addAuthorizationFilters adds the filters that need the user: authorization, priority
// and fairness, impersonation and auditing.
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
	handler = withRealUser(handler)
	return c.withLatencyTracking("audit", handler, func(h http.Handler) http.Handler {
		return endpointfilters.WithAudit(h, c.AuditBackend, c.AuditPolicy, c.longRunning)
	})
}

// addAuthenticationFilters adds authentication. Tracing comes after it, so that only
// authenticated clients can influence sampling.
func (c *chain) addAuthenticationFilters(handler http.Handler) http.Handler {
	failed := endpointfilters.Unauthorized(c.Serializer)
	failed = endpointfilters.WithFailedAuthenticationAudit(failed, c.AuditBackend, c.AuditPolicy)
	failed = filterlatency.TrackCompleted(failed)

	if c.Tracer != nil {
		handler = endpointfilters.WithTracing(handler, c.Tracer)
	}
	return c.withLatencyTracking("authentication", handler, func(h http.Handler) http.Handler {
		return endpointfilters.WithAuthentication(h, c.Authenticator, failed, c.APIAudiences, c.RequestHeader)
	})
}

// addTimeoutFilters adds the filters that bound the duration of a request and count it for
// the shutdown.
func (c *chain) addTimeoutFilters(handler http.Handler) http.Handler {
	handler = serverfilters.WithCORS(handler, c.Options.CorsAllowedOriginList, nil, nil, nil, "true")
	// The timeout handler serializes header writes, so the recorder must be inside it.
	handler = endpointfilters.WithWarningRecorder(handler)
	handler = withHandlerStack(handler, c.longRunning)
	handler = serverfilters.WithTimeoutForNonLongRunningRequests(handler, c.longRunning)
	handler = endpointfilters.WithRequestDeadline(handler, c.AuditBackend, c.AuditPolicy,
		c.longRunning, c.Serializer, c.Options.RequestTimeout)
	handler = serverfilters.WithWaitGroup(handler, c.longRunning, c.Lifecycle.NonLongRunningRequests)
	if c.Options.ShutdownWatchTerminationGracePeriod > 0 {
		handler = serverfilters.WithWatchTerminationDuringShutdown(handler,
			shutdownSignal(c.Lifecycle.NotAcceptingNewRequest), c.Lifecycle.WatchRequests)
	}
	if c.HTTP2 && c.Options.GoawayChance > 0 {
		handler = serverfilters.WithProbabilisticGoaway(handler, c.Options.GoawayChance)
	}
	handler = endpointfilters.WithCacheControl(handler)
	handler = serverfilters.WithHSTS(handler, c.Options.HSTSDirectives)
	if c.Options.ShutdownSendRetryAfter {
		handler = serverfilters.WithRetryAfter(handler, c.Lifecycle.NotAcceptingNewRequest)
	}
	return handler
}

// addOuterFilters adds the filters that every request passes first.
func (c *chain) addOuterFilters(handler http.Handler) http.Handler {
	handler = serverfilters.WithHTTPLogging(handler)
	handler = endpointfilters.WithLatencyTrackers(handler)
	if c.FeatureGate.Enabled(features.APIServingWithRoutine) {
		handler = routine.WithRoutine(handler, c.longRunning)
	}
	handler = endpointfilters.WithRequestInfo(handler, c.requestInfo)
	handler = endpointfilters.WithRequestReceivedTimestamp(handler)
	handler = endpointfilters.WithMuxAndDiscoveryComplete(handler, c.Lifecycle.MuxAndDiscoveryComplete)
	handler = serverfilters.WithPanicRecovery(handler, c.requestInfo)
	handler = endpointfilters.WithAuditInit(handler)
	return withFilterStack(handler)
}

// withRealUser keeps the authenticated user of a request that impersonates another one for the
// store, which records both. The next filter puts the impersonated user into its place.
func withRealUser(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			if who, ok := request.UserFrom(req.Context()); ok {
				req = req.WithContext(write.WithRealUser(req.Context(), who.GetName()))
			}
		}
		handler.ServeHTTP(w, req)
	})
}

// withFilterStack grows the stack of the connection's goroutine, which runs the filters
// up to the timeout.
func withFilterStack(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.GrowForFilters()
		handler.ServeHTTP(w, r)
	})
}

// withHandlerStack grows the stack of the timeout filter's goroutine, which runs the
// filters inside the timeout and the handler of the verb. It does not grow the stacks of
// long-running requests: thousands of idle watches would keep that memory.
func withHandlerStack(handler http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && !longRunning(r, info) {
			handlers.GrowForHandler()
		}
		handler.ServeHTTP(w, r)
	})
}

// noTracing is the tracer provider of a server without tracing. OpenTelemetry's no-op
// tracer copies and compares span contexts at each start of a span. The chain starts a
// span for several filters, so that costs several microseconds a request. noTracing does
// nothing.
type noTracing struct{ noop.TracerProvider }

func (noTracing) Tracer(string, ...trace.TracerOption) trace.Tracer { return noTracer{} }

type noTracer struct{ noop.Tracer }

func (noTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, noop.Span{}
}
