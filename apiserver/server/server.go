package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"byre/apiserver/access/auth"
	"byre/apiserver/bootstrap"
	"byre/apiserver/controllers"
	"byre/apiserver/process"
	"byre/apiserver/registry"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/replication"
)

// Server holds the parts of the server, made but not started.
type Server struct {
	options Completed
	signals *process.Signals
	// endBase ends the goroutines that upstream's constructors started.
	endBase context.CancelFunc

	network      network
	storage      *storageBackend
	certificates *certificates
	clients      clients
	access       *access
	features     Part
	registry     *registry.Builtin
	api          *builtinAPI
	hooks        *hooks
	chain        *chain
	http         *httpServers
}

// New opens the database, binds the ports and makes the parts. Nothing that it makes
// runs before Run, except the goroutines that upstream's constructors start; these end
// with Run. The caller calls either Run or Close.
func New(ctx context.Context, config Config) (*Server, error) {
	// The goroutines that upstream's constructors start must go on while the server
	// drains.
	base, endBase := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{options: config.Options, signals: process.NewSignals(), endBase: endBase}
	if err := s.build(ctx, base, config); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close releases what New opened, for a server that is not Run.
func (s *Server) Close() error {
	s.endBase()
	if s.registry != nil {
		s.registry.Close()
	}
	if s.storage != nil {
		s.storage.close()
	}
	closeTracer(s.network.tracer)
	return errors.Join(closeListener(s.network.listener), closeListener(s.network.insecure))
}

// Address is the host and port that the server listens on.
func (s *Server) Address() net.Addr { return s.network.listener.Addr() }

// build makes the parts: each constructor takes those that it needs. ctx bounds the building; the
// goroutines that upstream's constructors start run until base ends.
func (s *Server) build(ctx, base context.Context, config Config) error {
	o := config.Options
	var err error
	if s.network, err = newNetwork(ctx, o); err != nil {
		return err
	}
	encryption, err := newEncryption(base, o.Store, s.network.id)
	if err != nil {
		return err
	}
	// Nothing is written before this: the files that the flags name have been read.
	if s.storage, err = openStorage(ctx, config, encryption); err != nil {
		return err
	}
	if s.storage.fork != nil {
		s.network.egress.cluster = refuseDial
	}
	if err := auth.CheckMissing(ctx, s.storage.database.Driver, o.Auth.Authentication, o.CertDir,
		o.Store.AcceptNewKeys); err != nil {
		return err
	}
	if s.certificates, err = ensureCertificates(o, s.network); err != nil {
		return err
	}
	trust, err := auth.ReadTrustedKeys(o.Auth.Authentication, o.CertDir, o.Store.AcceptNewKeys)
	if err != nil {
		return err
	}
	if err := trust.Check(ctx, s.storage.database.Driver); err != nil {
		return err
	}
	if s.clients, err = newClients(o, s.network, s.storage.getter.Lookup); err != nil {
		return err
	}
	if s.access, err = newAccess(base, o, s.network, s.storage, s.clients); err != nil {
		return err
	}
	if s.features, err = newParts(s.newBase()); err != nil {
		return err
	}
	s.access.flow = newFlowControl(o, s.storage, s.clients, s.features.Expensive)
	if s.registry, err = newRegistry(o, s.network, s.storage, s.certificates.files, s.clients, s.access.auth,
		s.features.ComponentStatuses); err != nil {
		return err
	}
	if s.api, err = newBuiltinAPI(s.registry.Groups(), s.features.Groups, s.features.Definitions); err != nil {
		return err
	}
	// The first write needs the types of managed fields. Making them takes about as
	// long as the rest of build, so it runs beside it.
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(s.api.types.Prepare)
	if s.hooks, err = newHooks(o, s.network, s.storage, s.certificates, s.clients, s.access.auth, trust,
		s.signals.HasBeenReady); err != nil {
		return err
	}
	checks := newChecks(o, s.storage, s.clients, s.access, s.registry, s.hooks, s.signals,
		s.features.Checks)
	dependencies := newDependencies(o, s.network, s.storage, s.certificates.files, s.clients, s.access, s.api)
	if s.chain, err = newChain(config, dependencies, s.storage, s.access, s.api, s.features, checks); err != nil {
		return err
	}
	if err := s.features.Complete(Chain{
		Kubernetes: s.registry.Groups(), Lookup: s.storage.getter.Lookup, Schemas: s.api.schemas, Servers: s.chain.servers,
	}); err != nil {
		return err
	}
	s.http, err = newHTTPServers(ctx, o, s.network, s.certificates.files, s.clients.transport, s.access, s.signals,
		s.chain.handler, s.features.Wrap)
	return err
}

// newBase returns what the server has before its features.
func (s *Server) newBase() *Base {
	return &Base{
		Options:   s.options,
		ID:        s.network.id,
		Storage:   s.storage.Backend,
		Database:  s.storage.database,
		IsFork:    s.storage.fork != nil,
		Changes:   newChanges(s.storage, s.access.auth.Authorizer, s.typeOf),
		Admission: s.access.admission.Plugins,
		Files:     s.certificates.files,
		Client:    s.clients.kube,
		Loopback:  s.clients.loopback,
		As:        s.clients.as,
		Hosts:     s.certificates.hosts,
		HasName:   func(host string) bool { return s.http.certs.HasName(host) },
		WatchMetadata: func(gr schema.GroupResource) *storage.MetadataWatch {
			return watchStored(s.storage.getter, s.chain.servers, gr)
		},
	}
}

// Config is what New needs.
type Config struct {
	Options Completed
	// OpenDatabase opens the database that the options name, after it has migrated the
	// database to the program's schema.
	OpenDatabase func(context.Context, StoreOptions) (Database, error)
	// Aggregator delegates to this server, and this server delegates to
	// CustomResources; nil for none.
	Aggregator, CustomResources process.NewChainServer
}

// Database is an open database.
type Database struct {
	Driver sqlstore.Driver
	// Kind is "sqlite" or "postgres", Name the file or the server, without secrets, and
	// Schema the version of its tables, for the log and the metric byre_store_info.
	Kind, Name string
	Schema     int
	// Shared says that other processes may write to it too.
	Shared bool
	// ReadSnapshot calls read with a snapshot of the whole store, and RecordBackup replaces what
	// Driver.LastBackup returns.
	ReadSnapshot func(ctx context.Context, read func(sqlstore.Snapshot) error) error
	RecordBackup func(context.Context, sqlstore.LastBackup) error
	// Replication is what copies it; nil if nothing does.
	Replication *replication.Replicator
	// CheckFile checks the structure of the file while it is served, and fails with sqlstore.ErrDamaged. nil unless
	// the start has left that undone.
	CheckFile func(context.Context) error
	// Fence fails when another process may serve a copy of it: requests that come then are refused. nil without
	// --standby.
	Fence func() error
}

// Run serves until ctx ends or a component fails, and then stops in order. It returns
// nil when ctx ended, and otherwise the component's error.
func (s *Server) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer closeTracer(s.network.tracer)
	defer s.storage.close()

	stages := process.NewStages(fail)
	defer stages.Stop()
	for _, stage := range s.stages() {
		if err := stages.Start(ctx, stage); err != nil {
			return err
		}
	}
	klog.InfoS("Serving", "address", s.Address().String())

	<-ctx.Done()
	s.shutdown(stages)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// after returns a function that calls run once done is closed.
func after(done <-chan struct{}, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-done:
			return run(ctx)
		}
	}
}

// readyInterval is how often awaitChecks runs the checks. Controllers and systemd's
// notification wait for it.
const readyInterval = 20 * time.Millisecond

// awaitChecks returns true once all checks pass, and false if ctx ends before.
func awaitChecks(ctx context.Context, checks []process.HealthChecker) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !process.AllPass(ctx, checks) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// awaitReady signals HasBeenReady as soon as the start is done, whether or not a client asks for
// it. It does not wait until the database accepts all writes (process.HealthChecks.Writes).
func (s *Server) awaitReady(ctx context.Context) error {
	if !awaitChecks(ctx, s.chain.startChecks) {
		return nil
	}
	s.signals.HasBeenReady.Signal()
	process.NotifyReady("Serving on " + s.Address().String())
	klog.InfoS("Ready", "address", s.Address().String(), "kubeconfig", s.options.Kubeconfig())
	return nil
}

// leaveTimeout bounds how long a shutdown waits until this server's entry in the
// kubernetes Service is removed. After this time the entry expires by itself.
const leaveTimeout = bootstrap.LeaseTTL

// shutdown stops serving, in the order that package lifecycle gives. The stages other than
// membership and serving still run when it returns.
func (s *Server) shutdown(stages *process.Stages) {
	klog.InfoS("Stopping", "delay", s.options.Generic.ShutdownDelayDuration)
	process.NotifyStopping()
	var leaving sync.WaitGroup
	s.signals.Shutdown(process.Actions{
		Delay:            func() { time.Sleep(s.options.Generic.ShutdownDelayDuration) },
		PreShutdown:      func() { leave(stages, &leaving) },
		DrainRequests:    s.http.drainRequests,
		DrainWatches:     s.http.drainWatches,
		StopListening:    func() { stages.StopStage(servingStage) },
		CloseConnections: s.http.closeConnections,
	}, s.options.Generic.ShutdownSendRetryAfter)
	klog.InfoS("Drained")
	leaving.Wait()
}

// leave removes this server from the endpoints of the kubernetes Service and releases
// the controllers' Lease. If the database does not answer in time, both expire by themselves;
// leaving then still counts the goroutine that waits for it.
func leave(stages *process.Stages, leaving *sync.WaitGroup) {
	left := make(chan struct{})
	leaving.Go(func() {
		defer close(left)
		stages.StopStage(membershipStage)
	})
	select {
	case <-left:
	case <-time.After(leaveTimeout):
		klog.InfoS("Could not leave the kubernetes Service in time; the entry expires", "timeout", leaveTimeout)
	}
}

// The names of the stages that a shutdown stops before all others.
const (
	membershipStage = "membership"
	servingStage    = "serving"
)

// stages are the stages of components, in the order in which they start. They stop in
// the reverse order, except that a shutdown stops membership and serving first (see
// shutdown).
func (s *Server) stages() []process.Stage {
	return []process.Stage{
		{
			Name:       "store",
			Components: []process.Component{{Name: "store", Run: s.storage.Store.Run}},
		},
		{
			Name:       "feed",
			Components: []process.Component{{Name: "feed", Run: s.storage.Feed.Run}},
			Await: func(ctx context.Context) error {
				return storage.EnsureFirstRevision(ctx, s.storage.Store, s.storage.Feed)
			},
		},
		{
			Name:       "request handling",
			Components: s.requestComponents(),
		},
		{
			Name: "built-in API",
			Components: append([]process.Component{{Name: "built-in groups", Run: s.registry.Run}},
				s.features.Handling...),
			Prepare: s.startInformers,
			Release: func() {
				s.endBase()
				s.clients.stop()
			},
		},
		{
			Name:       "controllers",
			Components: s.workComponents(),
		},
		{
			Name:       membershipStage,
			Components: s.membershipComponents(),
		},
		{
			Name:       servingStage,
			Components: s.servingComponents(),
			Release:    s.http.closeListeners,
		},
	}
}

// requestComponents are the components that the handling of a request relies on.
func (s *Server) requestComponents() []process.Component {
	components := []process.Component{
		{Name: "audit", Run: s.access.audit.Run},
		{Name: "certificates", Run: s.http.certs.Run},
		{Name: "certificate renewal", Run: s.certificates.renew},
		{Name: "authentication and authorization", Run: s.access.auth.Run},
		{Name: "admission", Run: s.access.admission.Run},
		{Name: "priority and fairness", Run: s.access.flow.Run},
	}
	if reload := s.storage.encryption.reload; reload != nil {
		components = append(components,
			process.Component{Name: "encryption configuration", Run: func(ctx context.Context) error {
				reload.Run(ctx)
				return nil
			}})
	}
	if path := s.options.Features.DebugSocketPath; path != "" {
		components = append(components, process.Component{Name: "debug socket", Run: func(ctx context.Context) error {
			return serveDebugSocket(ctx, path)
		}})
	}
	return components
}

// startInformers signals that every handler is installed and that the components that
// they rely on have started. Then it starts the informers.
func (s *Server) startInformers(ctx context.Context) {
	s.signals.MuxAndDiscoveryComplete.Signal()
	s.clients.informers.StartWithContext(ctx)
}

// workComponents are the components that make requests themselves, with those of features. Those of
// Part.Member are among membershipComponents where other servers use the database.
func (s *Server) workComponents() []process.Component {
	ready := s.signals.HasBeenReady.Signaled()
	components := []process.Component{
		{Name: "bootstrap objects", Run: s.hooks.runBootstrap},
		{Name: "record of trusted keys", Run: after(s.hooks.bootstrap.Done(), s.hooks.keys.run)},
		{Name: "readiness", Run: s.awaitReady, MayEnd: true},
		// systemd, too, starts its watchdog at READY=1.
		{Name: "watchdog", Run: after(ready, func(ctx context.Context) error {
			return process.RunWatchdog(ctx, s.clients.checkLive)
		}), MayEnd: true},
		{Name: "memory", Run: func(ctx context.Context) error { return process.TuneMemory(ctx, ready) }},
	}
	if s.storage.database.CheckFile != nil {
		components = append(components,
			process.Component{Name: "check of the database file", Run: after(ready, s.storage.checkFile), MayEnd: true})
	}
	for _, server := range s.chain.servers {
		components = append(components, process.Component{Name: "server of the delegation chain", Run: server.Run})
	}
	components = append(components, s.whenReady(s.features.Work)...)
	if !s.storage.database.Shared {
		components = append(components, s.whenReady(s.features.Member)...)
	}
	return components
}

// membershipComponents are what this server does as a member of a cluster: it is an
// endpoint of the kubernetes Service, holds an identity Lease, and, where other servers
// use the database too, is a candidate for what one of them runs.
func (s *Server) membershipComponents() []process.Component {
	components := []process.Component{
		{Name: "endpoint of the kubernetes Service", Run: s.hooks.bootstrap.PublishEndpoints},
		// The bootstrap component creates the namespace that the control plane writes to.
		{Name: "control plane", Run: after(s.hooks.bootstrap.Done(), s.hooks.controlplane.Run)},
	}
	if s.storage.database.Shared {
		components = append(components, s.whenReady(s.features.Member)...)
	}
	return components
}

// whenReady starts components once the server is ready, so that they do not delay the start.
func (s *Server) whenReady(all []process.Component) []process.Component {
	all = slices.Clone(all)
	for i := range all {
		all[i].Run = after(s.signals.HasBeenReady.Signaled(), all[i].Run)
	}
	return all
}

// servingComponents serve the connections that the listeners accept.
func (s *Server) servingComponents() []process.Component {
	components := []process.Component{{Name: "listener", Run: func(context.Context) error {
		return ignoreClosed(s.http.tls.ServeTLS(s.network.listener, "", ""))
	}}}
	if s.network.insecure != nil {
		components = append(components, process.Component{Name: "insecure listener", Run: func(context.Context) error {
			klog.Warningf("Serving without TLS and without credentials on %s: whoever reaches this port is an administrator",
				s.network.insecure.Addr())
			return ignoreClosed(s.http.plain.Serve(s.network.insecure))
		}})
	}
	return components
}

// ignoreClosed returns nil for the error by which a server ends that was shut down.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// hooks are the post-start hooks: what every server of a cluster does once it serves.
type hooks struct {
	informers    informers.SharedInformerFactory
	bootstrap    *bootstrap.Bootstrap
	keys         *keyRecorder
	controlplane *controllers.ControlPlane
}

func newHooks(
	o Completed, n network, s *storageBackend, certs *certificates, c clients, a *auth.Auth, trust *auth.TrustedKeys,
	ready *process.Signal,
) (*hooks, error) {
	objects, err := newBootstrap(o, n, s, c, a, ready)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return &hooks{
		informers: c.informers,
		bootstrap: objects,
		keys:      newKeyRecorder(trust, s, o.Store.Adopt, a.ClientCA),
		controlplane: controllers.NewControlPlane(controllers.ControlPlaneConfig{
			ServerID:                n.id,
			Hostname:                hostname,
			PeerAddress:             o.Peers.Address(o.AdvertiseAddress, n.port),
			Hosts:                   certs.hosts,
			Client:                  c.kube,
			Loopback:                c.loopback,
			Informers:               c.informers,
			APIResourceConfigSource: o.APIResources,
			FeatureGate:             utilfeature.DefaultFeatureGate,
			LeaderElection:          o.Election,
			Logger:                  klog.Background(),
		}),
	}, nil
}

// newBootstrap makes the component that writes the objects that every cluster has, such
// as the system namespaces and the Service "kubernetes".
func newBootstrap(
	o Completed, n network, s *storageBackend, c clients, a *auth.Auth, ready *process.Signal,
) (*bootstrap.Bootstrap, error) {
	port, err := strconv.Atoi(n.port)
	if err != nil {
		return nil, err
	}
	config := bootstrap.Config{
		Client:                  c.kube,
		Informers:               c.informers,
		APIResourceConfigSource: o.APIResources,
		ServiceCIDRs:            []net.IPNet{o.ServiceIPRange},
		Service: bootstrap.Service{
			ClusterIP:        o.ServiceIP,
			AdvertiseAddress: o.EndpointAddress(),
			AdvertisePort:    port,
			NodePort:         o.Cluster.ServiceNodePort,
		},
		Ready:                 ready.Signaled(),
		ClusterAuthentication: newClusterAuthentication(a, c.kube),
		EpochEnded:            s.Feed.EpochEnded,
		Logger:                klog.Background(),
	}
	if o.SecondaryServiceIPRange.IP != nil {
		config.ServiceCIDRs = append(config.ServiceCIDRs, o.SecondaryServiceIPRange)
	}
	if s.database.Shared {
		if config.Leases, err = bootstrap.NewStoredLeases(s.getter); err != nil {
			return nil, err
		}
	}
	return bootstrap.New(config), nil
}

// newClusterAuthentication makes the controller that writes what an aggregated API server needs to
// authenticate the requests that this server proxies to it into the ConfigMap
// extension-apiserver-authentication, and again when a CA file has been reloaded. The caller has not
// called a.Run: the CAs have no lock for their listeners.
func newClusterAuthentication(a *auth.Auth, client kubernetes.Interface) *clusterauthenticationtrust.Controller {
	info := clusterauthenticationtrust.ClusterAuthenticationInfo{ClientCA: a.ClientCA}
	if h := a.RequestHeader; h != nil {
		info.RequestHeaderCA = h.CAContentProvider
		info.RequestHeaderUsernameHeaders = h.UsernameHeaders
		info.RequestHeaderUIDHeaders = h.UIDHeaders
		info.RequestHeaderGroupHeaders = h.GroupHeaders
		info.RequestHeaderExtraHeaderPrefixes = h.ExtraHeaderPrefixes
		info.RequestHeaderAllowedNames = h.AllowedClientNames
	}
	controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(info, client)
	a.ClientCAs().AddListener(controller)
	return controller
}

// informersPatience bounds how long runBootstrap waits for the informers.
const informersPatience = time.Second

// runBootstrap creates the bootstrap objects. It waits for the informers first, since an
// admission plugin that a write finds without its objects looks for them only every 0.1 s.
func (h *hooks) runBootstrap(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, informersPatience)
	h.informers.WaitForCacheSyncWithContext(waiting)
	cancel()
	return h.bootstrap.Run(ctx)
}
