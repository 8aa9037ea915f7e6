package server

import (
	"context"
	"errors"
	"net"
	"net/http"

	"k8s.io/klog/v2"

	"byre/apiserver/process"

	"byre/apiserver/storage"
)

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
			Components: []process.Component{
				{Name: "built-in groups", Run: s.runRegistry},
				{Name: "watches of changes", Run: s.api.changes.Run},
			},
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

// runRegistry runs what repairs the allocations of the built-in groups, unless the server only reads.
func (s *Server) runRegistry(ctx context.Context) error {
	if !s.options.Store.ReadsOnly() {
		return s.registry.Run(ctx)
	}
	<-ctx.Done()
	s.registry.Close()
	return nil
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
		components = append(components, process.Component{Name: "encryption configuration", Run: func(ctx context.Context) error {
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

// workComponents are the components that make requests themselves. They include the
// controllers where no other server uses the database; otherwise the controllers are
// among membershipComponents.
func (s *Server) workComponents() []process.Component {
	ready := s.signals.HasBeenReady.Signaled()
	var components []process.Component
	if !s.options.Store.ReadsOnly() {
		components = append(components,
			process.Component{Name: "bootstrap objects", Run: s.hooks.runBootstrap},
			process.Component{Name: "record of trusted keys", Run: after(s.hooks.bootstrap.Done(), s.hooks.keys.run)})
	}
	components = append(components, []process.Component{
		{Name: "readiness", Run: s.awaitReady, MayEnd: true},
		// systemd, too, starts its watchdog at READY=1.
		{Name: "watchdog", Run: after(ready, func(ctx context.Context) error { return process.RunWatchdog(ctx, s.clients.checkLive) }), MayEnd: true},
		{Name: "memory", Run: func(ctx context.Context) error { return process.TuneMemory(ctx, ready) }},
	}...)
	// A fork may have the configuration of the cluster that it is of, whose backups it must not delete.
	if s.options.Backup.Schedule != "" && s.storage.fork == nil {
		components = append(components, process.Component{Name: "scheduled backups", Run: after(ready, func(ctx context.Context) error {
			return makeBackups(ctx, s.options, s.storage.database)
		})})
	}
	if s.storage.database.Replication != nil && len(s.options.Backup.Recipients) > 0 {
		components = append(components, process.Component{Name: "copies of keys", Run: after(ready, func(ctx context.Context) error {
			return copyKeys(ctx, s.options)
		})})
	}
	if s.storage.database.CheckFile != nil {
		components = append(components, process.Component{Name: "check of the database file", Run: after(ready, s.storage.checkFile), MayEnd: true})
	}
	for _, server := range s.chain.servers {
		components = append(components, process.Component{Name: "server of the delegation chain", Run: server.Run})
	}
	if s.keepViews != nil {
		components = append(components, process.Component{Name: "views for SQL", Run: s.keepViews})
	}
	if !s.storage.database.Shared {
		components = append(components, s.controllersComponent())
	}
	return components
}

// membershipComponents are what this server does as a member of a cluster: it is an
// endpoint of the kubernetes Service, holds an identity Lease, and, where other servers
// use the database too, is a candidate for running the controllers. A server that only reads is no member.
func (s *Server) membershipComponents() []process.Component {
	if s.options.Store.ReadsOnly() {
		return nil
	}
	components := []process.Component{
		{Name: "endpoint of the kubernetes Service", Run: s.hooks.bootstrap.PublishEndpoints},
		// The bootstrap component creates the namespace that the control plane writes to.
		{Name: "control plane", Run: after(s.hooks.bootstrap.Done(), s.hooks.controlplane.Run)},
	}
	if s.storage.database.Shared {
		components = append(components, s.controllersComponent())
	}
	return components
}

// controllersComponent starts the controllers once the server is ready, so that they do not
// delay the start.
func (s *Server) controllersComponent() process.Component {
	return process.Component{Name: "controllers", Run: after(s.signals.HasBeenReady.Signaled(), s.controllers.Run)}
}

// servingComponents serve the connections that the listeners accept.
func (s *Server) servingComponents() []process.Component {
	components := []process.Component{{Name: "listener", Run: func(context.Context) error {
		return ignoreClosed(s.http.tls.ServeTLS(s.network.listener, "", ""))
	}}}
	if s.network.insecure != nil {
		components = append(components, process.Component{Name: "insecure listener", Run: func(context.Context) error {
			klog.Warningf("Serving without TLS and without credentials on %s: whoever reaches this port is an administrator", s.network.insecure.Addr())
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
