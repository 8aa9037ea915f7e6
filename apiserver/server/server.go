package server

import (
	"context"
	"errors"
	"net"
	"sync"

	"k8s.io/client-go/rest"

	"byre/apiserver/access/auth"
	"byre/apiserver/controllers"
	"byre/apiserver/process"

	"byre/apiserver/registry"
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
	registry     *registry.Builtin
	api          *builtinAPI
	hooks        *hooks
	chain        *chain
	controllers  *controllers.Runner         // what one server of a cluster runs
	keepViews    func(context.Context) error // nil without --sql-schema
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
	if err := auth.CheckMissing(ctx, s.storage.database.Driver, o.Auth.Authentication, o.CertDir, o.Store.AcceptNewKeys); err != nil {
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
	if s.registry, err = newRegistry(o, s.network, s.storage, s.certificates.files, s.clients, s.access.auth); err != nil {
		return err
	}
	if s.api, err = newBuiltinAPI(o, s.storage, s.access.auth.Authorizer, s.registry); err != nil {
		return err
	}
	// The first write needs the types of managed fields. Making them takes about as
	// long as the rest of build, so it runs beside it.
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(s.api.types.Prepare)
	if s.hooks, err = newHooks(o, s.network, s.storage, s.certificates, s.clients, s.access.auth, trust, s.signals.HasBeenReady); err != nil {
		return err
	}
	checks := newChecks(o, s.storage, s.clients, s.access, s.registry, s.hooks, s.signals)
	dependencies := newDependencies(o, s.network, s.storage, s.certificates.files, s.clients, s.access, s.api)
	if s.chain, err = newChain(config, dependencies, s.storage, s.access, s.api, checks); err != nil {
		return err
	}
	if s.controllers, err = newControllers(o, s.network, s.storage, s.certificates, s.clients, s.chain); err != nil {
		return err
	}
	if keep := config.KeepViews; keep != nil {
		s.keepViews = func(ctx context.Context) error { return keep(ctx, s.storage.database, s.clients.loopback) }
	}
	s.http, err = newHTTPServers(ctx, o, s.network, s.certificates.files, s.clients.transport, s.access, s.signals, s.chain.handler)
	if fence := s.storage.database.Fence; err == nil && fence != nil {
		for _, server := range s.http.servers() {
			server.Handler = withFence(fence, server.Handler)
		}
	}
	return err
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
	// KeepViews, unless nil, runs beside the server until ctx ends. Its requests with loopback are the server's own.
	KeepViews func(ctx context.Context, database Database, loopback *rest.Config) error
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
