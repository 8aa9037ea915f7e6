package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"

	"byre/apiserver/access/admission"
	"byre/apiserver/access/audit"
	"byre/apiserver/access/auth"
	"byre/apiserver/access/filters"
	"byre/apiserver/controllers"
	"byre/apiserver/controllers/controlplane"
	"byre/apiserver/delegation"
	"byre/apiserver/handlers/openapi"
	"byre/apiserver/history"
	"byre/apiserver/process/health"
	"byre/apiserver/process/lifecycle"
	"byre/apiserver/process/loopback"
	"byre/apiserver/process/pki"
	"byre/apiserver/process/serving"
	"byre/apiserver/query"
	"byre/apiserver/registry"
	"byre/apiserver/registry/bootstrap"
	"byre/apiserver/storage/factory"
)

// Server holds all parts of the server, made but not started. Its fields are in the
// order in which build sets them.
type Server struct {
	config Config
	// id names this server among the servers of a cluster.
	id      string
	signals *lifecycle.Signals
	// requests counts the requests over a listener that are not long-running; watches
	// counts the watches.
	requests *waitgroup.SafeWaitGroup
	watches  *waitgroup.RateLimitedSafeWaitGroup
	// endBase ends the goroutines that upstream's constructors started.
	endBase context.CancelFunc

	egress egress
	tracer tracing.TracerProvider // nil without --tracing-config-file
	core   *core
	trust  *auth.TrustedKeys
	// triedToRecordKeys: the first try to record them is over.
	triedToRecordKeys *lifecycle.Signal
	listener          net.Listener
	port              string       // the port that listener is bound to
	insecure          net.Listener // nil without --insecure-port

	transport  *loopback.Transport
	encryption encryption
	getter     *factory.Getter // of the built-in resources
	clients    clients
	auth       *auth.Auth
	audit      *audit.Audit
	admission  *admission.Admission
	flow       *filters.FlowControl // nil without priority and fairness
	builtin    *registry.Builtin
	changes    *history.Storage
	queries    *query.Storage // nil without --enable-sql
	tables     query.Catalog
	bootstrap  *bootstrap.Bootstrap
	// controlplane is what every server of a cluster runs; controllers is what one
	// server of the cluster runs.
	controlplane *controlplane.ControlPlane
	controllers  *controllers.Runner

	// chain are the other servers of the delegation chain.
	chain []delegation.Server
	// startChecks pass when the start is done.
	startChecks []health.Checker
	certs       *serving.Certificates
	http        *http.Server
	plain       *http.Server // nil without --insecure-port
	// endRequests cancels the contexts of all requests that came over a listener.
	endRequests context.CancelFunc
}

// New opens the database, binds the ports and makes the parts. Nothing that it makes
// runs before Run, except the goroutines that upstream's constructors start; these end
// with Run. The caller calls either Run or Close.
func New(ctx context.Context, config Config) (*Server, error) {
	s := &Server{
		config:            config,
		signals:           lifecycle.NewSignals(),
		requests:          new(waitgroup.SafeWaitGroup),
		watches:           new(waitgroup.RateLimitedSafeWaitGroup),
		transport:         new(loopback.Transport),
		triedToRecordKeys: lifecycle.NewSignal("TriedToRecordKeys"),
	}
	// The goroutines that upstream's constructors start must go on while the server
	// drains.
	base, endBase := context.WithCancel(context.WithoutCancel(ctx))
	s.endBase = endBase
	if err := s.build(ctx, base); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newID makes the name of this server. Where servers have identity Leases, it derives from the
// host name and the port; otherwise it is random.
func newID(port string) (string, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) {
		return "byre-" + uuid.NewString(), nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	return controlplane.ServerID(hostname, port)
}

// Close releases what New opened, for a server that is not Run.
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

// build makes the parts, each from those before it. ctx bounds the building; the
// goroutines that upstream's constructors start run until base ends.
func (s *Server) build(ctx, base context.Context) error {
	files, err := s.prepare(ctx, base)
	if err != nil {
		return err
	}
	backend := s.newStorage()
	s.getter = factory.NewRESTOptionsGetter(backend, factory.BuiltinResources(effectiveVersion()))
	if s.clients, err = newClients(s.transport, s.tracer, s.getter.Lookup); err != nil {
		return err
	}
	resolver, err := s.newServiceResolver()
	if err != nil {
		return err
	}
	webhooks := s.newWebhookAuthentication()
	if err := s.buildAccess(base, resolver, webhooks); err != nil {
		return err
	}
	if s.builtin, err = s.newBuiltin(files); err != nil {
		return err
	}
	if s.bootstrap, err = s.newBootstrap(); err != nil {
		return err
	}
	if s.controlplane, err = s.newControlPlane(); err != nil {
		return err
	}
	if s.controllers, err = s.newControllers(files); err != nil {
		return err
	}
	models, err := newBuiltinModels(s.newGroups())
	if err != nil {
		return err
	}
	// The first write needs the types of managed fields. Making them takes about as
	// long as the rest of build, so it runs beside it.
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(models.types.Prepare)
	backends, err := s.backends(files)
	if err != nil {
		return err
	}
	handler, err := s.buildChain(models, delegation.Dependencies{
		Storage:               backend,
		EffectiveVersion:      effectiveVersion(),
		Serving:               s.newServing(models),
		Discovery:             s.newDiscovery(),
		OpenAPI:               openapi.NewService(),
		Build:                 openapi.BuildIdentity(time.Now()),
		Loopback:              s.clients.loopback,
		Client:                s.clients.kube,
		Informers:             s.clients.informers,
		ServiceResolver:       resolver,
		WebhookAuthentication: webhooks,
		Backends:              backends,
	})
	if err != nil {
		return err
	}
	return s.buildHTTP(ctx, handler, files)
}

// prepare opens what lies outside the process: the database, the ports, and the files
// with certificates and keys. It creates those files that are missing.
func (s *Server) prepare(ctx, base context.Context) (pki.Files, error) {
	o := s.config.Options
	var files pki.Files
	var err error
	if s.egress, err = newEgress(o.Cluster.EgressSelectorFile); err != nil {
		return files, err
	}
	// The ports are bound before the slow parts of a start. A port in use is found at
	// once, and early clients wait in the listener's queue instead of being refused.
	if err := s.listen(ctx); err != nil {
		return files, err
	}
	if s.id, err = newID(s.port); err != nil {
		return files, err
	}
	if s.tracer, err = newTracer(base, o.TracingFile, s.id, s.egress.controlPlane); err != nil {
		return files, err
	}
	if s.encryption, err = newEncryption(base, o.Store, s.id); err != nil {
		return files, err
	}
	// Nothing is written before this: the files that the flags name have been read.
	if s.core, err = openCore(ctx, s.config); err != nil {
		return files, err
	}
	if s.core.fork != nil {
		s.egress.cluster = refuseDial
	}
	if files, err = s.ensurePKI(); err != nil {
		return files, err
	}
	if s.trust, err = auth.ReadTrustedKeys(o.Auth.Authentication, o.CertDir, o.Store.AcceptNewKeys); err != nil {
		return files, err
	}
	return files, s.trust.Check(ctx, s.core.database.Driver)
}

// listen binds the ports.
func (s *Server) listen(ctx context.Context) error {
	o := s.config.Options.Serving
	var err error
	if s.listener, err = serving.Listen(ctx, o); err != nil {
		return err
	}
	if s.insecure, err = serving.ListenInsecure(ctx, o); err != nil {
		return err
	}
	_, s.port, err = net.SplitHostPort(s.listener.Addr().String())
	return err
}
