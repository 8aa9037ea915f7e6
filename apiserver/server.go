package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"byre/apiserver/admission"
	"byre/apiserver/audit"
	"byre/apiserver/auth"
	"byre/apiserver/auth/rbac"
	"byre/apiserver/builtin"
	"byre/apiserver/builtin/bootstrap"
	"byre/apiserver/controllers"
	"byre/apiserver/controlplane"
	"byre/apiserver/discovery"
	"byre/apiserver/filters"
	"byre/apiserver/health"
	"byre/apiserver/lifecycle"
	"byre/apiserver/loopback"
	"byre/apiserver/objectstore"
	"byre/apiserver/pki"
	"byre/apiserver/routing"
)

// Server is everything that runs, made but not started.
type Server struct {
	config *completed
	// id is the name of this server among those of a cluster.
	id       string
	core     *core
	listener net.Listener
	http     *http.Server
	certs    *certificates
	// insecure and plain are nil without --insecure-port.
	insecure net.Listener
	plain    *http.Server
	// endRequests ends the contexts of all requests that came over the listener.
	endRequests context.CancelFunc
	// endBase ends what upstream's constructors started.
	endBase context.CancelFunc

	Shared
	transport   *loopback.Transport
	egress      *egressselector.EgressSelector // nil without the flag
	tracer      tracing.TracerProvider         // nil without the flag
	encryption  encryption
	getter      *objectstore.Getter
	auth        *auth.Auth
	audit       *audit.Audit
	admission   *admission.Admission
	builtin     *builtin.Builtin
	bootstrap   *bootstrap.Bootstrap
	flow        *filters.FlowControl
	controllers *controllers.Runner
	// controlplane is what every server runs, whichever controllers are on.
	controlplane *controlplane.ControlPlane
	chained      []ChainedServer

	signals *lifecycle.Signals
	// requests counts requests over the listener that are not long-running,
	// watches the watches.
	requests *waitgroup.SafeWaitGroup
	watches  *waitgroup.RateLimitedSafeWaitGroup
	// readyChecks are those of /readyz.
	readyChecks []health.Checker
}

// New opens the store, binds the port and joins the parts. Nothing of what it
// makes runs before Run, except what upstream's constructors start, which ends
// with Run; a Server that is not Run must be closed by Close.
func New(ctx context.Context, config CompletedConfig) (*Server, error) {
	s := &Server{
		config:    config.completed,
		signals:   lifecycle.NewSignals(),
		requests:  new(waitgroup.SafeWaitGroup),
		watches:   new(waitgroup.RateLimitedSafeWaitGroup),
		transport: new(loopback.Transport),
	}
	var err error
	if s.id, err = newID(); err != nil {
		return nil, err
	}
	// What upstream starts with construction must go on while the server drains.
	base, endBase := context.WithCancel(context.WithoutCancel(ctx))
	s.endBase = endBase
	if err := s.build(ctx, base); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newID is the name of this server: upstream's, by the host, where servers tell
// one another of themselves, and otherwise one of its own.
func newID() (string, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) {
		return "byre-" + uuid.NewString(), nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	return controlplane.ServerID(hostname)
}

// Close releases what New took, for a server that is not Run.
func (s *Server) Close() error {
	s.endBase()
	if s.builtin != nil {
		s.builtin.Close()
	}
	if s.core != nil {
		s.core.close()
	}
	closeTracer(s.tracer)
	return errors.Join(closeListener(s.listener), closeListener(s.insecure))
}

// Address is the host and port that the server listens on.
func (s *Server) Address() net.Addr { return s.listener.Addr() }

// build makes the parts. ctx bounds the building, base the life of what upstream
// starts meanwhile.
func (s *Server) build(ctx, base context.Context) error {
	var err error
	if s.egress, err = readEgressSelector(s.config.Options.Cluster.EgressSelectorFile); err != nil {
		return err
	}
	controlPlane, err := egressDialer(s.egress, egressselector.ControlPlane)
	if err != nil {
		return err
	}
	if s.tracer, err = newTracer(base, s.config.Options.TracingFile, s.id, controlPlane); err != nil {
		return err
	}
	if s.core, err = openCore(ctx, s.config); err != nil {
		return err
	}
	// Bound before the rest: a port in use is found at once, and clients that
	// come early wait in the listener's queue instead of being refused.
	if s.listener, err = s.config.Options.Serving.listen(ctx); err != nil {
		return err
	}
	if s.insecure, err = s.config.Options.Serving.listenInsecure(ctx); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return err
	}
	files, err := s.ensurePKI(port)
	if err != nil {
		return err
	}
	own, err := readTrust(s.config.Options.Auth.Authentication)
	if err != nil {
		return err
	}
	if err := ensureTrust(ctx, s.core.database.Driver, own, s.config.certDir, s.config.Options.Store.AcceptNewKeys); err != nil {
		return err
	}
	address := net.JoinHostPort(s.config.advertise.String(), port)
	registry := discovery.NewRegistry(address, discovery.Rule{
		IPRange: s.config.primary,
		Address: net.JoinHostPort(s.config.serviceIP.String(), "443"), // the port of the kubernetes Service
	})
	stores := func(gr schema.GroupResource) *objectstore.Store { return s.getter.Lookup(gr) }
	if s.Shared, err = newShared(s.core, s.transport, registry, stores, s.egress, s.tracer); err != nil {
		return err
	}
	if s.encryption, err = newEncryption(base, s.config.Options.Store, s.id); err != nil {
		return err
	}
	s.Storage.Transformers = s.encryption.transformers
	s.Storage.DeleteCollectionWorkers = s.config.Options.Store.DeleteCollectionWorkers
	s.Storage.NoGarbageCollection = !s.config.Options.Store.GarbageCollection
	dial, err := egressDialer(s.egress, egressselector.Cluster)
	if err != nil {
		return err
	}
	s.Aggregation = s.config.Options.Cluster.aggregation(files, dial)
	if s.tracer != nil {
		s.Aggregation.Trace = tracing.WrapperFor(s.tracer)
	}
	if s.Aggregation.Self, err = url.Parse(s.config.localURL(port)); err != nil {
		return err
	}
	s.Services = routing.NewResolver(s.Direct, s.Aggregation.RouteToEndpoints, s.Aggregation.Self)
	s.getter = objectstore.NewRESTOptionsGetter(s.Storage)
	if err := s.buildAccess(base, address); err != nil {
		return err
	}
	if err := s.buildBuiltin(files); err != nil {
		return err
	}
	if s.bootstrap, err = s.newBootstrap(port); err != nil {
		return err
	}
	if s.controlplane, err = s.newControlPlane(port); err != nil {
		return err
	}
	chain, err := s.buildChain()
	if err != nil {
		return err
	}
	if s.controllers, err = s.newControllers(files); err != nil {
		return err
	}
	return s.buildHTTP(ctx, chain, files)
}

// ensurePKI brings the certificates into order and says what was done.
func (s *Server) ensurePKI(port string) (pki.Files, error) {
	files, report, err := pki.Ensure(pki.Request{
		Dir:        s.config.certDir,
		Kubeconfig: s.config.kubeconfig(),
		Server:     s.config.localURL(port),
		Hosts:      s.config.hosts(),
		Now:        time.Now(),
	})
	if err != nil {
		return files, err
	}
	if len(report.Made) > 0 {
		klog.InfoS("Wrote certificates", "directory", s.config.certDir, "files", report.Made)
	}
	if len(report.Stale) > 0 {
		klog.InfoS("Certificates need renewal, but the key of their authority is not here", "directory", s.config.certDir, "files", report.Stale)
	}
	return files, nil
}

// buildAccess makes what decides who may do what.
func (s *Server) buildAccess(ctx context.Context, address string) error {
	o := s.config.Options
	var err error
	s.auth, err = auth.New(ctx, auth.Config{
		Options:         o.Auth,
		ServerID:        s.id,
		Client:          s.Direct,
		Informers:       s.Informers,
		RBAC:            rbac.New(s.getter.Lookup, s.core.feed),
		ExternalAddress: address,
		Egress:          s.egress,
	})
	if err != nil {
		return err
	}
	dial, err := egressDialer(s.egress, egressselector.ControlPlane)
	if err != nil {
		return err
	}
	if s.audit, err = audit.New(o.Audit, dial); err != nil {
		return err
	}
	s.admission, err = admission.New(ctx, admission.Config{
		Options:                           o.Admission,
		ServerID:                          s.id,
		Client:                            s.Direct,
		DynamicClient:                     s.Dynamic,
		Informers:                         s.Informers,
		Authorizer:                        s.auth.Authorizer,
		FeatureGate:                       utilfeature.DefaultFeatureGate,
		APIResourceConfigSource:           s.config.resources,
		EffectiveVersion:                  s.Effective,
		ServiceResolver:                   s.Services,
		AuthenticationInfoResolverWrapper: s.Webhooks,
	})
	if err != nil {
		return err
	}
	s.flow = filters.NewFlowControl(o.Filters, s.Informers, s.Client, s.getter.Stats)
	return nil
}

// buildBuiltin makes the storages of the built-in groups.
func (s *Server) buildBuiltin(files pki.Files) error {
	o := s.config.Options
	kubelet := *o.Cluster.Kubelet
	if kubelet.TLSClientConfig.CertFile == "" {
		kubelet.TLSClientConfig.CertFile, kubelet.TLSClientConfig.KeyFile = files.KubeletClientCert, files.KubeletKey
	}
	if s.egress != nil {
		kubelet.Lookup = s.egress.Lookup
	}
	var err error
	s.builtin, err = builtin.New(builtin.Config{
		RESTOptions:   s.getter,
		Resources:     s.config.resources,
		Emulation:     o.Emulation.of(s.Effective),
		Client:        s.Client,
		Informers:     s.Informers,
		Authenticator: s.auth.Authenticator,
		APIAudiences:  s.auth.APIAudiences,
		Authorizer:    s.auth.Authorizer,
		RuleResolver:  s.auth.RuleResolver,
		Tokens: builtin.Tokens{
			Issuer:                s.auth.TokenIssuer.Generator,
			MaxExpiration:         s.auth.TokenIssuer.MaxExpiration,
			ExtendExpiration:      s.auth.TokenIssuer.ExtendExpiration,
			MaxExtendedExpiration: s.auth.TokenIssuer.MaxExtendedExpiration,
		},
		Services: builtin.Services{
			ClusterIPRange:          s.config.primary,
			SecondaryClusterIPRange: s.config.secondary,
			NodePortRange:           o.Cluster.NodePortRange,
		},
		EventTTL: o.Cluster.EventTTL,
		Kubelet:  &kubelet,

		ProxyTransport: proxyTransport(s.Aggregation.Dial),
		StoreReady:     s.core.checkDatabase,
		Logger:         klog.Background(),
	})
	return err
}

// newBootstrap makes what writes the objects that every cluster has.
func (s *Server) newBootstrap(port string) (*bootstrap.Bootstrap, error) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	config := bootstrap.Config{
		Client:       s.Client,
		Resources:    s.config.resources,
		ServiceCIDRs: []net.IPNet{s.config.primary},
		Service: bootstrap.Service{
			ClusterIP:        s.config.serviceIP,
			AdvertiseAddress: s.config.endpoint(),
			AdvertisePort:    number,
			NodePort:         s.config.Options.Cluster.ServiceNodePort,
		},
		Ready:  s.signals.HasBeenReady.Signaled(),
		Trust:  s.trust(),
		Logger: klog.Background(),
	}
	if s.config.secondary.IP != nil {
		config.ServiceCIDRs = append(config.ServiceCIDRs, s.config.secondary)
	}
	if s.core.database.Shared {
		if config.Replicas, err = bootstrap.StoredReplicas(s.getter, replicaTTL); err != nil {
			return nil, err
		}
	}
	return bootstrap.New(config)
}

// replicaTTL is how long a server that is gone stays among the endpoints of the
// Service "kubernetes"; kube-apiserver's value.
const replicaTTL = 15 * time.Second

// trust is what servers behind this one need to know to believe it.
func (s *Server) trust() *clusterauthenticationtrust.ClusterAuthenticationInfo {
	trust := &clusterauthenticationtrust.ClusterAuthenticationInfo{ClientCA: s.auth.ClientCA}
	if h := s.auth.RequestHeader; h != nil {
		trust.RequestHeaderCA = h.CAContentProvider
		trust.RequestHeaderUsernameHeaders = h.UsernameHeaders
		trust.RequestHeaderUIDHeaders = h.UIDHeaders
		trust.RequestHeaderGroupHeaders = h.GroupHeaders
		trust.RequestHeaderExtraHeaderPrefixes = h.ExtraHeaderPrefixes
		trust.RequestHeaderAllowedNames = h.AllowedClientNames
	}
	return trust
}

// buildHTTP puts the filters before the chain and makes the HTTP server.
func (s *Server) buildHTTP(ctx context.Context, chain http.Handler, files pki.Files) error {
	serving := &s.config.Options.Serving
	// The server's own requests pass the same filters, but are neither counted
	// nor turned away when it drains: its controllers stop after its clients.
	never := make(chan struct{})
	s.transport.Serve(filters.Chain(s.filterConfig(filters.Lifecycle{
		Installed:    s.signals.MuxAndDiscoveryComplete.Signaled(),
		NotAccepting: never,
		Requests:     new(waitgroup.SafeWaitGroup),
		Watches:      new(waitgroup.SafeWaitGroup),
	}))(chain))

	base, err := serving.tlsConfig()
	if err != nil {
		return err
	}
	certFile, keyFile := files.ServingCert, files.ServingKey
	if serving.CertFile != "" {
		certFile, keyFile = serving.CertFile, serving.KeyFile
	}
	if s.certs, err = newCertificates(base, certFile, keyFile, s.auth.ClientCAs(), serving.SNICertKeys); err != nil {
		return err
	}
	base.GetConfigForClient = s.certs.dynamic.GetConfigForClient
	life := filters.Lifecycle{
		Installed:    s.signals.MuxAndDiscoveryComplete.Signaled(),
		NotAccepting: s.signals.NotAcceptingNewRequest.Signaled(),
		Requests:     s.requests,
		Watches:      s.watches,
	}
	if s.http, err = serving.httpServer(filters.Chain(s.filterConfig(life))(chain), base); err != nil {
		return err
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	s.endRequests = endRequests
	s.http.BaseContext = func(net.Listener) context.Context { return requests }
	return s.buildInsecure(chain, life)
}

func (s *Server) filterConfig(l filters.Lifecycle) filters.Config {
	o := s.config.Options
	config := filters.Config{
		Options:       o.Filters,
		Serializer:    legacyscheme.Codecs,
		Authenticator: loopback.Authenticator(),
		APIAudiences:  s.auth.APIAudiences,
		RequestHeader: s.auth.RequestHeader,
		Authorizer:    s.auth.Authorizer,
		AuditBackend:  s.audit.Backend,
		AuditPolicy:   s.audit.Policy,
		FlowControl:   s.flow,
		FeatureGate:   utilfeature.DefaultFeatureGate,
		HTTP2:         !o.Serving.DisableHTTP2,
		Lifecycle:     l,
	}
	if s.tracer != nil {
		config.Tracer = s.tracer
	}
	if s.auth.Authenticator != nil {
		config.Authenticator = union.New(loopback.Authenticator(), s.auth.Authenticator)
	}
	return config
}
